"""CCT-2/3x2 and its train step in PyTorch, eager or compiled: the peers of `benchmarks.digits_step`."""

import os
from collections.abc import Callable

import torch
from torch import nn


class Block(nn.Module):
  """The encoder block of the Compact Transformers' code. Its second norm overwrites the residual stream."""

  def __init__(self, width: int, heads: int, path_rate: float) -> None:
    super().__init__()
    self.heads, self.path_rate = heads, path_rate
    self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
    self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
    self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    self.dropout = nn.Dropout(0.1)

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    images, tokens, width = x.shape
    q, k, v = self.qkv(self.norm1(x)).view(images, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    weights = self.dropout((q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1))
    x = self.norm2(x + self.drop(self.out((weights @ v).transpose(1, 2).reshape(images, tokens, width))))
    return x + self.drop(self.mlp(x))

  def drop(self, branch: torch.Tensor) -> torch.Tensor:
    """Applies stochastic depth: drops a branch for whole images."""
    if self.path_rate == 0:
      return branch
    keep = 1 - self.path_rate
    return branch * (torch.rand(len(branch), 1, 1) < keep) / keep


class Cct(nn.Module):
  """CCT-2/3x2 for 32x32 images and 10 classes."""

  def __init__(self, width: int = 128) -> None:
    super().__init__()
    self.tokenizer = nn.Sequential(
      *(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
      *(nn.Conv2d(64, width, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
    )
    self.position = nn.Parameter(0.2 * torch.randn(1, 64, width))
    self.blocks = nn.Sequential(Block(width, 2, 0.0), Block(width, 2, 0.1))
    self.norm, self.score, self.head = nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(width, 10)

  def forward(self, images: torch.Tensor) -> torch.Tensor:
    x = self.norm(self.blocks(self.tokenizer(images).flatten(2).transpose(1, 2) + self.position))
    return self.head((self.score(x).softmax(1) * x).sum(1))


def make_train_step(batch: int, compiled: bool = False) -> tuple[Callable[[], None], int]:
  """Prepares a train step on a fixed random batch.

  Args:
    batch: number of images in the batch.
    compiled: whether `torch.compile` compiles the forward pass, the backward pass and the optimizer.

  Returns:
    A function that runs one step, and the number of parameters.
  """
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  model = Cct().train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
  images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

  def compute_loss() -> torch.Tensor:
    return nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1)

  loss, update = (torch.compile(f) if compiled else f for f in (compute_loss, optimizer.step))

  def step() -> None:
    optimizer.zero_grad(set_to_none=True)
    loss().backward()
    update()

  return step, sum(p.numel() for p in model.parameters())

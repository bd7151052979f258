"""Images a second of `make digits` beside PyTorch: python -m benchmarks.digits_step [--rounds=20] [--json=FILE]

Both train CCT-2/3x2, batch 64, float32, AdamW, label smoothing 0.1, attention dropout and stochastic depth 0.1, on
all cores of this machine. Ours is the whole step of configs/digits.py, with random affine augmentation, clipping and
metrics; the peer, eager PyTorch, gets ready-made tensors. The two take turns, one step each, so that noise meets both.
"""

import argparse
import json
import os
import statistics
import time

import jax
import torch
from torch import nn

from vit_jax import build, config, flags, runtime, trees
from vit_jax.corpora.builders import prepare


class Block(nn.Module):
  """The encoder block of the Compact Transformers' code: the second norm overwrites the stream."""

  def __init__(self, width, heads, path_rate):
    super().__init__()
    self.heads, self.path_rate = heads, path_rate
    self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
    self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
    self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
    self.dropout = nn.Dropout(0.1)

  def forward(self, x):
    images, tokens, width = x.shape
    q, k, v = self.qkv(self.norm1(x)).view(images, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    weights = self.dropout((q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1))
    x = self.norm2(x + self.drop(self.out((weights @ v).transpose(1, 2).reshape(images, tokens, width))))
    return x + self.drop(self.mlp(x))

  def drop(self, branch):
    """Stochastic depth: leaves a branch out for whole images."""
    if self.path_rate == 0:
      return branch
    keep = 1 - self.path_rate
    return branch * (torch.rand(len(branch), 1, 1) < keep) / keep


class Cct(nn.Module):
  """CCT-2/3x2 for 32x32 images and 10 classes."""

  def __init__(self, width=128):
    super().__init__()
    self.tokenizer = nn.Sequential(
      *(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
      *(nn.Conv2d(64, width, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(3, 2, 1)),
    )
    self.position = nn.Parameter(0.2 * torch.randn(1, 64, width))
    self.blocks = nn.Sequential(Block(width, 2, 0.0), Block(width, 2, 0.1))
    self.norm, self.score, self.head = nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(width, 10)

  def forward(self, images):
    x = self.norm(self.blocks(self.tokenizer(images).flatten(2).transpose(1, 2) + self.position))
    return self.head((self.score(x).softmax(1) * x).sum(1))


def torch_step(batch: int):
  """(function of one train step on a fixed batch, number of parameters)."""
  torch.set_num_threads(len(os.sched_getaffinity(0)))
  model = Cct().train()
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
  images, labels = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))

  def step():
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(images), labels, label_smoothing=0.1).backward()
    optimizer.step()

  return step, sum(p.numel() for p in model.parameters())


def jax_step():
  """(function of one train step of configs/digits.py on a fixed batch, number of parameters, batch)."""
  run = build.complete(config.resolve(flags.load("configs/digits.py")))
  parts = build.build(run, jax.devices())
  batches = parts.batches(0)
  batch = next(batches)
  batches.close()
  compiled, state = parts.compile(), [parts.init()]

  def step():
    state[0], metrics = compiled(state[0], batch)
    jax.block_until_ready(metrics)

  return step, trees.count(parts.state_shapes.params), run.batch


def main() -> None:
  """Prints medians of images a second, and the median of the ratios of neighbouring steps."""
  parser = argparse.ArgumentParser("python -m benchmarks.digits_step", description=__doc__)
  parser.add_argument("--rounds", type=int, default=20, help="timed steps of each")
  parser.add_argument("--json", help="also write the figures to this file")
  args = parser.parse_args()
  runtime.start()
  prepare("digits")
  ours, parameters, batch = jax_step()
  theirs, peer_parameters = torch_step(batch)
  assert parameters == peer_parameters, "not the same model"

  seconds = {"vit_jax": [], "torch": []}
  for timed in [False] * 3 + [True] * args.rounds:
    for name, step in (("vit_jax", ours), ("torch", theirs)):
      start = time.perf_counter()
      step()
      if timed:
        seconds[name].append(time.perf_counter() - start)
  figures = {f"{name}_images_per_second": batch / statistics.median(times) for name, times in seconds.items()}
  figures["ratio"] = statistics.median(t / o for o, t in zip(seconds["vit_jax"], seconds["torch"], strict=True))
  for name, value in figures.items():
    print(f"{name:<28}{value:8.2f}")
  if args.json:
    with open(args.json, "w") as file:
      json.dump(figures, file, indent=2)


if __name__ == "__main__":
  main()

"""A ViT and its train step under torch.compile: the reference of `benchmarks.gpu_step`."""

import numpy as np
import torch
from torch import nn

from benchmarks.sides import CLASSES, CLIP, DECAY, RATE, SIDE, Side
from vit_jax import schema
from vit_jax.models.published import vit


class Block(nn.Module):
  """A block with timm's structure, from tokens (B, N, D) to tokens (B, N, D). Query, key and value are one product."""

  def __init__(self, width: int, heads: int, hidden: int) -> None:
    super().__init__()
    self.heads = heads
    self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
    self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
    self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

  def forward(self, x: torch.Tensor) -> torch.Tensor:
    images, tokens, width = x.shape
    q, k, v = self.qkv(self.norm1(x)).view(images, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
    context = nn.functional.scaled_dot_product_attention(q, k, v)
    x = x + self.out(context.transpose(1, 2).reshape(images, tokens, width))
    return x + self.mlp(self.norm2(x))


class Vit(nn.Module):
  """A ViT from images (B, 3, H, W) to logits (B, V). It is used if timm is not installed."""

  def __init__(self, patch: int, width: int, depth: int, heads: int, hidden: int) -> None:
    super().__init__()
    self.embedding = nn.Conv2d(3, width, patch, stride=patch)
    self.position = nn.Parameter(0.02 * torch.randn(1, (SIDE // patch) ** 2, width))
    self.blocks = nn.Sequential(*(Block(width, heads, hidden) for _ in range(depth)))
    self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, CLASSES)

  def forward(self, images: torch.Tensor) -> torch.Tensor:
    x = self.embedding(images).flatten(2).transpose(1, 2) + self.position
    return self.head(self.norm(self.blocks(x)).mean(1))


def build_peer_model(patch: int, width: int, depth: int, heads: int, hidden: int) -> tuple[nn.Module, str]:
  """Builds the model of the peer.

  Args:
    patch: patch size in pixels.
    width: size of a token.
    depth: number of blocks.
    heads: number of heads.
    hidden: hidden size of the MLP.

  Returns:
    The model and its description.

  Raises:
    ConfigError: timm is installed but cannot be imported.
  """
  try:
    import timm
    from timm.models.vision_transformer import VisionTransformer
  except ImportError:
    return Vit(patch, width, depth, heads, hidden), "plain torch in timm's structure (timm is not installed)"
  except RuntimeError as error:  # timm imports torchvision, which raises this error if it was built for another torch
    raise schema.ConfigError(
      f"timm cannot be imported with torch {torch.__version__}: {error}. Install the matching torchvision, or "
      "uninstall "
      "timm to compare with plain torch"
    ) from error
  model = VisionTransformer(
    img_size=SIDE,
    patch_size=patch,
    num_classes=CLASSES,
    embed_dim=width,
    depth=depth,
    num_heads=heads,
    mlp_ratio=(hidden + 0.5) / width,  # timm rounds the product down
    class_token=False,
    global_pool="avg",
    fc_norm=False,  # as in our model: norm, then mean
  )
  return model, f"timm {timm.__version__}"


def prepare_theirs(model: str, images: np.ndarray, labels: np.ndarray, device: str) -> Side:
  """Prepares the PyTorch side.

  Args:
    model: size and patch, such as "B/16".
    images: images (B, H, W, C), uint8.
    labels: labels (B,).
    device: "cuda" or "cpu".

  Raises:
    ConfigError: timm is installed but cannot be imported.
  """
  size, patch = model.rsplit("/", 1)
  # Under autocast few operations use float32. Float32 products may use TF32, like those of XLA.
  torch.set_float32_matmul_precision("high")
  torch.backends.cudnn.benchmark = True
  network, name = build_peer_model(int(patch), *vit.SIZES[size])
  network = network.to(device).train()
  parameters = dict(network.named_parameters())
  kernels = [value for path, value in parameters.items() if path.endswith("weight") and value.ndim > 1]
  kept = {id(value) for value in kernels}
  others = [value for value in parameters.values() if id(value) not in kept]
  optimizer = torch.optim.AdamW(
    [{"params": kernels, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}], lr=RATE, fused=True
  )
  pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous().to(device)
  targets = torch.from_numpy(labels).long().to(device)

  @torch.compile(dynamic=False)
  def objective() -> torch.Tensor:
    with torch.autocast(device, torch.bfloat16):
      logits = network(pixels.float() * (1 / 127.5) - 1)
    return nn.functional.cross_entropy(logits.float(), targets)

  def steps(count: int) -> float:
    for _ in range(count):
      optimizer.zero_grad(set_to_none=True)
      loss = objective()
      loss.backward()
      nn.utils.clip_grad_norm_(parameters.values(), CLIP)
      optimizer.step()
    if device == "cuda":
      torch.cuda.synchronize()
    return loss.item()

  return Side(
    steps, sum(value.numel() for value in parameters.values()), f"{name}, torch {torch.__version__}, torch.compile"
  )

"""Compact transformers: ViT-Lite, CVT and CCT (Hassani et al. 2021), as the official code builds and trains them.

Its block order differs from the paper's and every published checkpoint needs it; norm_order="pre" is what was meant.
"""

import itertools
import math
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import rng
from vit_jax.models import layers, positions, stack
from vit_jax.models.pooling import SeqPool
from vit_jax.models.published import model
from vit_jax.models.transformer import Block, Depth, Dtype, Hidden, Transformer, Width, grid, sides, size
from vit_jax.schema import Count, Probability, Range

SIZES = {  # width, depth, heads, hidden
  2: (128, 2, 2, 128),
  4: (128, 4, 2, 128),
  6: (256, 6, 4, 512),
  7: (256, 7, 4, 512),
  14: (384, 14, 6, 1152),
}


class Variant(NamedTuple):
  """A published model: size, kernel of the tokenizer and its number of convolutions (0: patches), pooling, task."""

  size: int
  kernel: int
  convolutions: int
  pool: Literal["cls", "seqpool"]
  image_size: int
  classes: int


_patch_variants = {
  f"{family}_{size}_4_32": Variant(size, 4, 0, pool, 32, 10)
  for family, pool in (("vit", "cls"), ("cvt", "seqpool"))
  for size in (2, 4, 6, 7)
}
_conv_variants = {
  "cct_2_3x2_32": Variant(2, 3, 2, "seqpool", 32, 10),
  "cct_4_3x2_32": Variant(4, 3, 2, "seqpool", 32, 10),
  "cct_6_3x1_32": Variant(6, 3, 1, "seqpool", 32, 10),
  "cct_6_3x2_32": Variant(6, 3, 2, "seqpool", 32, 10),
  "cct_7_3x1_32": Variant(7, 3, 1, "seqpool", 32, 10),
  "cct_7_3x1_32_c100": Variant(7, 3, 1, "seqpool", 32, 100),
  "cct_7_3x2_32": Variant(7, 3, 2, "seqpool", 32, 10),
  "cct_7_7x2_224": Variant(7, 7, 2, "seqpool", 224, 102),
  "cct_14_7x2_224": Variant(14, 7, 2, "seqpool", 224, 1000),
  "cct_14_7x2_384": Variant(14, 7, 2, "seqpool", 384, 1000),
  "cct_14_7x2_384_fl": Variant(14, 7, 2, "seqpool", 384, 102),
}
# Every variant but the largest also exists with a fixed table: cct_7_3x1_32_sine, cct_7_3x1_32_sine_c100.
VARIANTS = {  # name -> variant, position
  **{name: (variant, "learned") for name, variant in (_patch_variants | _conv_variants).items()},
  **{
    name.removesuffix("_c100") + "_sine" + ("_c100" if name.endswith("_c100") else ""): (variant, "sine")
    for name, variant in (_patch_variants | _conv_variants).items()
    if variant.size != 14
  },
}

SHARDING = (
  *layers.SHARDING,
  (r"embedding/(convolutions/\d+/)?kernel", (None, None, None, "fsdp")),
  (r"embedding/bias", (None,)),
)

_normal = nnx.initializers.normal(0.02)


class Convolutions(nnx.Module):
  """[B, H, W, C] -> [B, H', W', D]: several times a convolution without bias, 3x3 max-pooling and ReLU."""

  def __init__(self, channels, width, kernel, count, *, dtype, rngs):
    widths = [channels, *[64] * (count - 1), width]  # 64 in between, whatever the model
    stride, padding = max(1, kernel // 2 - 1), max(1, kernel // 2)
    he = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
    self.convolutions = nnx.List(
      [
        layers.Conv(a, b, kernel, stride, padding, bias=False, kernel_init=he, dtype=dtype, rngs=rngs)
        for a, b in itertools.pairwise(widths)
      ]
    )

  def __call__(self, x):
    for convolution in self.convolutions:
      x = jax.nn.relu(layers.max_pool(convolution(x)))  # commutes with pooling, on a quarter of the pixels
    return x


def side(image_size: int, kernel: int, convolutions: int) -> int:
  """Tokens along one side of what `Convolutions` gives."""
  stride, padding = max(1, kernel // 2 - 1), max(1, kernel // 2)
  for _ in range(convolutions):
    image_size = (image_size + 2 * padding - kernel) // stride + 1
    image_size = (image_size - 1) // 2 + 1
  return image_size


def compact(
  variant: Variant,
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: rng.Keys,
  *,
  position: Literal["learned", "sine", "none"] = "learned",
  norm_order: Literal["official", "pre"] = "official",
  kernel: Count | None = None,
  convolutions: Annotated[int, Range(0, 8)] | None = None,
  pool: Literal["cls", "seqpool"] | None = None,
  dropout: Probability = 0.0,
  attention_dropout: Probability = 0.1,
  stochastic_depth: Probability = 0.1,
  width: Width | None = None,
  depth: Depth | None = None,
  heads: Width | None = None,
  hidden: Hidden | None = None,
  dtype: Dtype = "float32",
  scan: bool = False,
  remat: stack.Remat = "none",
) -> Transformer:
  """[B, H, W, C] -> [B, V]. Kernel, convolutions, pool and sizes, where given, replace those of the variant."""
  replaced = {"kernel": kernel, "convolutions": convolutions, "pool": pool}
  variant = variant._replace(**{key: value for key, value in replaced.items() if value is not None})
  width, depth, heads, hidden = size(SIZES[variant.size], width=width, depth=depth, heads=heads, hidden=hidden)
  compute = jnp.dtype(dtype)
  common = {"dtype": compute, "rngs": rngs}

  if variant.convolutions:
    tokens = math.prod(side(n, variant.kernel, variant.convolutions) for n in sides(image_size))
    embedding = Convolutions(channels, width, variant.kernel, variant.convolutions, **common)
  else:
    patch = variant.kernel
    tokens = math.prod(grid(image_size, patch))
    # PyTorch's default for a convolution's bias, which the official code leaves in place.
    bound = 1 / math.sqrt(channels * patch * patch)
    embedding = layers.PatchEmbedding(
      channels,
      width,
      patch,
      kernel_init=nnx.initializers.variance_scaling(2.0, "fan_in", "normal"),
      bias_init=lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound),
      **common,
    )

  has_cls = variant.pool == "cls"
  match position:
    case "learned":
      table = positions.Learned(tokens + has_cls, width, std=0.2, rngs=rngs)
    case "sine":
      table = positions.Fixed(positions.sine, (tokens + has_cls, width))
    case _:
      table = None

  def block(rngs):
    return Block(
      width,
      heads,
      hidden,
      order=norm_order,
      eps=1e-5,
      gelu="erf",
      dropout=dropout,
      attention_dropout=attention_dropout,
      attention_bias=False,
      kernel_init=_normal,
      dtype=compute,
      rngs=rngs,
    )

  return Transformer(
    (*sides(image_size), channels),
    embedding=embedding,
    token=nnx.Param(jnp.zeros(width)) if has_cls else None,
    position=table,
    block=block,
    depth=depth,
    scan=scan,
    remat=remat,
    norm=layers.LayerNorm(width, eps=1e-5, dtype=compute),
    pool="cls" if has_cls else SeqPool(width, kernel_init=_normal, **common),
    head=layers.Linear((width,), (classes,), kernel_init=_normal, **common) if classes else None,
    dropout=dropout,
    stochastic_depth=stochastic_depth,
    rngs=rngs,
  )


PUBLISHED = {
  name: model(
    compact,
    variant,
    position=table,
    sharding=SHARDING,
    image_size=variant.image_size,
    classes=variant.classes,
  )
  for name, (variant, table) in VARIANTS.items()
}

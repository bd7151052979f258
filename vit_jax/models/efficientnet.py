"""EfficientNet (Tan & Le 2019): inverted bottlenecks with squeeze-excitation, scaled in width, depth and image size.

Every size exists twice: `tf_efficientnet_*` computes as the authors' TensorFlow code does, with its padding and its
epsilon, `efficientnet_*` with those of PyTorch. The tensors of both have the same names and shapes.
"""

import math
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax import rng, schema
from vit_jax.models import layers
from vit_jax.models.batchnorm import BatchNorm
from vit_jax.models.intermediates import record
from vit_jax.models.output import Output, check_shape, classified
from vit_jax.models.published import model
from vit_jax.models.transformer import Dtype, sides
from vit_jax.schema import Count, Fraction, Positive, Probability


class Size(NamedTuple):
  """A published size: factors of all widths and of the blocks of each stage, image size, dropout before the head."""

  width: float
  depth: float
  image_size: int
  dropout: float


class Stage(NamedTuple):
  """Equal blocks, of which the first has the stride, as in the smallest size (Tan & Le 2019, table 1)."""

  kernel: int
  stride: int
  expansion: int
  width: int
  blocks: int


SIZES = {
  "b0": Size(1.0, 1.0, 224, 0.2),
  "b1": Size(1.0, 1.1, 240, 0.2),
  "b2": Size(1.1, 1.2, 260, 0.3),
  "b3": Size(1.2, 1.4, 300, 0.3),
  "b4": Size(1.4, 1.8, 380, 0.4),
  "b5": Size(1.6, 2.2, 456, 0.4),
  "b6": Size(1.8, 2.6, 528, 0.5),
  "b7": Size(2.0, 3.1, 600, 0.5),
  "l2": Size(4.3, 5.3, 800, 0.5),  # Xie et al. 2020; trained at 475, tested at 800
}
STEM, TOP = 32, 1280
STAGES = (
  Stage(3, 1, 1, 16, 1),
  Stage(3, 2, 6, 24, 2),
  Stage(5, 2, 6, 40, 2),
  Stage(3, 2, 6, 80, 3),
  Stage(5, 1, 6, 112, 3),
  Stage(5, 2, 6, 192, 4),
  Stage(3, 1, 6, 320, 1),
)

# A block is split as an MLP is: its expanded channels over "tensor".
SHARDING = (
  (r"stem/kernel", (None, None, None, "fsdp")),
  (r"(stem|top|stages/.*/project)_norm/(scale|bias|mean|var)", (None,)),
  (r"stages/.*/(expand|depthwise)_norm/(scale|bias|mean|var)", ("tensor",)),
  (r"stages/.*/(expand|excite)/kernel", ("fsdp", "tensor")),
  (r"stages/.*/depthwise/kernel", (None, None, None, "tensor")),
  (r"stages/.*/(squeeze|project)/kernel", ("tensor", "fsdp")),
  (r"stages/.*/squeeze/bias", (None,)),
  (r"stages/.*/excite/bias", ("tensor",)),
  (r"(top|head)/kernel", ("fsdp", None)),
  (r"head/bias", (None,)),
)

# Of the original code, which counts the outputs of a convolution; a depthwise one has one for each of its inputs.
_he = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
_he_depthwise = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
_uniform = nnx.initializers.variance_scaling(1 / 3, "fan_out", "uniform")  # within +-1 / sqrt(V)


def channels_of(base: int, factor: float) -> int:
  """`base` channels times `factor`, rounded to a multiple of 8, and up where that would lose more than a tenth."""
  wanted = base * factor
  rounded = max(8, int(wanted + 4) // 8 * 8)
  return rounded + 8 if rounded < 0.9 * wanted else rounded


def blocks_of(depth_factor: float) -> tuple[int, ...]:
  """Blocks of each stage."""
  return tuple(math.ceil(stage.blocks * depth_factor) for stage in STAGES)


class Block(nnx.Module):
  """[B, H, W, C] -> [B, H / stride, W / stride, D]: inverted bottleneck (Sandler et al. 2018) with squeeze-excitation.

  Expansion to F = expansion * C channels (none if that is C), depthwise convolution, gate, projection; with a shortcut
  where the shape stays. The gate is a function of the means over space, through C / 4 channels (Hu et al. 2018).
  """

  def __init__(self, channels, width, kernel, stride, expansion, *, padding, norm: Callable, dtype, rngs):
    expanded = expansion * channels
    linear = {"kernel_init": _he, "dtype": dtype, "rngs": rngs}
    self.expand = layers.Linear((channels,), (expanded,), bias=False, **linear) if expansion > 1 else None
    self.expand_norm = norm(expanded) if expansion > 1 else None
    self.depthwise = layers.Conv(
      expanded,
      expanded,
      kernel,
      stride,
      _border(kernel, padding),
      groups=expanded,
      bias=False,
      kernel_init=_he_depthwise,
      dtype=dtype,
      rngs=rngs,
    )
    self.depthwise_norm = norm(expanded)
    self.squeeze = layers.Linear((expanded,), (channels // 4,), **linear)
    self.excite = layers.Linear((channels // 4,), (expanded,), **linear)
    self.project = layers.Linear((expanded,), (width,), bias=False, **linear)
    self.project_norm = norm(width)
    self.shortcut = stride == 1 and channels == width

  def __call__(self, x, key=None, path_rate=0.0):
    shortcut = x
    if self.expand is not None:
      x = jax.nn.silu(self.expand_norm(self.expand(x), key))
    x = jax.nn.silu(self.depthwise_norm(self.depthwise(x), key))
    gate = jax.nn.sigmoid(self.excite(jax.nn.silu(self.squeeze(x.mean((1, 2))))))
    x = self.project_norm(self.project(x * gate[:, None, None]), key)
    return shortcut + layers.drop_path(x, path_rate, key) if self.shortcut else x


def _border(kernel, padding):
  return "same" if padding == "same" else (kernel - 1) // 2


class EfficientNet(nnx.Module):
  """Images [B, H, W, C] -> logits [B, V], float32: stem, stages of blocks, top, mean over space, head.

  Without a head the result is the features. `key` is the key of all dropout, and makes batch norms use and follow
  the batch; None means evaluation.
  """

  def __init__(
    self,
    shape: tuple[int, int, int],
    *,
    width_factor: float,
    stages: tuple[int, ...],
    classes: int,
    padding: str,
    norm: Callable,
    dropout: float,
    stochastic_depth: float,
    dtype,
    rngs,
  ):
    self.shape, self.dropout, self.stochastic_depth = shape, dropout, stochastic_depth
    make = {"dtype": dtype, "rngs": rngs}

    channels = channels_of(STEM, width_factor)
    self.stem = layers.Conv(shape[-1], channels, 3, 2, _border(3, padding), bias=False, kernel_init=_he, **make)
    self.stem_norm = norm(channels)
    self.stages = nnx.List()
    for stage, blocks in zip(STAGES, stages, strict=False):
      width = channels_of(stage.width, width_factor)
      self.stages.append(nnx.List())
      for j in range(blocks):
        stride = 1 if j else stage.stride
        made = Block(channels, width, stage.kernel, stride, stage.expansion, padding=padding, norm=norm, **make)
        self.stages[-1].append(made)
        channels = width
    top = channels_of(TOP, width_factor)
    self.top = layers.Linear((channels,), (top,), bias=False, kernel_init=_he, **make)
    self.top_norm = norm(top)
    self.head = layers.Linear((top,), (classes,), kernel_init=_uniform, **make) if classes else None

  def __call__(self, images, key=None):
    return self.outputs(images, key).logits

  def outputs(self, images: jax.Array, key: jax.Array | None = None) -> Output:
    """Everything that is computed of images [B, H, W, C]."""
    check_shape(images, self.shape)
    x = record("stem", jax.nn.silu(self.stem_norm(self.stem(images), key)))

    # The rate of dropping a block grows linearly with its number, and would reach the full one just after the last.
    names = [(i, j) for i, stage in enumerate(self.stages) for j in range(len(stage))]
    for number, (i, j) in enumerate(names):
      rate = self.stochastic_depth * number / len(names)
      x = record(f"stages/{i}/{j}", self.stages[i][j](x, layers.fold(key, 1 + number), rate))

    tokens = record("encoded", jax.nn.silu(self.top_norm(self.top(x), key)))
    features = record("features", tokens.mean((1, 2)))
    features = record("pre_logits", layers.dropout(features, self.dropout, layers.fold(key, 0)))
    return classified(tokens, features, self.head)


Factor = Annotated[float, schema.Range(0.05, 64)]


def efficientnet(
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: rng.Keys,
  *,
  width_factor: Factor = 1.0,
  depth_factor: Factor = 1.0,
  stages: tuple[Count, ...] | None = None,
  padding: Literal["symmetric", "same"] = "symmetric",
  eps: Positive = 1e-5,
  momentum: Fraction = 0.1,
  dropout: Probability = 0.2,
  stochastic_depth: Probability = 0.2,
  dtype: Dtype = "float32",
) -> EfficientNet:
  """[B, H, W, C] -> [B, V].

  `stages`, where given, are the blocks of each stage, of which there may be fewer than seven, instead of what
  `depth_factor` makes. `eps` and `momentum` are those of batch norms: PyTorch's momentum, the weight of the new.
  """
  stages = blocks_of(depth_factor) if stages is None else stages
  if not 0 < len(stages) <= len(STAGES):
    raise schema.ConfigError(f"model: stages {list(stages)}; allowed: blocks of each, for 1 to {len(STAGES)} stages")
  compute = jnp.dtype(dtype)
  return EfficientNet(
    (*sides(image_size), channels),
    width_factor=width_factor,
    stages=stages,
    classes=classes,
    padding=padding,
    norm=lambda width: BatchNorm(width, eps=eps, momentum=momentum, dtype=compute),
    dropout=dropout,
    stochastic_depth=stochastic_depth,
    dtype=compute,
    rngs=rngs,
  )


PUBLISHED = {
  f"{prefix}efficientnet_{name}": model(
    efficientnet,
    sharding=SHARDING,
    image_size=size.image_size,
    width_factor=size.width,
    depth_factor=size.depth,
    dropout=size.dropout,
    **computes,
  )
  for prefix, computes in (
    ("", {"padding": "symmetric", "eps": 1e-5}),
    ("tf_", {"padding": "same", "eps": 1e-3, "momentum": 0.01}),
  )
  for name, size in SIZES.items()
}

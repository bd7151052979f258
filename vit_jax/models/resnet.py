"""Residual networks with group norm and standardised weights: parts, and the version-1 ResNet in front of hybrids.

Hybrids: Dosovitskiy et al. 2021, section 3.1; version 2 is in bit.py. Norms and standardisation compute in float32.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from einops import reduce, repeat
from flax import nnx

from vit_jax.models.convolution import conv, max_pool_same
from vit_jax.models.intermediates import record
from vit_jax.shapes import Float, Tensor

GROUPS = 32  # of a group norm, whatever the width
WIDTH = 64  # channels of the root, and of the first stage's 3x3 convolutions

# By what a centred kernel is divided. The two published codes differ, visibly in the logits.
DIVISORS = {
  # A channel of equal weights has no gradient through its root: the smallest normal number keeps out inf * 0.
  "std + 1e-5": lambda variance: jnp.sqrt(jnp.maximum(variance, jnp.finfo(jnp.float32).tiny)) + 1e-5,
  "sqrt(var + 1e-10)": lambda variance: jnp.sqrt(variance + 1e-10),
}
Divisor = Literal["std + 1e-5", "sqrt(var + 1e-10)"]

STEM_SHARDING = (  # beside `parameters.SHARDING`, which has the other norms
  # Standardisation is over all axes but the last: a split one needs no communication.
  (r"stem/(root|stages/.*)/kernel", (None, None, None, "fsdp")),
  (r"stem/stages/.*/norm3/(scale|bias)", (None,)),
)


def standardised(kernel: Float[Tensor, "P P C D"], divisor: Divisor) -> Float[Tensor, "P P C D"]:
  """The kernel with mean 0 and, but for an epsilon, variance 1 of each output (Qiao et al. 2019)."""
  centred = kernel - kernel.mean((0, 1, 2))
  return centred / DIVISORS[divisor](jnp.square(centred).mean((0, 1, 2)))


class StandardisedConv(nnx.Module):
  """A convolution without bias; padding as in `convolution.conv`."""

  def __init__(self, channels, width, size, stride, padding, *, divisor: Divisor, dtype, rngs):
    self.stride, self.padding, self.divisor, self.dtype = stride, padding, divisor, dtype
    draw = nnx.initializers.lecun_normal()
    self.kernel = nnx.Param(draw(rngs.params(), (size, size, channels, width), jnp.float32))

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B X Y D"]:
    kernel = standardised(self.kernel[...], self.divisor)
    return conv(x.astype(self.dtype), kernel.astype(self.dtype), self.stride, self.padding)


class GroupNorm(nnx.Module):
  """Normalises over space and the channels of each of 32 groups (Wu and He 2018)."""

  def __init__(self, width, *, eps, scale=1.0, dtype):
    assert width % GROUPS == 0, width
    self.eps, self.dtype = eps, dtype
    self.scale = nnx.Param(jnp.full(width, scale, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B H W C"]:
    x = x.astype(jnp.float32)
    x = x - _mean(x)
    x = x * (jax.lax.rsqrt(_mean(jnp.square(x)) + self.eps) * self.scale[...])
    return (x + self.bias[...]).astype(self.dtype)


def _mean(x):
  """[B, H, W, C] -> [B, 1, 1, C]: the mean of each channel's group."""
  # Over space first. An image with a last axis of C / 32 channels would lie badly in a TPU's tiles of 128.
  groups = reduce(x.mean((1, 2)), "b (g k) -> b g", "mean", g=GROUPS)
  return repeat(groups, "b g -> b 1 1 (g k)", k=x.shape[-1] // GROUPS)


def build(unit: Callable[[int, int, int], nnx.Module], width: int, stages: tuple[int, ...]) -> nnx.List:
  """All stages, each a list of unit(channels, width, stride) that gives 4 * width channels.

  `stages` has the number of units of each. From one stage to the next the width doubles, and the first unit's stride
  of 2 halves the sides.
  """
  channels, result = width, []
  for i, units in enumerate(stages):
    result.append(nnx.List())
    for j in range(units):
      result[i].append(unit(channels, width * 2**i, 2 if i and not j else 1))
      channels = 4 * width * 2**i
  return nnx.List(result)


def run(stages: nnx.List, x: Float[Tensor, "B H W C"], name: str) -> Float[Tensor, "B X Y D"]:
  """The map after all units; that after unit j of stage i is recorded as <name>/<i>/<j>."""
  for i, stage in enumerate(stages):
    for j, unit in enumerate(stage):
      x = record(f"{name}/{i}/{j}", unit(x))
  return x


def out_channels(width: int, stages: tuple[int, ...]) -> int:
  """Channels of the map that `run` gives for one of `width` channels."""
  return 4 * width * 2 ** (len(stages) - 1) if stages else width


# Version 1, with the padding of TensorFlow.


class Unit(nnx.Module):
  """Bottleneck, ReLU after the sum (He et al. 2016a)."""

  def __init__(self, channels, width, stride, *, dtype, rngs):
    make = {"divisor": "std + 1e-5", "dtype": dtype, "rngs": rngs}
    norm = {"eps": 1e-6, "dtype": dtype}
    self.conv1 = StandardisedConv(channels, width, 1, 1, "same", **make)
    self.norm1 = GroupNorm(width, **norm)
    self.conv2 = StandardisedConv(width, width, 3, stride, "same", **make)
    self.norm2 = GroupNorm(width, **norm)
    self.conv3 = StandardisedConv(width, 4 * width, 1, 1, "same", **make)
    self.norm3 = GroupNorm(4 * width, scale=0.0, **norm)  # a unit starts as its shortcut
    changes = stride > 1 or channels != 4 * width
    self.projection = StandardisedConv(channels, 4 * width, 1, stride, "same", **make) if changes else None
    self.projection_norm = GroupNorm(4 * width, **norm) if changes else None

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B X Y D"]:
    shortcut = x if self.projection is None else self.projection_norm(self.projection(x))
    x = jax.nn.relu(self.norm1(self.conv1(x)))
    x = jax.nn.relu(self.norm2(self.conv2(x)))
    return jax.nn.relu(shortcut + self.norm3(self.conv3(x)))


class Stem(nnx.Module):
  """What a hybrid sees instead of the image: a map of `stem_sides` and `stem_width`.

  `stages` has the number of units of each stage; () is the root alone.
  """

  def __init__(self, channels, stages, *, dtype, rngs):
    self.root = StandardisedConv(channels, WIDTH, 7, 2, "same", divisor="std + 1e-5", dtype=dtype, rngs=rngs)
    self.root_norm = GroupNorm(WIDTH, eps=1e-6, dtype=dtype)
    self.stages = build(lambda *sizes: Unit(*sizes, dtype=dtype, rngs=rngs), WIDTH, stages)

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B X Y D"]:
    x = record("stem/root", max_pool_same(jax.nn.relu(self.root_norm(self.root(x)))))
    return run(self.stages, x, "stem/stages")


def stem_sides(sides: tuple[int, int], stages: tuple[int, ...]) -> tuple[int, int]:
  """(rows, columns) of what a stem gives for images of (height, width)."""
  halvings = 2 + max(len(stages) - 1, 0)  # each rounds up, which one division does as well
  height, width = (-(-side // 2**halvings) for side in sides)
  return height, width


def stem_width(stages: tuple[int, ...]) -> int:
  """Channels of what a stem gives."""
  return out_channels(WIDTH, stages)

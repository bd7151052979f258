"""Residual networks with group norm and standardised weights: layers, and the version-1 ResNet stem of hybrids.

Source of the hybrids: Dosovitskiy et al. 2021, section 3.1. Version 2 is in bit.py. Norms and standardisation are
computed in float32.
"""

import functools
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from einops import reduce, repeat
from flax import nnx
from jax.typing import DTypeLike

from vit_jax.models.convolution import Padding, conv, max_pool_same
from vit_jax.models.intermediates import record
from vit_jax.models.parameters import Keys
from vit_jax.shapes import Array, Float, Tensor

GROUPS = 32  # groups of a group norm, for every width
WIDTH = 64  # channels of the root, and of the first stage's 3x3 convolutions

# Divisors of a centred kernel. The two published codes differ, which affects the logits visibly.
DIVISORS = {
  # For a channel of equal weights, the gradient of the root would be inf * 0. The smallest normal number prevents this.
  "std + 1e-5": lambda variance: jnp.sqrt(jnp.maximum(variance, jnp.finfo(jnp.float32).tiny)) + 1e-5,
  "sqrt(var + 1e-10)": lambda variance: jnp.sqrt(variance + 1e-10),
}
Divisor = Literal["std + 1e-5", "sqrt(var + 1e-10)"]

STEM_SHARDING = (  # in addition to `parameters.SHARDING`, which contains the other norms
  # Standardisation averages over all axes except the last. Splitting the last axis needs no communication.
  (r"stem/(root|stages/.*)/kernel", (None, None, None, "fsdp")),
  (r"stem/stages/.*/norm3/(scale|bias)", (None,)),
)


def standardise(kernel: Float[Tensor, "P P C D"], divisor: Divisor) -> Float[Tensor, "P P C D"]:
  """Standardises the weights of each output channel to mean 0 and (up to an epsilon) variance 1 (Qiao et al. 2019).

  Args:
    kernel: kernel, (P, P, C, D).
    divisor: formula of the divisor, a key of `DIVISORS`.

  Returns:
    The kernel, (P, P, C, D).
  """
  centred = kernel - kernel.mean((0, 1, 2))
  return centred / DIVISORS[divisor](jnp.square(centred).mean((0, 1, 2)))


class StandardisedConv(nnx.Module):
  """A convolution with a standardised kernel and without bias.

  Args:
    channels: number of input channels.
    width: number of output channels.
    size: size of the kernel.
    stride: stride in both directions.
    padding: number of pixels on each side, or "same", see `convolution.conv`.
    divisor: formula of the divisor, a key of `DIVISORS`.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    channels: int,
    width: int,
    size: int,
    stride: int,
    padding: Padding,
    *,
    divisor: Divisor,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.stride, self.padding, self.divisor, self.dtype = stride, padding, divisor, dtype
    draw = nnx.initializers.lecun_normal()
    self.kernel = nnx.Param(draw(rngs.params(), (size, size, channels, width), jnp.float32))

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Array, "B X Y D"]:
    kernel = standardise(self.kernel[...], self.divisor)
    return conv(x.astype(self.dtype), kernel.astype(self.dtype), self.stride, self.padding)


class GroupNorm(nnx.Module):
  """Group normalisation: statistics over space and the channels of a group, for each of 32 groups (Wu and He 2018).

  Args:
    width: number of channels, a multiple of 32.
    eps: added to the variance.
    scale: initial factor of all channels.
    dtype: type of the result.
  """

  def __init__(self, width: int, *, eps: float, scale: float = 1.0, dtype: DTypeLike) -> None:
    assert width % GROUPS == 0, width
    self.eps, self.dtype = eps, dtype
    self.scale = nnx.Param(jnp.full(width, scale, jnp.float32))
    self.bias = nnx.Param(jnp.zeros(width, jnp.float32))

  @jax.named_scope("normalisation")
  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Array, "B H W C"]:
    x = jnp.asarray(x, jnp.float32)
    x = x - _mean(x)
    x = x * (jax.lax.rsqrt(_mean(jnp.square(x)) + self.eps) * self.scale[...])
    return (x + self.bias[...]).astype(self.dtype)


def _mean(x: Float[Tensor, "B H W C"]) -> Tensor:
  """Returns the mean of each channel's group: [B, H, W, C] -> [B, 1, 1, C]."""
  # Averaging over space comes first, because a feature map with a last axis of C / 32 channels wastes a TPU's tiles of
  # 128.
  groups = reduce(x.mean((1, 2)), "b (g k) -> b g", "mean", g=GROUPS)
  return repeat(groups, "b g -> b 1 1 (g k)", k=x.shape[-1] // GROUPS)


Stages = nnx.List[nnx.List[nnx.Module]]  # units of each stage


def build(unit: Callable[[int, int, int], nnx.Module], width: int, stages: tuple[int, ...]) -> Stages:
  """Creates the stages of a ResNet. From one stage to the next, the width doubles and the sides are halved.

  Args:
    unit: function (channels, width, stride) -> unit that returns 4 * width channels.
    width: width of the first stage.
    stages: number of units of each stage.

  Returns:
    A list of stages, which are lists of units.
  """
  channels, result = width, []
  for i, units in enumerate(stages):
    result.append(nnx.List())
    for j in range(units):
      result[i].append(unit(channels, width * 2**i, 2 if i and not j else 1))
      channels = 4 * width * 2**i
  return nnx.List(result)


def run(stages: Stages, x: Float[Array, "B H W C"], name: str) -> Float[Array, "B X Y D"]:
  """Computes all units. The output of unit j of stage i is recorded as <name>/<i>/<j>.

  Args:
    stages: stages from `build`.
    x: feature map, (B, H, W, C).
    name: prefix of the recorded names.

  Returns:
    Feature map, (B, X, Y, D).
  """
  for i, stage in enumerate(stages):
    for j, unit in enumerate(stage):
      x = record(f"{name}/{i}/{j}", unit(x))
  return x


def compute_out_channels(width: int, stages: tuple[int, ...]) -> int:
  """Returns the number of channels after `run`.

  Args:
    width: width of the first stage.
    stages: number of units of each stage.
  """
  return 4 * width * 2 ** (len(stages) - 1) if stages else width


# Version 1, with the padding of TensorFlow.


class Unit(nnx.Module):
  """A bottleneck unit with ReLU after the sum (He et al. 2016a).

  Args:
    channels: number of input channels.
    width: number of inner channels. The unit returns 4 * width channels.
    stride: stride of the 3x3 convolution.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(self, channels: int, width: int, stride: int, *, dtype: DTypeLike, rngs: Keys) -> None:
    conv = functools.partial(StandardisedConv, divisor="std + 1e-5", dtype=dtype, rngs=rngs)
    norm = functools.partial(GroupNorm, eps=1e-6, dtype=dtype)
    self.conv1 = conv(channels, width, 1, 1, "same")
    self.norm1 = norm(width)
    self.conv2 = conv(width, width, 3, stride, "same")
    self.norm2 = norm(width)
    self.conv3 = conv(width, 4 * width, 1, 1, "same")
    self.norm3 = norm(4 * width, scale=0.0)  # a unit starts as its shortcut
    changes = stride > 1 or channels != 4 * width
    self.projection = conv(channels, 4 * width, 1, stride, "same") if changes else None
    self.projection_norm = norm(4 * width) if changes else None

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B X Y D"]:
    shortcut = jnp.asarray(x)
    if self.projection is not None and self.projection_norm is not None:
      shortcut = self.projection_norm(self.projection(x))
    x = jax.nn.relu(self.norm1(self.conv1(x)))
    x = jax.nn.relu(self.norm2(self.conv2(x)))
    return jax.nn.relu(shortcut + self.norm3(self.conv3(x)))


class Stem(nnx.Module):
  """The stem of a hybrid: it converts images to a feature map of `compute_stem_sides` and `compute_stem_width`.

  Args:
    channels: number of image channels.
    stages: number of units of each stage. () creates only the root.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(self, channels: int, stages: tuple[int, ...], *, dtype: DTypeLike, rngs: Keys) -> None:
    self.root = StandardisedConv(channels, WIDTH, 7, 2, "same", divisor="std + 1e-5", dtype=dtype, rngs=rngs)
    self.root_norm = GroupNorm(WIDTH, eps=1e-6, dtype=dtype)
    self.stages = build(lambda *sizes: Unit(*sizes, dtype=dtype, rngs=rngs), WIDTH, stages)

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B X Y D"]:
    x = record("stem/root", max_pool_same(jax.nn.relu(self.root_norm(self.root(x)))))
    return run(self.stages, x, "stem/stages")


def compute_stem_sides(sides: tuple[int, int], stages: tuple[int, ...]) -> tuple[int, int]:
  """Returns (rows, columns) of a stem's feature map.

  Args:
    sides: (height, width) of the images in pixels.
    stages: number of units of each stage.
  """
  halvings = 2 + max(len(stages) - 1, 0)  # rounding up in each halving equals rounding up in one division
  height, width = (-(-side // 2**halvings) for side in sides)
  return height, width


def compute_stem_width(stages: tuple[int, ...]) -> int:
  """Returns the number of channels of a stem's feature map."""
  return compute_out_channels(WIDTH, stages)

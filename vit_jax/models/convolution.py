"""Convolution and max-pooling, each as fast as XLA allows on every platform."""

import functools
from collections.abc import Iterator
from typing import Literal

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx

from vit_jax.shapes import Float, Tensor

_zeros = nnx.initializers.zeros_init()


def conv(
  x: Float[Tensor, "B H W C"],
  kernel: Float[Tensor, "P P C//{groups} D"],
  stride: int,
  padding: int | Literal["same"],
  groups: int = 1,
) -> Float[Tensor, "B X Y D"]:
  """Convolution with zero padding.

  Padding is symmetric by a number of pixels, or "same" as TensorFlow has it: as much as makes H' = ceil(H / stride),
  the odd pixel below and to the right. Groups are 1 or, for a convolution of each channel by itself, C = D.
  """
  borders = [(padding, padding)] * 2
  if padding == "same":
    borders = [same(side, kernel.shape[0], stride) for side in x.shape[1:3]]
  # XLA's CPU convolutions are slow in the backward pass, and 8 times slower still inside a loop.
  return jax.lax.platform_dependent(
    x,
    kernel,
    cpu=functools.partial(_conv_as_product if groups == 1 else _conv_as_sum, stride=stride, borders=borders),
    default=functools.partial(_conv, stride=stride, borders=borders, groups=groups),
  )


def same(side: int, size: int, stride: int) -> tuple[int, int]:
  """Pixels of padding before and after a side for "same"."""
  total = max((-(-side // stride) - 1) * stride + size - side, 0)
  return total // 2, total - total // 2


def _conv(x, kernel, *, stride, borders, groups):
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    borders,
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    feature_group_count=groups,
  )


def _shifted(x, size, stride, borders) -> Iterator[jax.Array]:
  """The padded image shifted for each weight of a kernel, row by row: size * size times [B, H', W', C]."""
  x = jnp.pad(x, ((0, 0), *borders, (0, 0)))
  rows, columns = ((side - size) // stride + 1 for side in x.shape[1:3])
  for i in range(size):
    for j in range(size):
      yield x[:, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride]


def _conv_as_product(x, kernel, *, stride, borders):
  """The same as one matrix product of shifted copies of the image, side by side, with the flattened kernel."""
  size, (_, height, width, _) = kernel.shape[0], x.shape
  if size == stride and borders == [(0, 0)] * 2 and not (height % size or width % size):
    # Patches beside each other are a reshape; as so many shifted copies they take seconds to compile.
    patches = rearrange(x, "b (h i) (w j) c -> b h w (i j c)", i=size, j=size)
    return patches @ rearrange(kernel, "i j c d -> (i j c) d")
  patches = jnp.concatenate(list(_shifted(x, kernel.shape[0], stride, borders)), -1)
  product = rearrange(patches, "b h w p -> (b h w) p") @ rearrange(kernel, "i j c d -> (i j c) d")
  return product.reshape(*patches.shape[:3], -1)


def _conv_as_sum(x, kernel, *, stride, borders):
  """The same for a kernel [P, P, 1, C] on each channel by itself: a sum of shifted copies."""
  weights = rearrange(kernel, "i j 1 c -> (i j) c")
  return sum(view * row for view, row in zip(_shifted(x, kernel.shape[0], stride, borders), weights, strict=True))


@jax.custom_vjp
def max_pool(x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B (H+1)//2 (W+1)//2 C"]:
  """Maximum over 3x3 with stride 2; the border is -infinity.

  The gradient goes to the first maximum of a window in row-major order, as in PyTorch. XLA's own backward pass
  (select-and-scatter) takes over a third of a CCT's step on a CPU; this one takes a few additions of shifted arrays.
  """
  border = ((0, 0), (1, 1), (1, 1), (0, 0))
  return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), border)


def _max_pool_forward(x):
  _, height, width, _ = x.shape
  rows, columns = (height + 1) // 2, (width + 1) // 2
  x = jnp.pad(x, ((0, 0), (1, 1 + height % 2), (1, 1 + width % 2), (0, 0)), constant_values=-jnp.inf)
  views = [x[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for i in range(3) for j in range(3)]
  best, index = views[0], jnp.zeros(views[0].shape, jnp.uint8)
  for i, view in enumerate(views[1:], 1):
    index = jnp.where(view > best, jnp.uint8(i), index)
    best = jnp.maximum(best, view)
  size = jnp.zeros((0, height, width))  # an empty array brings the static shape to the backward pass
  return best, (index, size)


def _max_pool_backward(saved, gradient):
  index, (height, width) = saved[0], saved[1].shape[1:]
  rows, columns = index.shape[1:3]
  after = ((0, 0), (0, 1), (0, 1), (0, 0))
  index, gradient = jnp.pad(index, after, constant_values=9), jnp.pad(gradient, after)

  def share(i, j, down=0, right=0):
    """Gradient of the windows `down`, `right` of here whose maximum stands at their row i, column j."""
    part = (slice(None), slice(down, down + rows), slice(right, right + columns))
    return jnp.where(index[part] == 3 * i + j, gradient[part], 0)

  # A pixel lies in one window, two or four, by the parity of its row and column; window and image start one apart.
  even_even = share(1, 1)
  even_odd = share(1, 2) + share(1, 0, right=1)
  odd_even = share(2, 1) + share(0, 1, down=1)
  odd_odd = share(2, 2) + share(2, 0, right=1) + share(0, 2, down=1) + share(0, 0, down=1, right=1)
  # Interleaved by stacking on the axes where they end up: XLA's CPU then needs no transposition.
  pixels = jnp.stack([jnp.stack([even_even, even_odd], 3), jnp.stack([odd_even, odd_odd], 3)], 2)
  return (rearrange(pixels, "b h i w j c -> b (h i) (w j) c")[:, :height, :width],)


max_pool.defvjp(_max_pool_forward, _max_pool_backward)


def max_pool_same(x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B (H+1)//2 (W+1)//2 C"]:
  """As `max_pool` with TensorFlow's padding "same": on an even side windows begin at the first pixel, not before it."""
  before = [1 - side % 2 for side in x.shape[1:3]]
  # One pixel more in front moves the windows of an even side by one; the first window is then one too many.
  x = jnp.pad(x, ((0, 0), *((n, 0) for n in before), (0, 0)), constant_values=-jnp.inf)
  return max_pool(x)[:, before[0] :, before[1] :]


class Conv(nnx.Module):
  """A convolution with parameters; padding and groups as in `conv`."""

  def __init__(
    self,
    channels,
    width,
    size,
    stride,
    padding,
    *,
    groups=1,
    bias,
    kernel_init,
    bias_init=_zeros,
    dtype,
    rngs,
  ):
    self.stride, self.padding, self.groups, self.dtype = stride, padding, groups, dtype
    self.kernel = nnx.Param(kernel_init(rngs.params(), (size, size, channels // groups, width), jnp.float32))
    self.bias = nnx.Param(bias_init(rngs.params(), (width,), jnp.float32)) if bias else None

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B X Y D"]:
    y = conv(x.astype(self.dtype), self.kernel[...].astype(self.dtype), self.stride, self.padding, self.groups)
    return y if self.bias is None else y + self.bias[...].astype(self.dtype)

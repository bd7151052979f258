"""Convolution and max-pooling, in the formulation that is fastest with XLA on each platform."""

import functools
from collections.abc import Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike

from vit_jax.models.parameters import Keys
from vit_jax.shapes import Array, Float, Tensor

_zeros = nnx.initializers.zeros_init()

Padding = int | Literal["same"]  # number of pixels on each side, or padding as in TensorFlow
Borders = Sequence[tuple[int, int]]  # padding before and after rows, and before and after columns


def conv(
  x: Float[Tensor, "B H W C"],
  kernel: Float[Tensor, "P P C//{groups} D"],
  stride: int,
  padding: Padding,
  groups: int = 1,
) -> Float[Array, "B X Y D"]:
  """Computes a convolution with zero padding.

  Args:
    x: feature map, (B, H, W, C).
    kernel: kernel, (P, P, C / groups, D).
    stride: stride in both directions.
    padding: number of pixels on each side, or "same" as in TensorFlow. "same" pads so that the output height is ceil(H
      / stride), with an odd pixel below and to the right.
    groups: 1, or the number of channels C = D for a depthwise convolution.

  Returns:
    Feature map, (B, X, Y, D).
  """
  if padding != "same":
    borders = [(padding, padding)] * 2
  else:
    borders = [compute_same_padding(side, kernel.shape[0], stride) for side in x.shape[1:3]]
  # XLA's CPU convolutions are slow in the backward pass, and 8 times slower inside a loop.
  return jax.lax.platform_dependent(
    jnp.asarray(x),
    jnp.asarray(kernel),
    cpu=functools.partial(_conv_as_product if groups == 1 else _conv_as_sum, stride=stride, borders=borders),
    default=functools.partial(_conv, stride=stride, borders=borders, groups=groups),
  )


def compute_same_padding(side: int, size: int, stride: int) -> tuple[int, int]:
  """Returns the numbers of padding pixels before and after a side for "same".

  Args:
    side: length of the side.
    size: size of the kernel.
    stride: stride of the convolution.
  """
  total = max((-(-side // stride) - 1) * stride + size - side, 0)
  return total // 2, total - total // 2


def _conv(x: Array, kernel: Array, *, stride: int, borders: Borders, groups: int) -> Array:
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    borders,
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
    feature_group_count=groups,
  )


def _shift_images(x: Tensor, size: int, stride: int, borders: Borders) -> Iterator[jax.Array]:
  """Yields the padded image, shifted for each weight of the kernel in row-major order:

  size * size arrays [B, H', W', C].
  """
  x = jnp.pad(x, ((0, 0), *borders, (0, 0)))
  rows, columns = ((side - size) // stride + 1 for side in x.shape[1:3])
  for i in range(size):
    for j in range(size):
      yield x[:, i : i + stride * (rows - 1) + 1 : stride, j : j + stride * (columns - 1) + 1 : stride]


def _conv_as_product(x: Tensor, kernel: Tensor, *, stride: int, borders: Borders) -> Tensor:
  """Computes `_conv` as one matrix product of concatenated shifted copies of the image with the flattened kernel."""
  size, (_, height, width, _) = kernel.shape[0], x.shape
  if size == stride and borders == [(0, 0)] * 2 and not (height % size or width % size):
    # Non-overlapping patches need only a reshape. Shifted copies of them would take seconds to compile.
    patches = rearrange(x, "b (h i) (w j) c -> b h w (i j c)", i=size, j=size)
    return patches @ rearrange(kernel, "i j c d -> (i j c) d")
  patches = jnp.concatenate(list(_shift_images(x, kernel.shape[0], stride, borders)), -1)
  product = rearrange(patches, "b h w p -> (b h w) p") @ rearrange(kernel, "i j c d -> (i j c) d")
  return product.reshape(*patches.shape[:3], -1)


def _conv_as_sum(x: Tensor, kernel: Tensor, *, stride: int, borders: Borders) -> Tensor:
  """Computes a depthwise `_conv` with a kernel [P, P, 1, C] as a sum of shifted copies."""
  weights = rearrange(kernel, "i j 1 c -> (i j) c")
  return sum(view * row for view, row in zip(_shift_images(x, kernel.shape[0], stride, borders), weights, strict=True))


@jax.custom_vjp
def max_pool(x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B (H+1)//2 (W+1)//2 C"]:
  """Computes the maximum over 3x3 windows with stride 2. The border is -infinity.

  The gradient is passed to the first maximum of a window in row-major order, as in PyTorch. XLA's own backward pass
  (select-and-scatter) takes more than a third of a CCT's step on a CPU. This implementation needs a few additions of
  shifted arrays.

  Args:
    x: feature map, (B, H, W, C).

  Returns:
    Feature map, (B, (H + 1) // 2, (W + 1) // 2, C).
  """
  border = ((0, 0), (1, 1), (1, 1), (0, 0))
  return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), border)


def _max_pool_forward(x: Float[Tensor, "B H W C"]) -> tuple[Array, tuple[Array, Array]]:
  _, height, width, _ = x.shape
  rows, columns = (height + 1) // 2, (width + 1) // 2
  x = jnp.pad(x, ((0, 0), (1, 1 + height % 2), (1, 1 + width % 2), (0, 0)), constant_values=-jnp.inf)
  views = [x[:, i : i + 2 * rows : 2, j : j + 2 * columns : 2] for i in range(3) for j in range(3)]
  best, index = views[0], jnp.zeros(views[0].shape, jnp.uint8)
  for i, view in enumerate(views[1:], 1):
    index = jnp.where(view > best, jnp.uint8(i), index)
    best = jnp.maximum(best, view)
  size = jnp.zeros((0, height, width))  # an empty array passes the static shape to the backward pass
  return best, (index, size)


def _max_pool_backward(
  saved: tuple[Array, Array], gradient: Float[Tensor, "B X Y C"]
) -> tuple[Float[Array, "B H W C"]]:
  index, (height, width) = saved[0], saved[1].shape[1:]
  rows, columns = index.shape[1:3]
  after = ((0, 0), (0, 1), (0, 1), (0, 0))
  index, gradient = jnp.pad(index, after, constant_values=9), jnp.pad(gradient, after)

  def share(i: int, j: int, down: int = 0, right: int = 0) -> Array:
    """Returns the gradient of the windows shifted by (down, right) that have their maximum at row i, column j."""
    part = (slice(None), slice(down, down + rows), slice(right, right + columns))
    return jnp.where(index[part] == 3 * i + j, gradient[part], 0)

  # A pixel is in one, two or four windows, depending on the parity of its row and column. The first window starts one
  # pixel before the image.
  even_even = share(1, 1)
  even_odd = share(1, 2) + share(1, 0, right=1)
  odd_even = share(2, 1) + share(0, 1, down=1)
  odd_odd = share(2, 2) + share(2, 0, right=1) + share(0, 2, down=1) + share(0, 0, down=1, right=1)
  # Stacking on the final axes interleaves the pixels without a transposition on XLA's CPU backend.
  pixels = jnp.stack([jnp.stack([even_even, even_odd], 3), jnp.stack([odd_even, odd_odd], 3)], 2)
  return (rearrange(pixels, "b h i w j c -> b (h i) (w j) c")[:, :height, :width],)


max_pool.defvjp(_max_pool_forward, _max_pool_backward)


def max_pool_same(x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B (H+1)//2 (W+1)//2 C"]:
  """Computes `max_pool` with TensorFlow's padding "same": on an even side, the first window starts at the first pixel.

  Args:
    x: feature map, (B, H, W, C).

  Returns:
    Feature map, (B, (H + 1) // 2, (W + 1) // 2, C).
  """
  before = [1 - side % 2 for side in x.shape[1:3]]
  # One more pixel in front shifts the windows of an even side by one. The first window is then removed.
  x = jnp.pad(x, ((0, 0), *((n, 0) for n in before), (0, 0)), constant_values=-jnp.inf)
  return max_pool(x)[:, before[0] :, before[1] :]


class Conv(nnx.Module):
  """A convolution with parameters, see `conv`.

  Args:
    channels: number of input channels.
    width: number of output channels.
    size: size of the kernel.
    stride: stride in both directions.
    padding: number of pixels on each side, or "same".
    groups: 1, or the number of channels for a depthwise convolution.
    bias: whether a bias is added.
    kernel_init: initialiser of the kernel.
    bias_init: initialiser of the bias.
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
    groups: int = 1,
    bias: bool,
    kernel_init: nnx.Initializer,
    bias_init: nnx.Initializer = _zeros,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.stride, self.padding, self.groups, self.dtype = stride, padding, groups, dtype
    self.kernel = nnx.Param(kernel_init(rngs.params(), (size, size, channels // groups, width), jnp.float32))
    self.bias = nnx.Param(bias_init(rngs.params(), (width,), jnp.float32)) if bias else None

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Array, "B X Y D"]:
    y = conv(x.astype(self.dtype), self.kernel[...].astype(self.dtype), self.stride, self.padding, self.groups)
    return y if self.bias is None else y + self.bias[...].astype(self.dtype)

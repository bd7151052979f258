"""Swin Transformer (Liu et al. 2021): attention in windows that shift between blocks, on feature maps that shrink."""

import itertools
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx
from jax.typing import DTypeLike

from vit_jax import schema
from vit_jax.models import convolution, layers, parameters, stack
from vit_jax.models.attention import AttentionParts, Softmax
from vit_jax.models.intermediates import record
from vit_jax.models.output import Output, check_shape, classify
from vit_jax.models.parameters import Keys
from vit_jax.models.positions import Resampling
from vit_jax.models.published.swin import PATCH, Size
from vit_jax.models.sizes import Blocks, Dtype, Width, sides
from vit_jax.models.transformer import Block
from vit_jax.schema import Probability, format_amount
from vit_jax.shapes import Array, Bool, Float, Int, PRNGKey, Tensor

EPS = 1e-5

ORDER = parameters.Order(before=r"embedding(_norm)?/.*", blocks=r"stages/.*", after=r"norm/.*", head=r"head/.*")
SHARDING = (
  *parameters.SHARDING,
  (r"embedding/kernel", (None, None, None, "fsdp")),
  (r"embedding/bias", (None,)),
  (r".*attention/table", (None, None)),
  (r".*downsample/reduction/kernel", ("fsdp", None)),
)

_normal = nnx.initializers.normal(0.02)  # the published code truncates it at 100 standard deviations, without effect


class Merge(nnx.Module):
  """Merging of 2 x 2 neighbours into one token: concatenation column by column, norm and linear map.

  Args:
    width: number of input channels.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(self, width: int, *, dtype: DTypeLike, rngs: Keys) -> None:
    self.norm = layers.LayerNorm(4 * width, eps=EPS, dtype=dtype)
    self.reduction = layers.Linear((4 * width,), (2 * width,), bias=False, kernel_init=_normal, dtype=dtype, rngs=rngs)

  def __call__(self, x: Float[Tensor, "B H W D"]) -> Float[Tensor, "B H//2 W//2 2*D"]:
    return self.reduction(self.norm(rearrange(x, "b (h i) (w j) d -> b h w (j i d)", i=2, j=2)))


class WindowAttention(AttentionParts):
  """Attention inside windows.

  Windows start at row and column 0, or at `shift`. Shifted windows are cut at the border, and tokens do not attend
  across it. `table` contains a bias for each head and each offset from query to key. Offsets are (rows, columns),
  starting at 1 - window. Recorded intermediates have an axis of windows instead of images: [B * windows, N, ...].

  Args:
    width: width of the tokens.
    heads: number of heads.
    window: (rows, columns) of a window.
    shift: (rows, columns) by which windows are shifted.
    dropout: dropout rate of the attention weights.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    width: int,
    heads: int,
    window: tuple[int, int],
    shift: tuple[int, int],
    *,
    dropout: float,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    super().__init__(width, heads, kernel=Softmax(dropout), kernel_init=_normal, dtype=dtype, rngs=rngs)
    rows, columns = window
    table = _normal(rngs.params(), ((2 * rows - 1) * (2 * columns - 1), heads), jnp.float32)
    self.table, self.window, self.shift = nnx.Param(table), window, shift

  def __call__(self, x: Float[Tensor, "B H W D"], key: PRNGKey | None = None) -> Float[Array, "B H W D"]:
    batch, height, width, _ = x.shape
    p, q = self.window
    # The cut windows at both ends of the map share one full window. A mask separates them.
    x = jnp.roll(x, [-step for step in self.shift], axis=(1, 2)) if any(self.shift) else x
    x = rearrange(x, "b (h p) (w q) d -> (b h w) (p q) d", p=p, q=q)
    bias = rearrange(self.table[...][compute_offsets(self.window)], "m n h -> h m n")
    if any(self.shift):
      # The published code subtracts 100 from the logits of masked tokens.
      mask = jnp.where(compute_visibility((height, width), self.window, self.shift), 0, -100)
      bias = bias + mask[:, None]
      bias = jnp.broadcast_to(bias, (batch, *bias.shape)).reshape(-1, *bias.shape[1:])
    x = self.compute(x, key=key, bias=bias)
    x = rearrange(x, "(b h w) (p q) d -> b (h p) (w q) d", h=height // p, w=width // q, p=p)
    return jnp.roll(x, self.shift, axis=(1, 2)) if any(self.shift) else x


def compute_offsets(window: tuple[int, int]) -> Int[np.ndarray, "N N"]:
  """Returns the row of the position table for each pair of query and key in a window.

  Args:
    window: (rows, columns) of the window, with N = rows * columns tokens.

  Returns:
    Row numbers, (N, N).
  """
  rows, columns = window
  row, column = np.mgrid[:rows, :columns].reshape(2, -1)
  down, right = row[:, None] - row, column[:, None] - column
  return (down + rows - 1) * (2 * columns - 1) + right + columns - 1


def compute_visibility(
  extent: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]
) -> Bool[np.ndarray, "windows N N"]:
  """Returns whether a query and a key of a window are neighbours in the image, not separated by a seam of the rolled
  map.

  Args:
    extent: (rows, columns) of the feature map.
    window: (rows, columns) of a window, with N = rows * columns tokens.
    shift: (rows, columns) by which the feature map is rolled.

  Returns:
    A mask, (windows, N, N).
  """
  # 1 for rows and columns that wrapped around.
  rows, columns = ((np.arange(side) + step) // side for side, step in zip(extent, shift, strict=True))
  numbers = rearrange(2 * rows[:, None] + columns, "(h p) (w q) -> (h w) (p q)", p=window[0], q=window[1])
  return numbers[:, :, None] == numbers[:, None, :]


class Stage(nnx.Module):
  """Blocks on one feature map, optionally preceded by merging.

  Args:
    downsample: module that merges neighbours, or None.
    blocks: list of blocks.
  """

  def __init__(self, downsample: nnx.Module | None, blocks: list[nnx.Module]) -> None:
    self.downsample, self.blocks = downsample, nnx.List(blocks)

  def __call__(
    self, x: Float[Tensor, "B H W D"], key: PRNGKey | None, rates: Float[np.ndarray, " depth"], remat: str, name: str
  ) -> Float[Array, "B X Y F"]:
    if self.downsample is not None:
      x = record(f"{name}/downsample", self.downsample(x))
    return stack.run(self.blocks, x, key, rates=rates, remat=remat, name=f"{name}/blocks")


class Swin(nnx.Module):
  """A Swin Transformer, images -> logits in float32: patches, stages, norm, spatial mean and head.

  Without a head the result is the features. `key` is the random key of all dropout. None selects evaluation.

  Args:
    shape: height, width and channels of the images.
    embedding: module from images to the first feature map.
    embedding_norm: norm of the first feature map.
    stages: list of stages.
    norm: norm after the last stage.
    head: module from features to logits, or None.
    dropout: dropout rate of the tokens.
    stochastic_depth: rate of stochastic depth at the last block.
    remat: rematerialisation policy, see `stack.POLICIES`.
  """

  def __init__(
    self,
    shape: tuple[int, int, int],
    *,
    embedding: nnx.Module,
    embedding_norm: nnx.Module,
    stages: list[Stage],
    norm: nnx.Module,
    head: nnx.Module | None,
    dropout: float,
    stochastic_depth: float,
    remat: str,
  ) -> None:
    self.shape, self.dropout, self.stochastic_depth, self.remat = shape, dropout, stochastic_depth, remat
    self.embedding, self.embedding_norm = embedding, embedding_norm
    self.stages = nnx.List(stages)
    self.norm, self.head = norm, head

  def __call__(self, images: Float[Tensor, "B H W C"], key: PRNGKey | None = None) -> Float[Tensor, "B V"]:
    return self.outputs(images, key).logits

  def outputs(self, images: Float[Tensor, "B H W C"], key: PRNGKey | None = None) -> Output:
    """Computes the outputs for a batch of images.

    Args:
      images: images, (B, H, W, C).
      key: random key of dropout. None selects evaluation.

    Raises:
      ValueError: if the images have another shape than the model.
    """
    check_shape(images, self.shape)

    x = record("embedding", self.embedding_norm(self.embedding(images)))
    x = record("tokens", layers.dropout(x, self.dropout, layers.fold_key(key, 0)))

    # The rates grow linearly over the blocks of all stages.
    ends = list(itertools.accumulate(len(stage.blocks) for stage in self.stages))
    rates = np.split(stack.compute_growing_rates(self.stochastic_depth, ends[-1]), ends[:-1])
    for i, (stage, rate) in enumerate(zip(self.stages, rates, strict=True)):
      x = stage(x, layers.fold_key(key, 1 + i), rate, self.remat, f"stages/{i}")
    tokens = record("encoded", self.norm(x))
    features = record("pre_logits", record("features", tokens.mean(axis=(1, 2))))
    return classify(tokens, features, self.head)


def swin(
  row: Size,
  published_window: int,
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: Keys,
  *,
  dropout: Probability = 0.0,
  attention_dropout: Probability = 0.0,
  stochastic_depth: Probability = 0.0,
  width: Width | None = None,
  depths: tuple[Blocks, ...] | None = None,
  heads: tuple[Width, ...] | None = None,
  window: Annotated[int, schema.Range(2, 2**10)] | None = None,
  resampling: Resampling = "bicubic",
  dtype: Dtype = "float32",
  remat: stack.Remat = "none",
) -> Swin:
  """Creates a Swin Transformer: [B, H, W, C] -> [B, V].

  Every second block shifts its windows by half a window. If a side of a feature map is not longer than the window,
  there is one window along this side, and it is not shifted. `width`, `depths`, `heads` and `window` replace the
  published values if they are not None.

  Args:
    row: published widths, depths and heads.
    published_window: published side of the windows.
    image_size: side of square images in pixels, or (height, width).
    channels: number of image channels.
    classes: number of classes. 0 omits the head.
    rngs: source of keys for initial values.
    dropout: dropout rate of the tokens, of the MLPs and of each branch.
    attention_dropout: dropout rate of the attention weights.
    stochastic_depth: rate at the last block, with a linear increase from the first block. The published models used 0.2
      (tiny), 0.3 (small) and 0.5 (base) on ImageNet.
    width: number of channels of the first stage, which doubles in each stage.
    depths: number of blocks of each stage.
    heads: number of attention heads of each stage.
    window: side of the windows, in tokens.
    resampling: method by which importers resample the tables to another window, see `positions.Resampling`.
    dtype: type of the computation. Parameters are float32.
    remat: rematerialisation policy, see `stack.POLICIES`.

  Raises:
    ConfigError: if stages, heads, window and image size are not compatible.
  """
  row = Size(width or row.width, depths or row.depths, heads or row.heads)
  window = window or published_window
  maps = _compute_maps(sides(image_size), window, row)
  common = parameters.Common(dtype=jnp.dtype(dtype), rngs=rngs)

  def norm(width: int) -> layers.LayerNorm:
    return layers.LayerNorm(width, eps=EPS, dtype=common["dtype"])

  def block(width: int, heads: int, window: tuple[int, int], shift: tuple[int, int]) -> nnx.Module:
    return Block(
      norm(width),
      WindowAttention(width, heads, window, shift, dropout=attention_dropout, **common),
      norm(width),
      layers.Mlp(width, 4 * width, dropout=dropout, gelu="erf", kernel_init=_normal, **common),
      dropout=dropout,
    )

  def stage(number: int, depth: int, heads: int, width: int) -> Stage:
    rows, columns = maps[number]
    windows = min(rows, window), min(columns, window)
    shift = window // 2 if rows > window else 0, window // 2 if columns > window else 0
    return Stage(
      Merge(width // 2, **common) if number else None,
      [block(width, heads, windows, shift if i % 2 else (0, 0)) for i in range(depth)],
    )

  def uniform(key: PRNGKey, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    # PyTorch's default for kernel and bias of a convolution, which the published code uses.
    bound = (channels * PATCH**2) ** -0.5
    return jax.random.uniform(key, shape, dtype, -bound, bound)

  widths = [row.width * 2**i for i in range(len(row.depths))]
  return Swin(
    (*sides(image_size), channels),
    embedding=convolution.Conv(
      channels, row.width, PATCH, PATCH, 0, bias=True, kernel_init=uniform, bias_init=uniform, **common
    ),
    embedding_norm=norm(row.width),
    stages=[stage(*numbers) for numbers in zip(itertools.count(), row.depths, row.heads, widths)],
    norm=norm(widths[-1]),
    head=layers.Linear((widths[-1],), (classes,), kernel_init=_normal, **common) if classes else None,
    dropout=dropout,
    stochastic_depth=stochastic_depth,
    remat=remat,
  )


def _compute_maps(image_sides: tuple[int, int], window: int, row: Size) -> list[tuple[int, int]]:
  """Returns (rows, columns) of each stage's feature map. Raises a ConfigError if stages, heads or image do not fit."""
  if len(row.depths) != len(row.heads):
    raise schema.ConfigError(
      f"model: depths {row.depths} specify {format_amount(len(row.depths), 'stage')}, but heads {row.heads} specify "
      f"{len(row.heads)}. "
      "Give one number for each stage in both"
    )
  for i, heads in enumerate(row.heads):
    if row.width * 2**i % heads:
      raise schema.ConfigError(
        f"model: stage {i} has width {row.width * 2**i}, which is not a multiple of its heads {heads}. "
        "Change heads or width"
      )
  stages = len(row.depths)
  both = [_compute_map_sides(side, window, stages) for side in image_sides]
  for side, maps in zip(image_sides, both, strict=True):
    if maps is None:
      step = PATCH * 2 ** (stages - 1)
      below = next((n for n in range(side // step * step, 0, -step) if _compute_map_sides(n, window, stages)), None)
      above = next(n for n in itertools.count((side // step + 1) * step, step) if _compute_map_sides(n, window, stages))
      raise schema.ConfigError(
        f"model: image size {side} does not divide into windows of {window} x {window} patches of {PATCH} in every "
        f"stage; nearest image sizes: {', '.join(str(n) for n in (below, above) if n)}"
      )
  return list(zip(*both, strict=True))


def _compute_map_sides(side: int, window: int, stages: int) -> list[int] | None:
  """Returns the side of each stage's feature map, or None if it cannot be halved or divided into windows evenly."""
  maps = [side // (PATCH * 2**i) for i in range(stages)]
  even = side and side % (PATCH * 2 ** (stages - 1)) == 0
  return maps if even and all(n <= window or n % window == 0 for n in maps) else None

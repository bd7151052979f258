"""Compact transformers: ViT-Lite, CVT and CCT (Hassani et al. 2021), as in the official code.

The block order of the official code differs from the paper. All published checkpoints need the official order.
norm_order="pre" is the order of the paper.
"""

import functools
import itertools
import math
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vit_jax.models import int8, layers, parameters, positions, stack
from vit_jax.models.attention import Attention, Softmax
from vit_jax.models.convolution import Conv, max_pool
from vit_jax.models.parameters import Keys
from vit_jax.models.pooling import SeqPool
from vit_jax.models.published.compact import SIZES, Variant
from vit_jax.models.sizes import Depth, Dtype, Hidden, Width, grid, sides, size
from vit_jax.models.transformer import Block, Transformer, create_prefix_tokens
from vit_jax.schema import Probability, Range
from vit_jax.shapes import Float, Tensor

ORDER = parameters.ORDER
SHARDING = (
  *parameters.SHARDING,
  (r"embedding/(convolutions/\d+/)?kernel", (None, None, None, "fsdp")),
  (r"embedding/bias", (None,)),
)

_normal = nnx.initializers.normal(0.02)


class Convolutions(nnx.Module):
  """A convolutional tokenizer: repeated convolution without bias, 3x3 max-pooling and ReLU.

  Args:
    channels: number of image channels.
    width: width of the tokens.
    kernel: size of the kernels.
    count: number of convolutions.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(self, channels: int, width: int, kernel: int, count: int, *, dtype: DTypeLike, rngs: Keys) -> None:
    widths = [channels, *[64] * (count - 1), width]  # all models have 64 channels in between
    stride, padding = max(1, kernel // 2 - 1), max(1, kernel // 2)
    he = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
    self.convolutions = nnx.List(
      [
        Conv(a, b, kernel, stride, padding, bias=False, kernel_init=he, dtype=dtype, rngs=rngs)
        for a, b in itertools.pairwise(widths)
      ]
    )

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Tensor, "B X Y D"]:
    for convolution in self.convolutions:
      x = jax.nn.relu(max_pool(convolution(x)))  # ReLU commutes with pooling, and here it sees a quarter of the pixels
    return x


def compute_side(image_size: int, kernel: int, convolutions: int) -> int:
  """Returns the number of tokens along one side of the feature map of `Convolutions`.

  Args:
    image_size: side of the image in pixels.
    kernel: size of the kernels.
    convolutions: number of convolutions.
  """
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
  rngs: Keys,
  *,
  position: Literal["learned", "sine", "none"] = "learned",
  resampling: positions.Resampling = "bilinear",
  norm_order: Literal["official", "pre"] = "official",
  kernel: Annotated[int, Range(1, 64)] | None = None,
  convolutions: Annotated[int, Range(0, 8)] | None = None,
  pool: Literal["cls", "seqpool"] | None = None,
  registers: Annotated[int, Range(0, 1024)] = 0,
  dropout: Probability = 0.0,
  attention_dropout: Probability = 0.1,
  stochastic_depth: Probability = 0.1,
  width: Width | None = None,
  depth: Depth | None = None,
  heads: Width | None = None,
  hidden: Hidden | None = None,
  dtype: Dtype = "float32",
  matmul: int8.Matmul = "default",
  scan: bool = False,
  remat: stack.Remat = "none",
) -> Transformer:
  """Creates a compact transformer: [B, H, W, C] -> [B, V].

  The arguments `kernel`, `convolutions`, `pool`, `width`, `depth`, `heads` and `hidden` replace the values of the
  variant if they are not None.

  Args:
    variant: published model.
    image_size: side of square images in pixels, or (height, width).
    channels: number of image channels.
    classes: number of classes. 0 omits the head.
    rngs: source of keys for initial values.
    position: "learned", "sine" for a fixed table, or "none".
    resampling: method by which importers resample a learned table to another resolution, see `positions.Resampling`.
    norm_order: order of norms and branches, see `transformer.Block`.
    kernel: size of the tokenizer's kernels.
    convolutions: number of convolutions of the tokenizer. 0 cuts patches with the side `kernel`.
    pool: input of the head. "cls" adds a class token and uses it. "seqpool" uses the mean of the tokens with learned
      weights.
    registers: number of tokens that pooling ignores and that have no position (Darcet et al. 2024).
    dropout: dropout rate of the tokens, of the MLPs and of each branch.
    attention_dropout: dropout rate of the attention weights.
    stochastic_depth: rate of stochastic depth at the last block.
    width: width of the tokens.
    depth: number of blocks.
    heads: number of attention heads.
    hidden: hidden width of the MLPs.
    dtype: type of the computation. Parameters are float32.
    matmul: products of the projections of attention and of the MLPs in training, see `vit.vit`.
    scan: whether the blocks form one stack, which is compiled once.
    remat: rematerialisation policy, see `stack.POLICIES`.

  Raises:
    ConfigError: if sizes are not compatible.
  """
  variant = variant._replace(
    kernel=variant.kernel if kernel is None else kernel,
    convolutions=variant.convolutions if convolutions is None else convolutions,
    pool=variant.pool if pool is None else pool,
  )
  width, depth, heads, hidden = size(SIZES[variant.size], width=width, depth=depth, heads=heads, hidden=hidden)
  compute = jnp.dtype(dtype)
  common = parameters.Common(dtype=compute, rngs=rngs)

  has_cls = variant.pool == "cls"
  embedding, tokens = _create_tokenizer(variant, image_size, channels, width, common)
  table: nnx.Module | None
  match position:
    case "learned":
      table = positions.Learned(tokens + has_cls, width, std=0.2, rngs=rngs)
    case "sine":
      table = positions.Fixed(positions.compute_sine, (tokens + has_cls, width))
    case _:
      table = None

  def norm() -> layers.LayerNorm:
    return layers.LayerNorm(width, eps=1e-5, dtype=compute)

  def block(rngs: Keys) -> Block:
    common = parameters.Common(dtype=compute, rngs=rngs)
    attention = functools.partial(Attention, kernel=Softmax(attention_dropout), bias="none", matmul=matmul)
    return Block(
      norm(),
      attention(width, heads, kernel_init=_normal, **common),
      norm(),
      layers.Mlp(width, hidden, dropout=dropout, gelu="erf", kernel_init=_normal, matmul=matmul, **common),
      order=norm_order,
      dropout=dropout,
    )

  return Transformer(
    (*sides(image_size), channels),
    embedding=embedding,
    position=table,
    prefix=create_prefix_tokens(width, cls=has_cls, registers=registers, rngs=rngs),
    blocks=stack.Blocks(block, depth, scan, remat, stochastic_depth),
    norm=norm(),
    pool="cls" if has_cls else SeqPool(width, kernel_init=_normal, **common),
    head=layers.Linear((width,), (classes,), kernel_init=_normal, **common) if classes else None,
    dropout=dropout,
    rngs=rngs,
  )


def _create_tokenizer(
  variant: Variant, image_size: int | tuple[int, int], channels: int, width: int, common: parameters.Common
) -> tuple[nnx.Module, int]:
  """Returns the tokenizer and the number of its tokens for an image."""
  kernel, count = variant.kernel, variant.convolutions
  if count:
    tokens = math.prod(compute_side(n, kernel, count) for n in sides(image_size))
    return Convolutions(channels, width, kernel, count, **common), tokens
  # PyTorch's default for the bias of a convolution, which the official code uses.
  bound = 1 / math.sqrt(channels * kernel * kernel)
  embedding = layers.PatchEmbedding(
    channels,
    width,
    kernel,
    kernel_init=nnx.initializers.variance_scaling(2.0, "fan_in", "normal"),
    bias_init=lambda key, shape, dtype: jax.random.uniform(key, shape, dtype, -bound, bound),
    **common,
  )
  return embedding, math.prod(grid(image_size, kernel))

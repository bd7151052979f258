"""The computation that all Vision Transformers share; the families in vit.py and compact.py choose its parts."""

from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import rng, schema
from vit_jax.models import stack
from vit_jax.models.attention import Attention, Formulation
from vit_jax.models.intermediates import record
from vit_jax.models.layers import LayerNorm, Mlp, PatchEmbedding, drop_path, dropout, fold, xavier, zeros
from vit_jax.models.output import Output, check_shape, classified

Dtype = Literal["float32", "bfloat16"]
# The bounds are far above any sensible model; they keep a slip of the finger from becoming an allocation error.
Width = Annotated[int, schema.Range(1, 2**15)]
Depth = Annotated[int, schema.Range(1, 1024)]
Hidden = Annotated[int, schema.Range(1, 2**17)]


class Block(nnx.Module):
  """[B, N, D] -> [B, N, D]: attention, then MLP, each added to the stream.

  order "pre" normalises the input of each branch (Dosovitskiy et al. 2021, eq. 2-3). order "official" is that of the
  published compact transformers, where the second norm overwrites the stream itself:
  s = s + attention(norm1(s)); s = norm2(s); s = s + mlp(s).
  """

  def __init__(
    self,
    width,
    heads,
    hidden,
    *,
    order: Literal["pre", "official"] = "pre",
    eps,
    gelu,
    dropout,
    attention_dropout,
    layer_scale=None,
    relative=None,
    formulation: Formulation = "xla",
    attention_bias=True,
    kernel_init=xavier,
    bias_init=zeros,
    dtype,
    rngs,
  ):
    self.norm1 = LayerNorm(width, eps=eps, dtype=dtype)
    self.attention = Attention(
      width,
      heads,
      dropout=attention_dropout,
      bias=attention_bias,
      kernel_init=kernel_init,
      relative=relative,
      formulation=formulation,
      dtype=dtype,
      rngs=rngs,
    )
    self.norm2 = LayerNorm(width, eps=eps, dtype=dtype)
    self.mlp = Mlp(
      width, hidden, dropout=dropout, gelu=gelu, kernel_init=kernel_init, bias_init=bias_init, dtype=dtype, rngs=rngs
    )
    self.layer_scale1 = None if layer_scale is None else nnx.Param(jnp.full(width, layer_scale, jnp.float32))
    self.layer_scale2 = None if layer_scale is None else nnx.Param(jnp.full(width, layer_scale, jnp.float32))
    self.order, self.dropout = order, dropout

  def __call__(self, x, key=None, path_rate=np.float32(0)):
    def add(stream, branch, scale, number):
      if scale is not None:
        branch = branch * scale[...].astype(branch.dtype)
      return stream + drop_path(dropout(branch, self.dropout, fold(key, number)), path_rate, fold(key, number + 1))

    x = add(x, self.attention(self.norm1(x), key=fold(key, 0)), self.layer_scale1, 1)
    normed = self.norm2(x)
    x = add(normed if self.order == "official" else x, self.mlp(normed, key=fold(key, 3)), self.layer_scale2, 4)
    return record("out", x)


class Transformer(nnx.Module):
  """Images [B, H, W, C] -> logits [B, V], float32.

  Where `patch` is not None, images may also come cut into patches [B, N, P P C], as `layers.PatchEmbedding` has them.
  Tokens of the embedding of the image, or of what a stem makes of it, row by row; a class token in front if there is
  one, and a distillation token (Touvron et al. 2021), whose head's logits are averaged with the other's; plus
  positions; blocks; norm; pool; head. Without a head the result is the features.
  `key` is the key of all dropout; None means evaluation.
  """

  def __init__(
    self,
    shape: tuple[int, int, int],
    *,
    stem: nnx.Module | None = None,
    embedding: nnx.Module,
    token: nnx.Param | None,
    distillation: nnx.Param | None = None,
    position: nnx.Module | None,
    block: Callable[[rng.Keys], nnx.Module],
    depth: int,
    scan: bool,
    remat: str,
    norm: nnx.Module,
    pool: nnx.Module | str,
    pre_logits: nnx.Module | None = None,
    head: nnx.Module | None,
    head_distillation: nnx.Module | None = None,
    dropout: float,
    stochastic_depth: float,
    rngs: rng.Keys,
  ):
    self.shape, self.depth, self.remat = shape, depth, remat
    self.dropout, self.stochastic_depth = dropout, stochastic_depth
    self.stem = stem
    self.patch = embedding.patch if stem is None and isinstance(embedding, PatchEmbedding) else None
    self.embedding, self.cls, self.distillation, self.position = embedding, token, distillation, position
    self.blocks = stack.build(block, depth, scan=scan, rngs=rngs)
    self.norm, self.pool, self.pre_logits = norm, pool, pre_logits
    self.head, self.head_distillation = head, head_distillation

  def __call__(self, images, key=None):
    return self.outputs(images, key).logits

  def outputs(self, images: jax.Array, key: jax.Array | None = None) -> Output:
    """Everything that is computed of images [B, H, W, C]."""
    check_shape(images, self.shape, self._cut())

    # Tokens.
    x = self.embedding(images if self.stem is None else self.stem(images))
    x = record("embedding", x.reshape(x.shape[0], -1, x.shape[-1]))
    tokens = [token[...].astype(x.dtype) for token in (self.cls, self.distillation) if token is not None]
    if tokens:
      x = jnp.concatenate([*(jnp.broadcast_to(token, (x.shape[0], 1, x.shape[2])) for token in tokens), x], axis=1)
    if self.position is not None:
      x = x + jnp.asarray(self.position(), x.dtype)
    x = record("tokens", dropout(x, self.dropout, fold(key, 0)))

    # Features.
    x = stack.run(
      self.blocks,
      x,
      fold(key, 1),
      rates=stack.growing(self.stochastic_depth, self.depth),
      remat=self.remat,
      name="blocks",
    )
    tokens = record("encoded", self.norm(x))
    distilled = None if self.distillation is None else tokens[:, 1]
    x = record("features", self._pool(tokens))

    # Logits.
    if self.pre_logits is not None:
      x = jnp.tanh(self.pre_logits(x))
    features = record("pre_logits", x if distilled is None else (x + distilled) / 2)
    if self.head is None or distilled is None:
      return classified(tokens, features, self.head)
    heads = {
      "head": self.head(x).astype(jnp.float32),
      "head_distillation": self.head_distillation(distilled).astype(jnp.float32),
    }
    logits = record("logits", (heads["head"] + heads["head_distillation"]) / 2)
    return Output(tokens, features, logits, heads)

  def _cut(self):
    """Shape of an image that is cut into patches, if it may be."""
    if self.patch is None:
      return None
    height, width, channels = self.shape
    return height * width // self.patch**2, self.patch**2 * channels

  def _pool(self, x):
    match self.pool:
      case "cls":
        return x[:, 0]
      case "gap":
        return x.mean(axis=1)
    return self.pool(x)


def size(row: tuple[int, int, int, int], **overrides: int | None) -> tuple[int, int, int, int]:
  """(width, depth, heads, hidden) of a row with overrides where given; ConfigError if heads do not divide width."""
  names = ("width", "depth", "heads", "hidden")
  width, depth, heads, hidden = (
    overrides[name] if overrides[name] is not None else value for name, value in zip(names, row, strict=True)
  )
  if width % heads:
    divisors = [str(h) for h in range(1, min(width, 64) + 1) if width % h == 0]
    raise schema.ConfigError(
      f"model: width {width} is not a multiple of heads {heads}; allowed heads: {', '.join(divisors)}"
    )
  return width, depth, heads, hidden


def sides(image_size: int | tuple[int, int]) -> tuple[int, int]:
  """(height, width) of images given by one side, or by both."""
  return (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)


def grid(image_size: int | tuple[int, int], patch: int) -> tuple[int, int]:
  """(rows, columns) of patches; ConfigError if the patch does not divide the image."""
  for side in sides(image_size):
    if side % patch:
      below = side // patch * patch
      allowed = [str(near) for near in (below, below + patch) if near]
      raise schema.ConfigError(
        f"model: image size {side} is not a multiple of patch {patch}; nearest image sizes: {', '.join(allowed)}"
      )
  height, width = sides(image_size)
  return height // patch, width // patch

"""The computation that all Vision Transformers share; vit.py, compact.py and mixer.py choose its parts."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models import positions, stack
from vit_jax.models.intermediates import record
from vit_jax.models.layers import PatchEmbedding, dropout, fold, residual
from vit_jax.models.output import Output, check_patches, check_shape, classified
from vit_jax.models.parameters import Keys
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Scalar, Tensor

Images = Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"]  # whole, or cut into patches
PREFIX = ("cls", "distillation", "registers")  # tokens in front of the patches, in this order
Order = Literal["pre", "official", "parallel", "post"]


class Block(nnx.Module):
  """Attention, then MLP, each added to the stream.

  order "pre" normalises the input of each branch (Dosovitskiy et al. 2021, eq. 2-3). order "official" is that of the
  published compact transformers, where the second norm overwrites the stream itself:
  s = s + attention(norm1(s)); s = norm2(s); s = s + mlp(s). order "parallel" adds both branches of one norm at once,
  under one layer scale: s = s + attention(norm1(s)) + mlp(norm1(s)) (Dehghani et al. 2023). order "post" normalises
  what the branches give: s = s + norm1(attention(s)); s = s + norm2(mlp(s)).

  Args:
    norm1: of the input of `attention`.
    attention: module (x, key=key, ...) -> [B, N, D].
    norm2: of the input of `mlp`; None where both have one.
    mlp: module (x, key=key) -> [B, N, D].
    order: of norms and branches.
    layer_scale: initial factor of both branches, one for each channel (Touvron et al. 2021b); None has no factors.
    dropout: rate, of both branches.
    position: () -> [T, D], added to the stream before anything else; None adds nothing.
    registers: (first, count) of tokens that have no row in it.
  """

  def __init__(
    self,
    norm1: nnx.Module,
    attention: nnx.Module,
    norm2: nnx.Module | None,
    mlp: nnx.Module,
    *,
    order: Order = "pre",
    layer_scale: tuple[nnx.Param, nnx.Param] | None = None,
    dropout: float = 0.0,
    position: nnx.Module | None = None,
    registers: tuple[int, int] = (0, 0),
  ):
    self.norm1, self.attention, self.norm2, self.mlp = norm1, attention, norm2, mlp
    self.layer_scale1, self.layer_scale2 = layer_scale or (None, None)
    if order == "parallel":
      self.layer_scale2 = None
    self.order, self.dropout = order, dropout
    self.position, self.registers = position, registers

  def __call__(
    self, x: Float[Tensor, " B *N D"], key: PRNGKey | None = None, path_rate: Scalar = np.float32(0), **places
  ) -> Float[Array, " B *N D"]:
    """The stream after this block; `places` are where patches are, and its own number, as attention wants it."""

    def add(stream, branch, number):
      return residual(stream, branch, self.dropout, path_rate, key, number)

    def scaled(branch, x, scale, draw, **arguments):
      # What has no such factors knows nothing of them.
      factors = {} if scale is None else {"scale": scale[...]}
      return branch(x, key=fold(key, draw), **factors, **arguments)

    if self.position is not None:
      x = x + jnp.asarray(positions.skipping(self.position(), *self.registers), x.dtype)
    first, second = self.layer_scale1, self.layer_scale2
    if self.order == "post":
      x = add(x, _times(self.norm1(self.attention(x, key=fold(key, 0), **places)), first), 1)
      return record("out", add(x, _times(self.norm2(self.mlp(x, key=fold(key, 3))), second), 4))
    normed = self.norm1(x)
    branch = scaled(self.attention, normed, first, 0, **places)
    if self.order == "parallel":
      return record("out", add(x, branch + scaled(self.mlp, normed, first, 3), 1))
    x = add(x, branch, 1)
    normed = self.norm2(x)
    x = add(normed if self.order == "official" else x, scaled(self.mlp, normed, second, 3), 4)
    return record("out", x)


def _times(branch, scale):
  return branch if scale is None else branch * scale[...].astype(branch.dtype)


class Transformer(nnx.Module):
  """Images -> logits, float32.

  Tokens of the embedding of the image, or of what a stem makes of it, row by row; prefix tokens in front; positions;
  blocks; norm; pool; head. With a distillation token (Touvron et al. 2021a) the logits are the mean of two heads.
  Registers (Darcet et al. 2024), which no pooling reads, have no position where the table has no rows for them.
  Without a head the result is the features.
  Where `patch` is not None, images may also come cut into patches [B, N, P P C], as `layers.PatchEmbedding` has them.
  Where positions are computed, not learned, whole images may have any size that patches fill.
  `key` is the key of all dropout; None means evaluation.

  Args:
    shape: height, width and channels of the images.
    stem: what stands between image and embedding, if anything.
    embedding: image or map -> [B, ..., D].
    prefix: tokens by names of `PREFIX`: cls [D], distillation [D], registers [R, D].
    position: () -> [T, D], of class and distillation token, if there are any, of registers or not, and of patches; None
      adds nothing.
    position_at: "input" adds it once, "shared" again in front of every block.
    rotary: a value of `rotary.ROTARY`, which says where patches are that attention turns; None: it turns none.
    resizable: whether nothing in the blocks belongs to one size of images.
    blocks: of which a stack is made.
    norm: of all tokens after the last block, if any.
    pool: "cls", "gap", or a module [B, N, D] -> [B, D] of the patches.
    pool_norm: of what is pooled, if any.
    pre_logits: a layer with tanh before the head, if any.
    head: features -> logits; None: no classes.
    head_distillation: of the distillation token.
    dropout: rate, of the tokens.
    rngs: keys for the blocks.
  """

  accepts_patches = True  # see `contract.patch_of`

  def __init__(
    self,
    shape: tuple[int, int, int],
    *,
    stem: nnx.Module | None = None,
    embedding: nnx.Module,
    prefix: Mapping[str, nnx.Param],
    position: nnx.Module | None,
    position_at: Literal["input", "shared"] = "input",
    rotary=None,
    resizable: bool = False,
    blocks: stack.Blocks,
    norm: nnx.Module | None,
    pool: nnx.Module | str,
    pool_norm: nnx.Module | None = None,
    pre_logits: nnx.Module | None = None,
    head: nnx.Module | None,
    head_distillation: nnx.Module | None = None,
    dropout: float,
    rngs: Keys,
  ):
    assert prefix.keys() <= set(PREFIX), prefix
    self.shape, self.dropout = shape, dropout
    self.depth, self.remat = blocks.depth, blocks.remat
    self.stochastic_depth, self.dropping, self.numbered = blocks.stochastic_depth, blocks.dropping, blocks.numbered
    self.stem, self.embedding, self.position, self.position_at = stem, embedding, position, position_at
    self.patch = embedding.patch if stem is None and isinstance(embedding, PatchEmbedding) else None
    self.cls, self.distillation, self.registers = (prefix.get(name) for name in PREFIX)
    self.blocks = stack.build(blocks.block, blocks.depth, scan=blocks.scan, rngs=rngs)
    self.rotary = rotary
    self.resizable = (
      resizable and self.patch is not None and (position is None or isinstance(position, positions.Fixed))
    )
    self.norm, self.pool, self.pool_norm, self.pre_logits = norm, pool, pool_norm, pre_logits
    self.head, self.head_distillation = head, head_distillation

  def __call__(self, images: Images, key: PRNGKey | None = None) -> Float[Array, "B V"]:
    return self.outputs(images, key).logits

  @property
  def prefix(self) -> dict[str, int]:
    """How many tokens of which name are in front of the patches, in order."""
    tokens = {name: getattr(self, name) for name in PREFIX}
    return {name: math.prod(token.shape[:-1]) for name, token in tokens.items() if token is not None}

  def outputs(
    self,
    images: Images,
    key: PRNGKey | None = None,
    corrupt: Callable | None = None,
    visible: Integer[Tensor, "B M"] | None = None,
  ) -> Output:
    """Everything that is computed of images; see `functional.Model.outputs`."""
    grid = self._grid(images)

    # Tokens.
    x = self.embedding(images if self.stem is None else self.stem(images))
    x = record("embedding", x.reshape(x.shape[0], -1, x.shape[-1]))
    x, prefix, added = self._with_prefix(x if corrupt is None else corrupt(x), grid)
    places = {} if self.rotary is None else {"coordinates": self.rotary.coordinates(*grid, fold(key, 2))}
    if visible is not None:
      patches = jnp.take_along_axis(x[:, prefix:], visible[..., None], axis=1)
      x = jnp.concatenate([x[:, :prefix], patches], axis=1)
      places = {name: jnp.asarray(value)[visible] for name, value in places.items()}
    x = record("tokens", dropout(x, self.dropout, fold(key, 0)))

    # Features.
    rates = stack.rates(self.stochastic_depth, self.depth, self.dropping)
    how = {"rates": rates, "remat": self.remat, "name": "blocks", "added": added, "numbered": self.numbered}
    x = stack.run(self.blocks, x, fold(key, 1), **how, **places)
    tokens = record("encoded", x if self.norm is None else self.norm(x))
    distilled = None if self.distillation is None else tokens[:, 1]
    x = self._pool(tokens, prefix)
    x = record("features", x if self.pool_norm is None else self.pool_norm(x))

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

  def _grid(self, images):
    """(rows, columns) of the patches; ValueError for images of a size that the model does not take."""
    height, width, channels = self.shape
    if self.patch is None:
      check_shape(images, self.shape)
      return None if self.rotary is None else self.rotary.grid
    if self.resizable and images.ndim == 4:
      check_patches(images, self.patch, channels)
      height, width = images.shape[1:3]
    else:
      check_shape(images, self.shape, (height * width // self.patch**2, self.patch**2 * channels))
    return height // self.patch, width // self.patch

  def _with_prefix(self, patches, grid):
    """([B, T + N, D] prefix tokens and patches with positions, T, what every block adds to them or None)."""
    batch, _, width = patches.shape
    names, counts = tuple(self.prefix), tuple(self.prefix.values())
    x = patches
    if names:
      values = [getattr(self, name)[...].astype(x.dtype) for name in names]
      rows = [jnp.broadcast_to(value, (batch, n, width)) for value, n in zip(values, counts, strict=True)]
      x = jnp.concatenate([*rows, x], axis=1)
    if self.position is None:
      return x, sum(counts), None
    table = self.position.of(grid) if self.resizable else self.position()
    if self.registers is not None:  # which come last of the prefix, and mostly have no position
      table = positions.skipping(table, sum(counts[:-1]), x.shape[1] - table.shape[0])
    table = jnp.asarray(table, x.dtype)
    return (x + table, sum(counts), None) if self.position_at == "input" else (x, sum(counts), table)

  def _pool(self, tokens, prefix):
    if self.pool == "cls":
      return tokens[:, 0]
    patches = tokens[:, prefix:] if prefix else tokens
    return patches.mean(axis=1) if self.pool == "gap" else self.pool(patches)


def prefix_tokens(
  width: int, *, cls: bool, distillation: bool = False, registers: int = 0, rngs: Keys
) -> dict[str, nnx.Param]:
  """Tokens in front of the patches, by name. Registers begin as in timm and DINOv2, near zero and all different."""
  tokens = {}
  if cls:
    tokens["cls"] = nnx.Param(jnp.zeros(width))
  if distillation:
    tokens["distillation"] = nnx.Param(jnp.zeros(width))
  if registers:
    tokens["registers"] = nnx.Param(1e-6 * jax.random.normal(rngs.params(), (registers, width), jnp.float32))
  return tokens

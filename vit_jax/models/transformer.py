"""The computation that all Vision Transformers share. vit.py, compact.py and mixer.py choose its components."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models import positions, stack
from vit_jax.models.intermediates import record
from vit_jax.models.layers import PatchEmbedding, add_residual, dropout, fold_key
from vit_jax.models.output import Output, check_patches, check_shape, classify
from vit_jax.models.parameters import Keys, Parameter
from vit_jax.models.rotary import Rotary
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Scalar, Tensor

Images = Float[Tensor, "B H W C"] | Float[Tensor, "B N PPC"]  # whole images, or images cut into patches
PREFIX = ("cls", "distillation", "registers")  # tokens in front of the patches, in this order
Order = Literal["pre", "official", "parallel", "post"]


class Block(nnx.Module):
  """A Transformer block: attention, then an MLP, each added to the stream s.

  `order` is one of these orders of norms and branches:

    pre:       s = s + attention(norm1(s));  s = s + mlp(norm2(s))
    official:  s = s + attention(norm1(s));  s = norm2(s);  s = s + mlp(s)
    parallel:  s = s + attention(norm1(s)) + mlp(norm1(s))
    post:      s = s + norm1(attention(s));  s = s + norm2(mlp(s))

  "pre" is the order of Dosovitskiy et al. 2021, eq. 2-3. "official" is the order of the published compact transformers,
  in which the second norm replaces the stream itself. "parallel" (Dehghani et al. 2023) has one norm and one layer
  scale for both branches.

  Args:
    norm1: norm of `attention`.
    attention: module (x, key=key, ...) -> [B, N, D].
    norm2: norm of `mlp`. None if both branches share `norm1`.
    mlp: module (x, key=key) -> [B, N, D].
    order: order of norms and branches.
    layer_scale: factors of each channel for both branches (Touvron et al. 2021b), or None.
    dropout: dropout rate of both branches.
    position: module () -> [T, D] of positions that are added to the stream before the branches, or None.
    registers: (first, count) of the tokens without a row in `position`.
  """

  def __init__(
    self,
    norm1: nnx.Module,
    attention: nnx.Module,
    norm2: nnx.Module | None,
    mlp: nnx.Module,
    *,
    order: Order = "pre",
    layer_scale: tuple[Parameter, Parameter] | None = None,
    dropout: float = 0.0,
    position: nnx.Module | None = None,
    registers: tuple[int, int] = (0, 0),
  ) -> None:
    self.norm1, self.attention, self.norm2, self.mlp = norm1, attention, norm2, mlp
    self.layer_scale1, self.layer_scale2 = layer_scale or (None, None)
    if order == "parallel":
      self.layer_scale2 = None
    self.order, self.dropout = order, dropout
    self.position, self.registers = position, registers

  def __call__(
    self, x: Float[Tensor, " B *N D"], key: PRNGKey | None = None, path_rate: Scalar = np.float32(0), **places: object
  ) -> Float[Array, " B *N D"]:
    """Computes the block.

    Args:
      x: the stream, (B, N, D).
      key: random key of dropout. None disables dropout.
      path_rate: rate of stochastic depth.
      **places: arguments of attention, such as the positions of patches and the block's number.

    Returns:
      The stream, (B, N, D).
    """

    def add(stream: Tensor, branch: Array, number: int) -> Array:
      return add_residual(stream, branch, self.dropout, path_rate, key, number)

    def apply_branch(branch: nnx.Module, x: Tensor, scale: Parameter | None, draw: int, **arguments: object) -> Array:
      # Branches without factors may not support the argument.
      factors = {} if scale is None else {"scale": scale[...]}
      return branch(x, key=fold_key(key, draw), **factors, **arguments)

    if self.position is not None:
      x = x + jnp.asarray(positions.insert_zeros(self.position(), *self.registers), x.dtype)
    first, second = self.layer_scale1, self.layer_scale2
    if self.order == "post":
      assert self.norm2 is not None
      x = add(x, _scale_branch(self.norm1(self.attention(x, key=fold_key(key, 0), **places)), first), 1)
      return record("out", add(x, _scale_branch(self.norm2(self.mlp(x, key=fold_key(key, 3))), second), 4))
    normed = self.norm1(x)
    branch = apply_branch(self.attention, normed, first, 0, **places)
    if self.order == "parallel":
      return record("out", add(x, branch + apply_branch(self.mlp, normed, first, 3), 1))
    assert self.norm2 is not None
    x = add(x, branch, 1)
    normed = self.norm2(x)
    x = add(normed if self.order == "official" else x, apply_branch(self.mlp, normed, second, 3), 4)
    return record("out", x)


def _scale_branch(branch: Array, scale: Parameter | None) -> Array:
  return branch if scale is None else branch * scale[...].astype(branch.dtype)


class Transformer(nnx.Module):
  """A Vision Transformer: images -> logits in float32.

  The forward pass has these steps:

  - The stem, if any, converts the image to a feature map. The embedding converts it to tokens, row by row.
  - Prefix tokens are inserted in front, and positions are added.
  - Blocks, norm, pooling and head follow.

  With a distillation token (Touvron et al. 2021a) the logits are the mean of two heads. Registers (Darcet et al. 2024)
  are ignored by pooling. Registers have no position if the table contains no rows for them. Without a head the result
  is the features.

  If `patch` is not None, images may also be cut into patches [B, N, P P C], as described in `layers.PatchEmbedding`. If
  positions are computed instead of learned, whole images may have any size that is a multiple of the patch. `key` is
  the random key of all dropout, and None selects evaluation.

  Args:
    shape: height, width and channels of the images.
    stem: module before the embedding, or None.
    embedding: module from an image or feature map to [B, ..., D].
    prefix: tokens by name, see `PREFIX`: cls [D], distillation [D], registers [R, D].
    position: module () -> [T, D] of positions for class token and distillation token (if present), possibly registers,
      and patches. None adds no positions.
    position_at: "input" adds positions once, "shared" adds them again before every block.
    rotary: a value of `rotary.ROTARY`, which provides the coordinates of patches for attention. None disables rotation.
    resizable: whether the blocks support images of any size.
    blocks: description of the stack of blocks.
    norm: norm of all tokens after the last block, or None.
    pool: "cls", "gap", or a module [B, N, D] -> [B, D] that pools the patches.
    pool_norm: norm after pooling, or None.
    pre_logits: layer before the head, followed by tanh, or None.
    head: module from features to logits, or None.
    head_distillation: head of the distillation token, or None.
    dropout: dropout rate of the tokens.
    rngs: source of keys for the blocks.
  """

  accepts_patches = True  # see `contract.find_patch`

  def __init__(
    self,
    shape: tuple[int, int, int],
    *,
    stem: nnx.Module | None = None,
    embedding: nnx.Module,
    prefix: Mapping[str, Parameter],
    position: nnx.Module | None,
    position_at: Literal["input", "shared"] = "input",
    rotary: Rotary | None = None,
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
  ) -> None:
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
    """{name: number} of the tokens in front of the patches, in their order."""
    tokens = {name: getattr(self, name) for name in PREFIX}
    return {name: math.prod(token.shape[:-1]) for name, token in tokens.items() if token is not None}

  def outputs(
    self,
    images: Images,
    key: PRNGKey | None = None,
    corrupt: Callable[[Float[Tensor, "B N D"]], Float[Tensor, "B N D"]] | None = None,
    visible: Integer[Tensor, "B M"] | None = None,
  ) -> Output:
    """Computes the outputs for a batch of images.

    Args:
      images: whole images (B, H, W, C), or patches (B, N, P P C).
      key: random key of dropout. None selects evaluation.
      corrupt: function of the embeddings [B, N, D] that is applied before positions are added, or None.
      visible: numbers of the patches that the blocks process, (B, M). None means all patches.

    Returns:
      Tokens, features and logits.

    Raises:
      ValueError: if the model does not support the size of the images.
    """
    grid = self._grid(images)

    # Tokens.
    x = self.embedding(images if self.stem is None else self.stem(images))
    x = record("embedding", x.reshape(x.shape[0], -1, x.shape[-1]))
    x, prefix, added = self._with_prefix(x if corrupt is None else corrupt(x), grid)
    places: dict[str, Tensor] = {}
    if self.rotary is not None:
      assert grid is not None
      rows, columns = grid
      places["coordinates"] = self.rotary.compute_coordinates(rows, columns, fold_key(key, 2))
    if visible is not None:
      patches = jnp.take_along_axis(x[:, prefix:], visible[..., None], axis=1)
      x = jnp.concatenate([x[:, :prefix], patches], axis=1)
      places = {name: jnp.asarray(value)[visible] for name, value in places.items()}
    x = record("tokens", dropout(x, self.dropout, fold_key(key, 0)))

    # Features.
    rates = stack.compute_rates(self.stochastic_depth, self.depth, self.dropping)
    x = stack.run(
      self.blocks,
      x,
      fold_key(key, 1),
      rates=rates,
      remat=self.remat,
      name="blocks",
      added=added,
      numbered=self.numbered,
      **places,
    )
    tokens = record("encoded", x if self.norm is None else self.norm(x))
    distilled = None if self.distillation is None else tokens[:, 1]
    x = self._pool(tokens, prefix)
    x = record("features", x if self.pool_norm is None else self.pool_norm(x))

    # Logits.
    if self.pre_logits is not None:
      x = jnp.tanh(self.pre_logits(x))
    features = record("pre_logits", x if distilled is None else (x + distilled) / 2)
    if self.head is None or distilled is None:
      return classify(tokens, features, self.head)
    assert self.head_distillation is not None
    heads = {
      "head": self.head(x).astype(jnp.float32),
      "head_distillation": self.head_distillation(distilled).astype(jnp.float32),
    }
    logits = record("logits", (heads["head"] + heads["head_distillation"]) / 2)
    return Output(tokens, features, logits, heads)

  def _grid(self, images: Images) -> tuple[int, int] | None:
    """Returns (rows, columns) of the patches. Raises a ValueError for images of an unsupported size."""
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

  def _with_prefix(
    self, patches: Float[Tensor, "B N D"], grid: tuple[int, int] | None
  ) -> tuple[Array, int, Array | None]:
    """Returns prefix tokens and patches with positions [B, T + N, D], T, and the positions for every block or None."""
    batch, _, width = patches.shape
    names, counts = tuple(self.prefix), tuple(self.prefix.values())
    x = jnp.asarray(patches)
    if names:
      values = [getattr(self, name)[...].astype(x.dtype) for name in names]
      rows = [jnp.broadcast_to(value, (batch, n, width)) for value, n in zip(values, counts, strict=True)]
      x = jnp.concatenate([*rows, x], axis=1)
    if self.position is None:
      return x, sum(counts), None
    table: Tensor
    if self.resizable:
      assert isinstance(self.position, positions.Fixed) and grid is not None
      table = self.position.compute_for_grid(grid)
    else:
      table = self.position()
    if self.registers is not None:  # registers are the last prefix tokens, and most models give them no position
      table = positions.insert_zeros(table, sum(counts[:-1]), x.shape[1] - table.shape[0])
    table = jnp.asarray(table, x.dtype)
    return (x + table, sum(counts), None) if self.position_at == "input" else (x, sum(counts), table)

  def _pool(self, tokens: Float[Array, "B N D"], prefix: int) -> Float[Array, "B D"]:
    if self.pool == "cls":
      return tokens[:, 0]
    patches = tokens[:, prefix:] if prefix else tokens
    return patches.mean(axis=1) if isinstance(self.pool, str) else self.pool(patches)


def create_prefix_tokens(
  width: int, *, cls: bool, distillation: bool = False, registers: int = 0, rngs: Keys
) -> dict[str, Parameter]:
  """Creates the tokens in front of the patches, by name.

  Registers have small, different initial values, as in timm and DINOv2. The other tokens are initialised with zeros.

  Args:
    width: width of the tokens.
    cls: whether there is a class token.
    distillation: whether there is a distillation token.
    registers: number of registers.
    rngs: source of keys.
  """
  tokens = {}
  if cls:
    tokens["cls"] = nnx.Param(jnp.zeros(width))
  if distillation:
    tokens["distillation"] = nnx.Param(jnp.zeros(width))
  if registers:
    tokens["registers"] = nnx.Param(1e-6 * jax.random.normal(rngs.params(), (registers, width), jnp.float32))
  return tokens

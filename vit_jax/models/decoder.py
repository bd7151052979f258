"""The decoder of a masked autoencoder (He et al. 2022), which predicts all patches from visible ones."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from vit_jax import rng, trees
from vit_jax.models import layers, positions, stack
from vit_jax.models.attention import Attention
from vit_jax.models.parameters import Keys
from vit_jax.models.transformer import Block
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Shaped, Tensor


class _Module(nnx.Module):
  """The decoder's network: [B, T + M, D] -> [B, N, O], from T prefix tokens and M visible patches to all N patches."""

  def __init__(
    self,
    inputs: int,
    outputs: int,
    grid: tuple[int, int],
    *,
    width: int,
    heads: int,
    blocks: stack.Blocks,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.embedding = layers.Linear((inputs,), (width,), dtype=dtype, rngs=rngs)
    self.mask_token = nnx.Param(0.02 * jax.random.normal(rngs.params(), (width,), jnp.float32))
    self.position = positions.Fixed(positions.compute_sincos2d, (*grid, width))
    self.depth, self.remat = blocks.depth, blocks.remat
    self.blocks = stack.build(blocks.block, blocks.depth, scan=blocks.scan, rngs=rngs)
    self.norm = layers.LayerNorm(width, eps=1e-6, dtype=dtype)
    self.prediction = layers.Linear((width,), (outputs,), dtype=dtype, rngs=rngs)

  def __call__(
    self, tokens: Float[Tensor, "B T D"], visible: Integer[Tensor, "B M"], restore: Integer[Tensor, "B N"], name: str
  ) -> Float[Array, "B N O"]:
    x = self.embedding(tokens)
    prefix, seen = jnp.split(x, [x.shape[1] - visible.shape[1]], axis=1)
    hidden = (len(x), restore.shape[1] - visible.shape[1], x.shape[-1])
    masks = jnp.broadcast_to(self.mask_token[...].astype(x.dtype), hidden)
    patches = jnp.take_along_axis(jnp.concatenate([seen, masks], axis=1), restore[..., None], axis=1)
    x = jnp.concatenate([prefix, patches + jnp.asarray(self.position(), x.dtype)], axis=1)
    x = stack.run(self.blocks, x, None, rates=np.zeros(self.depth, np.float32), remat=self.remat, name=name)
    return self.prediction(self.norm(x[:, prefix.shape[1] :]))


@dataclasses.dataclass(frozen=True)
class Decoder:
  """A decoder as pure functions of flat parameters. All parameter paths start with `path`.

  Args:
    path: prefix of the parameter paths.
    inputs: width of the encoder's tokens.
    outputs: number of predicted values of each patch.
    grid: numbers of rows and columns of patches.
    width: width of the decoder's tokens.
    depth: number of blocks.
    heads: number of attention heads.
    dtype: type of the computation.
    scan: whether the blocks are scanned.
    remat: rematerialisation policy, a key of `stack.POLICIES`.
  """

  path: str
  inputs: int
  outputs: int
  grid: tuple[int, int]
  width: int
  depth: int
  heads: int
  dtype: str
  scan: bool
  remat: str

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Returns initial parameters by path.

    Args:
      key: random key.
    """
    state = trees.flatten(nnx.state(self._make(rng.Keys(key))))
    return {f"{self.path}/{path}": value for path, value in state.items()}

  def __call__(
    self,
    params: Mapping[str, Shaped[Tensor, "..."]],
    tokens: Float[Tensor, "B T D"],
    visible: Integer[Tensor, "B M"],
    restore: Integer[Tensor, "B N"],
  ) -> Float[Array, "B N O"]:
    """Predicts the values of every patch.

    Args:
      params: {path: array}. Other paths are ignored.
      tokens: tokens of the encoder, (B, T, D): prefix tokens, then visible patches.
      visible: numbers of the visible patches, (B, M).
      restore: position of each patch in (visible patches, hidden patches), (B, N).

    Returns:
      Predictions, (B, N, O).
    """
    graph, abstract = nnx.split(nnx.eval_shape(lambda: self._make(rng.Keys(rng.make_key(0)))))
    own = {path: params[f"{self.path}/{path}"] for path in trees.flatten(abstract)}
    module = nnx.merge(graph, trees.unflatten(abstract, own))
    return module(tokens, visible, restore, f"{self.path}/blocks")

  def _make(self, keys: Keys) -> _Module:
    dtype, width = jnp.dtype(self.dtype), self.width

    def norm() -> layers.LayerNorm:
      return layers.LayerNorm(width, eps=1e-6, dtype=dtype)

    def block(rngs: Keys) -> Block:
      attention = Attention(width, self.heads, dtype=dtype, rngs=rngs)
      return Block(norm(), attention, norm(), layers.Mlp(width, 4 * width, gelu="erf", dtype=dtype, rngs=rngs))

    blocks = stack.Blocks(block, self.depth, self.scan, self.remat, 0.0)
    return _Module(
      self.inputs,
      self.outputs,
      self.grid,
      width=width,
      heads=self.heads,
      blocks=blocks,
      dtype=dtype,
      rngs=keys,
    )


# Rows of the sharding table, in addition to the rows that all blocks share.
SHARDING = (
  (r".*/decoder/(embedding|prediction)/kernel", ("fsdp", None)),
  (r".*/decoder/((embedding|prediction)/bias|mask_token)", (None,)),
)

"""Transforms of queries and keys in attention: norms, rotary positions and relative positions."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models.attention import AttentionParts, Inputs
from vit_jax.models.layers import Norm
from vit_jax.models.parameters import Keys, Parameter
from vit_jax.models.rotary import Rotary, apply_rotary
from vit_jax.shapes import Array, Float, Tensor


@dataclasses.dataclass(frozen=True)
class QueryKey:
  """Norms and rotation of queries and keys, and relative positions. They support self-attention only.

  The attention owns `query_norm`, `key_norm`, `frequencies` of learned rotary positions, and `offsets` of relative
  positions. With rotary positions, the attention needs the input `coordinates`: positions of the patches, (*B, P, 2).

  Args:
    size: number of channels K of a head.
    norm: norm over the channels of each head (Dehghani et al. 2023), or None.
    rotary: rotary positions of the patches, which are the last tokens. They are applied after the norms. None disables
      rotation.
    leading: number of tokens before the registers. These tokens are not rotated.
    relative: number of tokens N. Adds q r^T / sqrt(K) to the logits (Shaw et al. 2018). All heads share r, which has a
      learned vector for each offset. Row j belongs to the offset p_q - p_k = N - 1 - j. None disables relative
      positions.
  """

  size: int
  _: dataclasses.KW_ONLY
  norm: Norm | None = None
  rotary: Rotary | None = None
  leading: int = 0
  relative: int | None = None

  @property
  def transforms_keys(self) -> bool:
    """True if keys are normalised or rotated."""
    return self.norm is not None or self.rotary is not None

  def init(self, rngs: Keys) -> dict[str, nnx.Module | Parameter]:
    """Returns norms, offsets and frequencies.

    Args:
      rngs: source of keys.
    """
    made: dict[str, nnx.Module | Parameter] = {}
    if self.relative:
      draw = nnx.initializers.normal(0.02)
      made["offsets"] = nnx.Param(draw(rngs.params(), (2 * self.relative - 1, self.size), jnp.float32))
    if self.rotary is not None and (frequencies := self.rotary.init(rngs.params())) is not None:
      made["frequencies"] = nnx.Param(frequencies)
    if self.norm is not None:
      made |= {name: self.norm(self.size) for name in ("query_norm", "key_norm")}
    return made

  def transform(
    self, attention: AttentionParts, query: Float[Tensor, "B M H K"], keys: Float[Tensor, "B N H K"], inputs: Inputs
  ) -> tuple[Float[Array, "B M H K"], Float[Array, "B N H K"]]:
    """Returns normalised and rotated queries and keys.

    Args:
      attention: the attention that owns the parameters.
      query: queries, (B, M, H, K).
      keys: keys, (B, N, H, K).
      inputs: inputs of the attention.
    """
    if self.norm is not None:
      query, keys = attention.query_norm(query), attention.key_norm(keys)
    if self.rotary is None:
      return jnp.asarray(query), jnp.asarray(keys)
    angles = self.compute_angles(attention, query.shape[1], inputs)
    return apply_rotary(query, angles), apply_rotary(keys, angles)

  def compute_angles(self, attention: AttentionParts, tokens: int, inputs: Inputs) -> Float[Tensor, "*B N #H K2"]:
    """Returns the rotation angles of all tokens, including the tokens in front of the patches.

    Args:
      attention: the attention that owns the frequencies.
      tokens: number of tokens N.
      inputs: inputs of the attention.

    Returns:
      Angles, (*B, N, H or 1, K / 2). Constant angles are a NumPy array.
    """
    frequencies, coordinates = getattr(attention, "frequencies", None), inputs["coordinates"]
    assert self.rotary is not None and isinstance(coordinates, Tensor)
    angles = self.rotary.compute_angles(coordinates, None if frequencies is None else frequencies[...])
    registers = self.rotary.compute_register_angles(tokens - angles.shape[-3] - self.leading)
    prefix = np.concatenate([np.zeros((self.leading, 1, self.rotary.size // 2), np.float32), registers])
    xp = np if isinstance(angles, np.ndarray) else jnp  # constant angles stay constants
    return xp.concatenate(
      [xp.broadcast_to(prefix, (*angles.shape[:-3], len(prefix), *angles.shape[-2:])), angles], axis=-3
    )

  def add_logits(
    self, attention: AttentionParts, logits: Float[Tensor, "B H M N"], query: Float[Tensor, "B M H K"]
  ) -> Float[Array, "B H M N"]:
    """Returns the logits with the logits of relative positions added.

    Args:
      attention: the attention that owns the offsets.
      logits: logits, (B, H, M, N).
      query: scaled queries, (B, M, H, K).
    """
    if not self.relative:
      return jnp.asarray(logits)
    return jnp.asarray(logits) + compute_relative_logits(query, attention.offsets[...].astype(query.dtype))


def compute_relative_logits(
  query: Float[Tensor, "B N H K"], offsets: Float[Tensor, "2*N-1 K"]
) -> Float[Array, "B H N N"]:
  """Computes the product of each query p with the vector of its offset to each key n. The vector is row N - 1 - p + n.

  Args:
    query: queries, (B, N, H, K).
    offsets: vectors of the offsets, (2 N - 1, K).

  Returns:
    Logits, (B, H, N, N).
  """
  n = query.shape[1]
  scores = jnp.einsum("bqhk,ok->bhqo", query, offsets)
  # Row p must be shifted left by p. Padding by one column and reshaping to rows with one column less does this.
  flat = jnp.pad(scores, ((0, 0), (0, 0), (0, 0), (0, 1))).reshape(*scores.shape[:2], 2 * n * n)
  return flat[..., : n * (2 * n - 1)].reshape(*scores.shape[:2], n, 2 * n - 1)[..., n - 1 :]

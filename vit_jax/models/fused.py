"""Attention by one fused kernel on TPUs."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx

from vit_jax.models import activations
from vit_jax.models.attention import AttentionParts, Inputs
from vit_jax.models.intermediates import record
from vit_jax.models.layers import RMSNorm, fold_key
from vit_jax.models.parameters import Keys, Parameter
from vit_jax.models.query_key import QueryKey
from vit_jax.shapes import Array, Float, PRNGKey, Tensor


@dataclasses.dataclass(frozen=True)
class Fused:
  """A kernel that computes softmax(q k^T / sqrt(K)) v by `kernels.fused_attention`, with the same weights as `Softmax`.

  It supports self-attention without relative positions, bias of the logits, and dropout. In contrast to `Softmax`, it
  records no logits and no weights, because the kernel does not store them.
  """

  def init(self, rngs: Keys) -> dict[str, nnx.Module | Parameter]:
    """Returns no parameters."""
    return {}

  def __call__(
    self,
    attention: AttentionParts,
    x: Float[Tensor, "B N D"],
    memory: Float[Tensor, "B N D"],
    key: PRNGKey | None,
    bias: Float[Tensor, "*#B #H #M #N"] | None,
    inputs: Inputs,
  ) -> Float[Array, "B N D"]:
    """Computes the contexts. The arguments are those of `AttentionParts.compute`.

    The kernel adds the biases of query and value. The bias of the key has no effect unless keys are normalised or
    rotated. In these cases it is added before the kernel. The kernel normalises and rotates if possible. It supports
    neither angles that are computed in the program nor norms with means.
    """
    from vit_jax.models.kernels import fused_attention, query_key  # imported here, because it loads Pallas

    assert memory is x and bias is None
    heads, size = attention.query.kernel.shape[-2:]
    part = QueryKey(size) if attention.query_key is None else attention.query_key
    assert isinstance(part, QueryKey) and not part.relative
    rotates, norms = part.rotary is not None, part.norm is not None
    angles = part.compute_angles(attention, x.shape[1], inputs) if rotates else None
    inside = query_key.supports(size) and isinstance(angles, np.ndarray | None)
    inside = inside and (not norms or isinstance(attention.query_norm, RMSNorm))
    outside = (rotates or norms) and not inside
    biased = {"query": outside, "key": rotates or norms, "value": False}  # biases that are added before the kernel
    query, keys, values = (
      record(f"attention/{name}", linear.flat(x, biased[name] and linear.bias is not None, key=fold_key(key, number)))
      for number, (name, linear) in enumerate(
        {"query": attention.query, "key": attention.key, "value": attention.value}.items(), 1
      )
    )
    options: dict[str, Any] = {}
    if outside:
      one, other = (rearrange(flat, "b n (h k) -> b n h k", h=heads) for flat in (query, keys))
      query, keys = (rearrange(x, "b n h k -> b n (h k)") for x in part.transform(attention, one, other, inputs))
    elif angles is not None:
      options["angles"] = angles[:, 0]
    biases = {"query": None if outside else attention.query.bias, "value": attention.value.bias}
    arrays = {name: bias[...].reshape(-1) for name, bias in biases.items() if bias is not None}
    if norms and not outside:
      options["eps"] = attention.query_norm.eps
      of_norms = {"gain of query": attention.query_norm, "gain of key": attention.key_norm}
      arrays |= {name: jnp.tile(norm.scale[...], heads) for name, norm in of_norms.items()}

    @jax.named_scope("attention")
    def attend(query: Tensor, key: Tensor, value: Tensor, *own: Tensor) -> Array:
      # Arrays of one device, which may contain only some of the heads.
      named = dict(zip(arrays, own, strict=True))
      gains = (named["gain of query"], named["gain of key"]) if "gain of query" in named else None
      biases = named.get("query"), named.get("value")
      return fused_attention.fused_attention(query, key, value, *biases, query.shape[-1] // size, gains, **options)

    return activations.run_per_device(attend)(query, keys, values, *arrays.values())

"""A stack of equal layers, unrolled or scanned, rematerialised by a named policy. All ways give the same numbers."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Literal

import jax
import numpy as np
from flax import nnx

from vit_jax import rng
from vit_jax.models import activations, intermediates
from vit_jax.models.parameters import Keys
from vit_jax.shapes import Float, PRNGKey, Tensor

_policies = jax.checkpoint_policies
_projections = ("attention/query", "attention/key", "attention/value", "attention/averaged", "attention/out")

# What is kept from the forward pass of a layer for its backward pass; everything else is computed again.
POLICIES = {
  "none": None,  # no rematerialisation: whatever the backward pass reads is kept
  "full": _policies.nothing_saveable,  # only the layer's input
  "dots": _policies.dots_saveable,  # every matrix product, attention scores too
  # Products with parameters, and what attention gives; its scores are computed again: 0.8 % of a ViT-B/16's FLOPs.
  "projections": _policies.save_only_these_names(*_projections, "mlp/gate", "mlp/hidden", "mlp/out"),
  "attention": _policies.save_only_these_names(*_projections, "attention/logits"),  # the MLP is computed again
  "mlp": _policies.save_only_these_names(
    "attention/out", "mlp/gate", "mlp/hidden", "mlp/out"
  ),  # the attention is computed again
}
Remat = Literal["none", "full", "dots", "projections", "attention", "mlp"]
Dropping = Literal["growing", "equal"]  # how the rate of stochastic depth goes over the layers


@dataclasses.dataclass(frozen=True)
class Blocks:
  """What a stack is made of, and how it is run."""

  block: Callable[[Keys], nnx.Module]  # makes one
  depth: int
  scan: bool  # whether they are one module with a leading axis, and compiled once
  remat: str  # a key of POLICIES
  stochastic_depth: float  # rate at the last
  dropping: Dropping = "growing"
  numbered: bool = False  # whether a block is told its number


def build(layer: Callable[[Keys], nnx.Module], depth: int, *, scan: bool, rngs: Keys) -> nnx.Module:
  """`depth` layers with the same initial numbers: a list, or for `scan` one layer with a leading axis of layers."""
  keys = jax.random.split(rngs.params(), depth)
  if not scan:
    return nnx.List([layer(rng.Keys(key)) for key in keys])
  graph = nnx.graphdef(nnx.eval_shape(lambda: layer(rng.Keys(keys[0]))))
  return nnx.merge(graph, jax.vmap(lambda key: nnx.state(layer(rng.Keys(key))))(keys))


def growing(stochastic_depth: float, depth: int) -> Float[np.ndarray, " {depth}"]:
  """Rates of dropping a layer's branches, from 0 at the first layer linearly to `stochastic_depth`."""
  return np.linspace(0, stochastic_depth, depth).astype(np.float32)


def rates(stochastic_depth: float, depth: int, dropping: Dropping) -> Float[np.ndarray, " {depth}"]:
  """Rates of dropping a layer's branches: `growing`, or the same in every layer."""
  return growing(stochastic_depth, depth) if dropping == "growing" else np.full(depth, stochastic_depth, np.float32)


def run(
  layers: nnx.Module,
  x: Float[Tensor, " B *x"],
  key: PRNGKey | None,
  *,
  rates: Float[np.ndarray, " depth"],
  remat: str,
  name: str,
  added: Float[Tensor, " *x"] | None = None,
  numbered: bool = False,
  **places: Float[Tensor, "..."],
) -> Float[Tensor, " B *x"]:
  """The stream through all layers: layer(x + added, key, rate, **places) with key number l and rates[l].

  `added` of None adds nothing; `places` are the same for all layers, of which each gets its `number` too if so.
  """
  own = {"number": np.arange(len(rates), dtype=np.float32)} if numbered else {}
  keys = None if key is None else jax.vmap(functools.partial(jax.random.fold_in, key))(np.arange(len(rates)))
  if isinstance(layers, nnx.List):
    return _unrolled(layers, x, keys, rates, remat, name, added, places, own)
  return _scanned(layers, x, keys, rates, remat, name, added, places, own)


def _unrolled(layers, x, keys, rates, remat, name, added, places, own):
  for i, layer in enumerate(layers):
    graph, params = nnx.split(layer)
    # The rate stays a constant, so that a layer of rate 0 draws nothing.
    of_layer = places | {key: values[i] for key, values in own.items()}
    call, names = _layer(graph, [f"{name}/{i}/"], added, of_layer, rate=rates[i])
    # Without a loop between forward and backward pass XLA would merge the second computation with the first.
    x, values = _checkpointed(call, remat, prevent_cse=True)(params, x, None if keys is None else keys[i])
    intermediates.publish(f"{name}/{i}/", names, values)
  return x


def _scanned(layers, x, keys, rates, remat, name, added, places, own):
  graph, params = nnx.split(layers)
  prefixes = [f"{name}/{i}/" for i in range(len(rates))]
  call, names = _layer(graph, prefixes, added, places, **({} if rates.any() else {"rate": rates[0]}))
  call = _checkpointed(call, remat, prevent_cse=False)
  rows = {"params": params} | ({} if keys is None else {"key": keys}) | ({"rate": rates} if rates.any() else {}) | own
  x, values = jax.lax.scan(lambda x, row: call(x=x, **({"key": None} | row)), x, rows)
  for i, prefix in enumerate(prefixes):
    intermediates.publish(prefix, names, {local: value[i] for local, value in values.items()})
  return x


def _layer(graph, prefixes, added, places, **constants):
  """The layer as a function (params, x, key, rate) -> (x, recorded values), and the list of names that a call fills."""
  names = []

  def call(params, x, key, rate, **own):
    with intermediates.layer(prefixes) as recorder:
      x = x if added is None else x + added
      x = activations.constrain(
        nnx.merge(graph, activations.gather(prefixes[0], params))(x, key, rate, **places, **own)
      )
    names[:] = recorder.names
    return x, recorder.values

  return functools.partial(call, **constants), names


def _checkpointed(function, remat, prevent_cse):
  return function if remat == "none" else jax.checkpoint(function, policy=POLICIES[remat], prevent_cse=prevent_cse)

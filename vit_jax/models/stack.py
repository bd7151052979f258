"""Stacks of equal layers, unrolled or scanned, with rematerialisation policies.

All variants compute the same results.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax import rng
from vit_jax.models import activations, intermediates, layer_loop
from vit_jax.models.parameters import Keys, State
from vit_jax.shapes import Array, Float, PRNGKey, Scalar, Tensor

_policies = jax.checkpoint_policies
_projections = tuple(f"attention/{name}" for name in ("query", "key", "value", "averaged", "gate", "out"))

# Values that the forward pass of a layer stores for its backward pass. All other values are recomputed, except in
# unrolled layers with "none".
POLICIES = {
  "none": None,  # no `jax.checkpoint`: XLA decides. In scanned layers, `_store_in_loop` decides
  "full": _policies.nothing_saveable,  # stores only the layer's input
  "dots": _policies.dots_saveable,  # stores all matrix products, including attention scores
  # Stores products with parameters and attention's results. Recomputing scores takes 0.8 % of a ViT-B/16's FLOPs.
  "projections": _policies.save_only_these_names(*_projections, "mlp/gate", "mlp/hidden", "mlp/out"),
  "attention": _policies.save_only_these_names(*_projections, "attention/logits"),  # recomputes the MLP
  "mlp": _policies.save_only_these_names(
    "attention/out", "mlp/gate", "mlp/hidden", "mlp/out"
  ),  # recomputes the attention
}
Remat = Literal["none", "full", "dots", "projections", "attention", "mlp"]
Dropping = Literal["growing", "equal"]  # distribution of stochastic depth rates over the layers


@dataclasses.dataclass(frozen=True)
class Blocks:
  """The blocks of a stack, and how they are computed.

  Args:
    block: function that creates one block from a source of keys.
    depth: number of blocks.
    scan: whether all blocks are one module, which is compiled once. Its parameters have a leading axis of blocks.
    remat: rematerialisation policy, a key of `POLICIES`.
    stochastic_depth: rate of stochastic depth at the last block.
    dropping: distribution of the rate over the blocks.
    numbered: whether each block receives its number.
  """

  block: Callable[[Keys], nnx.Module]
  depth: int
  scan: bool
  remat: str
  stochastic_depth: float
  dropping: Dropping = "growing"
  numbered: bool = False


def build(layer: Callable[[Keys], nnx.Module], depth: int, *, scan: bool, rngs: Keys) -> nnx.Module:
  """Creates a stack of layers. Scanned and unrolled stacks have the same initial values.

  Args:
    layer: function that creates one layer from a source of keys.
    depth: number of layers.
    scan: whether to create one module with a leading axis of layers instead of a list.
    rngs: source of keys.

  Returns:
    The stack.
  """
  keys = jax.random.split(rngs.params(), depth)
  if not scan:
    return nnx.List([layer(rng.Keys(key)) for key in keys])
  graph = nnx.graphdef(nnx.eval_shape(lambda: layer(rng.Keys(keys[0]))))
  return nnx.merge(graph, jax.vmap(lambda key: nnx.state(layer(rng.Keys(key))))(keys))


def compute_growing_rates(stochastic_depth: float, depth: int) -> Float[np.ndarray, " {depth}"]:
  """Returns rates that grow linearly from 0 at the first layer to `stochastic_depth` at the last layer.

  Args:
    stochastic_depth: rate at the last layer.
    depth: number of layers.
  """
  return np.linspace(0, stochastic_depth, depth).astype(np.float32)


def compute_rates(stochastic_depth: float, depth: int, dropping: Dropping) -> Float[np.ndarray, " {depth}"]:
  """Returns the stochastic depth rate of each layer.

  Args:
    stochastic_depth: rate at the last layer.
    depth: number of layers.
    dropping: "growing" for a linear increase from 0, "equal" for the same rate in all layers.
  """
  return (
    compute_growing_rates(stochastic_depth, depth)
    if dropping == "growing"
    else np.full(depth, stochastic_depth, np.float32)
  )


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
) -> Float[Array, " B *x"]:
  """Computes all layers: layer l is called as layer(x + added, key_l, rates[l], **places).

  Args:
    layers: stack from `build`.
    x: the stream, (B, ...).
    key: random key, from which the keys of the layers are derived. None disables dropout.
    rates: stochastic depth rate of each layer, (depth,).
    remat: rematerialisation policy, a key of `POLICIES`.
    name: prefix of the names of intermediates.
    added: added to the stream before every layer, or None.
    numbered: whether each layer receives its `number`.
    **places: arguments that are the same for all layers.

  Returns:
    The stream after the last layer, (B, ...).
  """
  x = jnp.asarray(x)
  own = {"number": np.arange(len(rates), dtype=np.float32)} if numbered else {}
  keys = None if key is None else jax.vmap(functools.partial(jax.random.fold_in, key))(np.arange(len(rates)))
  if isinstance(layers, nnx.List):
    return _run_unrolled(layers, x, keys, rates, remat, name, added, places, own)
  return _run_scanned(layers, x, keys, rates, remat, name, added, places, own)


def _run_unrolled(
  layers: Iterable[nnx.Module],
  x: Array,
  keys: Array | None,
  rates: Float[np.ndarray, " depth"],
  remat: str,
  name: str,
  added: Tensor | None,
  places: dict[str, Any],
  own: dict[str, Any],
) -> Array:
  for i, layer in enumerate(layers):
    graph, params = nnx.split(layer)
    # The rate stays a constant, so that a layer with rate 0 draws no random numbers.
    of_layer = places | {key: values[i] for key, values in own.items()}
    call, names = _make_layer(graph, [f"{name}/{i}/"], added, of_layer, rate=rates[i])
    # No loop separates forward and backward pass, so XLA would merge the recomputation with the first computation.
    x, values = _checkpoint(call, remat, prevent_cse=True)(params, x, None if keys is None else keys[i])
    intermediates.publish(f"{name}/{i}/", names, values)
  return x


def _run_scanned(
  layers: nnx.Module,
  x: Array,
  keys: Array | None,
  rates: Float[np.ndarray, " depth"],
  remat: str,
  name: str,
  added: Tensor | None,
  places: dict[str, Any],
  own: dict[str, Any],
) -> Array:
  graph, params = nnx.split(layers)
  prefixes = [f"{name}/{i}/" for i in range(len(rates))]
  inputs = {"added": added} | places
  traced = {key: value for key, value in inputs.items() if isinstance(value, jax.Array)}
  rate = {} if rates.any() else {"rate": rates[0]}
  names = []

  def layer(params: State, x: Array, traced: dict[str, Array], own: dict[str, Any]) -> tuple[Array, dict[str, Any]]:
    both = inputs | traced
    call, found = _make_layer(graph, prefixes, both.pop("added"), both, **rate)
    result = call(params, x, **({"key": None} | own))
    names[:] = found
    return result

  rows = ({} if keys is None else {"key": keys}) | ({"rate": rates} if rates.any() else {}) | own
  policy = _store_in_loop if remat == "none" else POLICIES[remat]
  x, values = layer_loop.scan_layers(layer, params, x, traced, rows, policy)
  for i, prefix in enumerate(prefixes):
    intermediates.publish(prefix, names, {local: value[i] for local, value in values.items()})
  return x


def _make_layer(
  graph: nnx.GraphDef[Any], prefixes: list[str], added: Tensor | None, places: dict[str, Any], **constants: Any
) -> tuple[Callable[..., tuple[Array, dict[str, Any]]], list[str]]:
  """Returns the layer as a function (params, x, key, rate) -> (x, recorded values), and the list of recorded names.

  The list is filled by a call of the function.
  """
  names = []

  def call(params: State, x: Array, key: PRNGKey | None, rate: Scalar, **own: object) -> tuple[Array, dict[str, Any]]:
    with intermediates.layer(prefixes) as recorder:
      x = x if added is None else x + added
      x = activations.constrain(
        nnx.merge(graph, activations.gather(prefixes[0], params))(x, key, rate, **places, **own)
      )
    names[:] = recorder.names
    return x, recorder.values

  return functools.partial(call, **constants), names


_STORED = {*_projections, "mlp/gate", "mlp/hidden", "dropout/mask"} - {"attention/out"}


def _store_in_loop(primitive: jax.extend.core.Primitive, *_: object, **params: Any) -> bool:
  """Returns whether a scanned layer without rematerialisation stores the result of an operation.

  The stored values are those that XLA stores in an unrolled program, except the attention scores and the last
  projection of attention. Computing these again is faster than copying them to and from a stack.
  """
  return params["name"] in _STORED if primitive.name == "name" else primitive.name == "reduce_sum"


def _checkpoint(function: Callable[..., Any], remat: str, prevent_cse: bool) -> Callable[..., Any]:
  return function if remat == "none" else jax.checkpoint(function, policy=POLICIES[remat], prevent_cse=prevent_cse)

"""A loop over equal layers with its own backward pass.

JAX can differentiate `jax.lax.scan`, but the result is slow on TPUs. It stores every intermediate of every layer, and
the TPU compiler cannot undo this, because it does not move operations between two loops. `scan_layers` differs from it
as follows. `docs/results/speed.md` lists the effects.

- A layer stores only the values that its policy selects. The backward pass recomputes the other values.
- Parameters that a layer reads in bfloat16 are converted one layer at a time, and their gradients are stacked in
  bfloat16. The gradients are converted to float32 after the loop.
- Of the stream, only the outputs of the layers are stacked. The input of a layer is the output of the preceding layer.
  The last operation of a layer writes its output to the stack directly. A separate stack of inputs would need a copy.
- Gradients are stacked in the order of their computation, and reversed after the loop. The compiler then allocates the
  stack without filling it with zeros.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from vit_jax.shapes import Array, Float, Tensor

Tree = Any  # a pytree of arrays
# A function (parameters, stream, shared inputs, own inputs) -> (stream, recorded values).
Layer = Callable[[Tree, Array, Tree, Tree], tuple[Array, Tree]]


def scan_layers(
  layer: Layer, params: Tree, x: Float[Tensor, "*B D"], shared: Tree, own: Tree, policy: Callable[..., bool]
) -> tuple[Float[Array, "*B D"], Tree]:
  """Applies layers to a stream, one after the other. Forward-mode differentiation is not supported.

  Args:
    layer: function that computes one layer. It must not use traced arrays other than its arguments.
    params: parameters of all layers, stacked along the first axis.
    x: the stream before the first layer, (*B, D).
    shared: inputs that are the same for all layers. They are floating-point arrays.
    own: further inputs of all layers, stacked along the first axis. They have no gradient.
    policy: a policy of `jax.checkpoint`, which selects the values that the forward pass stores.

  Returns:
    The stream after the last layer, and the recorded values of all layers, stacked along the first axis.

  Raises:
    TypeError: if a shared input has integers or keys.
  """
  if any(not jnp.issubdtype(value.dtype, jnp.inexact) for value in jax.tree.leaves(shared)):
    raise TypeError("scan_layers: shared inputs must be floating-point arrays. Pass others in `own`")
  types = _find_types(layer, params, x, shared, own)
  residuals: dict[str, Any] = {}  # how the residuals of a layer are put together, found by the forward pass

  def convert(params: Tree) -> Tree:
    return jax.tree.map(_convert, params, types)

  def run(params: Tree, x: Array, shared: Tree, own: Tree) -> tuple[Array, Tree]:
    return jax.lax.scan(lambda x, row: layer(convert(row[0]), x, shared, row[1]), x, (params, own))

  def forward(params: Tree, x: Array, shared: Tree, own: Tree) -> tuple[tuple[Array, Tree], Tree]:
    def step(x: Array, row: tuple[Tree, Tree]) -> tuple[Array, Tree]:
      params, own = convert(row[0]), row[1]

      def apply(params: Tree, x: Array, shared: Tree) -> tuple[Array, Tree]:
        return layer(params, x, shared, own)

      checkpointed = jax.checkpoint(apply, policy=policy, prevent_cse=False)
      (y, values), pull = jax.vjp(checkpointed, params, x, shared)
      # The residuals include inputs of the layer. The backward pass has these already.
      known = jax.tree.leaves((params, x, shared, own))
      leaves, residuals["structure"] = jax.tree.flatten(pull)
      places = [next((place for place, value in enumerate(known) if value is leaf), None) for leaf in leaves]
      residuals["places"] = places
      return y, (values, y, [leaf for leaf, place in zip(leaves, places, strict=True) if place is None])

    y, (values, outputs, stored) = jax.lax.scan(step, x, (params, own))
    # No layer reads the last output. Its place stores the first input, so that the input of layer l is at l - 1.
    inputs = jax.lax.dynamic_update_index_in_dim(outputs, x, len(outputs) - 1, 0)
    return (y, values), (params, inputs, shared, own, stored)

  def backward(saved: Tree, gradients: tuple[Array, Tree]) -> tuple[Tree, Array, Tree, None]:
    params, inputs, shared, own, stored = saved
    of_stream, of_values = gradients
    depth = len(inputs)

    def step(carry: tuple[Array, Tree], turn: Array) -> tuple[tuple[Array, Tree], Tree]:
      number = depth - 1 - turn

      def pick(stack: Tensor, number: Array = number) -> Array:
        return jax.lax.dynamic_index_in_dim(stack, number, keepdims=False)

      x = pick(inputs, jax.lax.rem(number + depth - 1, depth))
      known = jax.tree.leaves((convert(jax.tree.map(pick, params)), x, shared, jax.tree.map(pick, own)))
      unknown = iter(jax.tree.map(pick, stored))
      leaves = [next(unknown) if place is None else known[place] for place in residuals["places"]]
      pull = jax.tree.unflatten(residuals["structure"], leaves)
      of_params, of_x, of_shared = pull((carry[0], jax.tree.map(pick, of_values)))
      return (of_x, jax.tree.map(jnp.add, carry[1], of_shared)), of_params

    initial = of_stream, jax.tree.map(jnp.zeros_like, shared)
    (of_x, of_shared), stacks = jax.lax.scan(step, initial, jnp.arange(depth))
    of_params = jax.tree.map(lambda stack, values: jnp.flip(stack, 0).astype(values.dtype), stacks, params)
    return of_params, of_x, of_shared, None

  loop = jax.custom_vjp(run)
  loop.defvjp(forward, backward)
  return loop(params, x, shared, own)


def _convert(values: Array, dtype: DTypeLike) -> Array:
  """Converts the parameter of one layer, in an operation of its own inside the loop."""
  if values.dtype == dtype:
    return values
  # `reduce_precision` does not change any bit. Without it, the compiler would convert the parameters of all layers
  # before the loop and keep both copies. Without `optimization_barrier`, a product on v5e would read the float32
  # parameter once per tile.
  return jax.lax.optimization_barrier(jax.lax.reduce_precision(values, 8, 23).astype(dtype))


def _find_types(layer: Layer, params: Tree, x: Tensor, shared: Tree, own: Tree) -> Tree:
  """Returns the type of each parameter: a narrower floating-point type if the layer only reads its conversion."""
  first, rest = jax.eval_shape(lambda: jax.tree.map(lambda stack: stack[0], (params, own)))
  jaxpr = jax.make_jaxpr(layer)(first, x, shared, rest).jaxpr
  leaves, structure = jax.tree.flatten(first)

  def find(leaf: jax.ShapeDtypeStruct, variable: object) -> DTypeLike:
    uses = [equation for equation in jaxpr.eqns if any(each is variable for each in equation.invars)]
    if (
      any(each is variable for each in jaxpr.outvars)
      or len(uses) != 1
      or uses[0].primitive.name != "convert_element_type"
    ):
      return leaf.dtype
    dtype = uses[0].params["new_dtype"]
    return dtype if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < leaf.dtype.itemsize else leaf.dtype

  types = [find(leaf, variable) for leaf, variable in zip(leaves, jaxpr.invars[: len(leaves)], strict=True)]
  return jax.tree.unflatten(structure, types)

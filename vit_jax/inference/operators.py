"""Translations of JAX primitives to ONNX nodes, as functions (graph, equation, values) -> value."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend import core

from vit_jax.inference import graph as graphs
from vit_jax.inference.graph import Graph, Value, make_constant
from vit_jax.schema import ConfigError


def _expand_values(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> list[Value]:
  """Returns the values in the traced shapes."""
  return [graph.expand(v, graphs.get_shape(variable)) for v, variable in zip(values, equation.invars, strict=True)]


def _get_shape(equation: core.JaxprEqn) -> tuple[int, ...]:
  return graphs.get_shape(equation.outvars[0])


def _elementwise(operator: str, dtype: Any = None) -> graphs.Translation:
  """Returns a translation to an operator that broadcasts its operands."""

  def add(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
    return graph.add_node(operator, values, np.broadcast_shapes(*(value.shape for value in values)), dtype)

  return add


def _reciprocal_root(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  root = graph.add_node("Sqrt", values, values[0].shape)
  return graph.add_node("Reciprocal", [root], root.shape)


def _square(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  return graph.add_node("Mul", [*values, *values], values[0].shape)


def _integer_power(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  exponent = equation.params["y"]
  if exponent < 1:
    return graph.add_node("Pow", [*values, make_constant(np.array(exponent, values[0].dtype))], values[0].shape)
  result = values[0]
  for _ in range(exponent - 1):
    result = graph.add_node("Mul", [result, values[0]], result.shape)
  return result


def _complement(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  """Returns 1 - erf, because ONNX has no erfc."""
  error = graph.add_node("Erf", values, values[0].shape)
  return graph.add_node("Sub", [make_constant(np.array(1, error.dtype)), error], error.shape)


def _pass_through(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  return values[0]


def _cast(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  dtype = np.dtype(equation.params["new_dtype"])
  kind = graph.onnx.helper.np_dtype_to_tensor_dtype(dtype)
  return graph.add_node("Cast", values, values[0].shape, dtype, to=kind)


def _select(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  which, if_false, *if_true = values
  if which.dtype != bool or len(if_true) != 1:
    raise ConfigError("the model selects from more than two values, which is not supported in ONNX files")
  shape = np.broadcast_shapes(*(value.shape for value in values))
  return graph.add_node("Where", [which, *if_true, if_false], shape, if_false.dtype)


def _broadcast(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  """Inserts the new axes with size 1. Operators that cannot broadcast expand the value to its full size."""
  (value,), axes, shape = values, equation.params["broadcast_dimensions"], _get_shape(equation)
  sides = [1] * len(shape)
  for side, axis in zip(value.shape, axes, strict=True):
    sides[axis] = side
  return graph.reshape(value, sides)


def _reshape(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  (value,) = _expand_values(graph, equation, values)
  return graph.reshape(value, _get_shape(equation))


def _transpose(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  return graph.transpose(values[0], equation.params["permutation"])


def _concatenate(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  return graph.add_node(
    "Concat", _expand_values(graph, equation, values), _get_shape(equation), axis=int(equation.params["dimension"])
  )


def _tile(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  times = make_constant(np.array(equation.params["reps"], np.int64))
  return graph.add_node("Tile", [*_expand_values(graph, equation, values), times], _get_shape(equation))


def _slice(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  (value,), taken = _expand_values(graph, equation, values), equation.params
  strides = taken["strides"] or (1,) * len(value.shape)
  sides = zip(taken["start_indices"], taken["limit_indices"], strides, value.shape, strict=True)
  if value.shape == _get_shape(equation):
    return value
  cut = [
    (start, limit, by, i) for i, (start, limit, by, side) in enumerate(sides) if (start, limit, by) != (0, side, 1)
  ]
  start, limit, by, axes = (make_constant(np.array(column, np.int64)) for column in zip(*cut, strict=True))
  return graph.add_node("Slice", [value, start, limit, axes, by], _get_shape(equation))


def _pad(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  (value, filling), borders = _expand_values(graph, equation, values), equation.params["padding_config"]
  if any(inside for _, _, inside in borders):
    raise ConfigError("the model pads between pixels, which is not supported in ONNX files")
  sides = make_constant(np.array([[low for low, _, _ in borders], [high for _, high, _ in borders]], np.int64).ravel())
  return graph.add_node("Pad", [value, sides, filling], _get_shape(equation))


def _reduction(operator: str) -> graphs.Translation:
  def add(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
    axes = make_constant(np.array(equation.params["axes"], np.int64))
    return graph.add_node(operator, [*_expand_values(graph, equation, values), axes], _get_shape(equation), keepdims=0)

  return add


def _matrix_product(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  """Converts a general dot product to MatMul.

  The axes of both operands are moved to the order that MatMul requires. Batch axes come first, and contracted axes are
  adjacent.
  """
  left, right = _expand_values(graph, equation, values)
  (summed_left, summed_right), (common_left, common_right) = equation.params["dimension_numbers"]
  free_left = [i for i in range(len(left.shape)) if i not in (*summed_left, *common_left)]
  free_right = [i for i in range(len(right.shape)) if i not in (*summed_right, *common_right)]
  common = [left.shape[i] for i in common_left]
  rows, columns = [left.shape[i] for i in free_left], [right.shape[i] for i in free_right]
  inner = math.prod(left.shape[i] for i in summed_left)
  left = graph.transpose(left, [*common_left, *free_left, *summed_left])
  right = graph.transpose(right, [*common_right, *summed_right, *free_right])
  # Without batch axes, the row axes need not be merged, because MatMul accepts any number of them.
  height = [math.prod(rows)] if common else rows
  left = graph.reshape(left, [*common, *height, inner])
  right = graph.reshape(right, [*common, inner, math.prod(columns)])
  made = graph.add_node("MatMul", [left, right], [*common, *height, math.prod(columns)])
  return graph.reshape(made, _get_shape(equation))


def _convolution(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  (image, kernel), params = _expand_values(graph, equation, values), equation.params
  if any(side != 1 for side in params["lhs_dilation"]) or params["batch_group_count"] != 1:
    raise ConfigError("the model has a transposed convolution, which is not supported in ONNX files")
  into, of_kernel, out = params["dimension_numbers"]
  image, kernel = graph.transpose(image, into), graph.transpose(kernel, of_kernel)
  shape = [_get_shape(equation)[i] for i in out]
  made = graph.add_node("Conv", [image, kernel], shape, **_make_window(params["padding"], params["window_strides"]),
                    dilations=list(params["rhs_dilation"]), group=params["feature_group_count"])  # fmt: skip
  return graph.transpose(made, np.argsort(out).tolist())


def _make_window(padding: Sequence[tuple[int, int]], strides: Sequence[int]) -> dict[str, list[int]]:
  """Returns the attributes of a window over an image."""
  return {"pads": [low for low, _ in padding] + [high for _, high in padding], "strides": list(strides)}


def _max_pool(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  """Converts reduce_window_max of (B, H, W, C)."""
  (value,), params = _expand_values(graph, equation, values), equation.params
  sides, strides, padding = params["window_dimensions"], params["window_strides"], params["padding"]
  dilated = {*params["base_dilation"], *params["window_dilation"]} != {1}
  if len(sides) != 4 or dilated or any((sides[i], strides[i], *padding[i]) != (1, 1, 0, 0) for i in (0, 3)):
    raise ConfigError(
      "the model has a pooling of other axes than height and width, which is not supported in ONNX files"
    )
  order, shape = (0, 3, 1, 2), _get_shape(equation)
  made = graph.add_node("MaxPool", [graph.transpose(value, order)], [shape[i] for i in order],
                    kernel_shape=list(sides[1:3]), **_make_window(padding[1:3], strides[1:3]))  # fmt: skip
  return graph.transpose(made, (0, 2, 3, 1))


def _platform(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Value:
  """Selects the branch for platforms that JAX does not treat specially."""
  return make_constant(np.array(equation.params["platforms"].index(None), np.int32))


def _branch(graph: Graph, equation: core.JaxprEqn, values: Sequence[Value]) -> Any:
  which, *rest = values
  if which.array is None:
    raise ConfigError("the model selects a branch by a computed value, which is not supported in ONNX files")
  return graphs.add_program(graph, equation.params["branches"][int(which.array)], rest, OPERATORS)


OPERATORS = {
  **{
    name: _elementwise(operator)
    for name, operator in (
      *(("add", "Add"), ("add_any", "Add"), ("sub", "Sub"), ("mul", "Mul"), ("div", "Div"), ("pow", "Pow")),
      *(("max", "Max"), ("min", "Min"), ("neg", "Neg"), ("exp", "Exp"), ("log", "Log"), ("abs", "Abs")),
      *(("sqrt", "Sqrt"), ("tanh", "Tanh"), ("erf", "Erf"), ("logistic", "Sigmoid"), ("sin", "Sin"), ("cos", "Cos")),
    )
  },
  **{
    name: _elementwise(operator, bool)
    for name, operator in (("lt", "Less"), ("le", "LessOrEqual"), ("gt", "Greater"), ("ge", "GreaterOrEqual"))
  },
  **dict.fromkeys(("name", "stop_gradient", "copy", "copy_p", "reduce_precision"), _pass_through),
  "rsqrt": _reciprocal_root,
  "square": _square,
  "integer_pow": _integer_power,
  "erfc": _complement,
  "convert_element_type": _cast,
  "select_n": _select,
  "broadcast_in_dim": _broadcast,
  "reshape": _reshape,
  "squeeze": _reshape,
  "expand_dims": _reshape,
  "transpose": _transpose,
  "concatenate": _concatenate,
  "tile": _tile,
  "slice": _slice,
  "pad": _pad,
  "reduce_sum": _reduction("ReduceSum"),
  "reduce_max": _reduction("ReduceMax"),
  "dot_general": _matrix_product,
  "conv_general_dilated": _convolution,
  "reduce_window_max": _max_pool,
  "platform_index": _platform,
  "cond": _branch,
}

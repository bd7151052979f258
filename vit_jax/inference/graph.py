"""Conversion of a traced JAX function to a graph of ONNX nodes.

A dimension that is a multiple of BATCH is a whole number times the number of images. All other dimensions are fixed.
Values that depend only on constants are computed once, during the conversion.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from vit_jax.schema import ConfigError

# A prime that is larger than any side, width or number of tokens. If a function is traced with this number of images,
# the traced shapes show which dimensions depend on the number of images.
BATCH = 1_000_003
OPSET, IR = 18, 8  # versions of ONNX 1.13, December 2022
INPUT = "images"  # name of the only input


@dataclasses.dataclass(frozen=True)
class Value:
  """An operand or result of an operator: a known array, or the output of a node.

  The shape may have size 1 along axes that are longer in the traced program, because ONNX operators can broadcast.

  Attributes:
    shape: shape of the value.
    dtype: type of the elements.
    array: the array, if it is known.
    name: name of the node's output, if the array is not known.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  array: np.ndarray | None = None
  name: str = ""


def make_constant(array: Any) -> Value:
  """Returns a value for a known array."""
  array = np.asarray(array)
  return Value(array.shape, array.dtype, array)


class Graph:
  """A graph under construction: its nodes and initializers. `model` returns the finished model.

  Args:
    onnx: the `onnx` package.
  """

  def __init__(self, onnx: types.ModuleType) -> None:
    self.onnx, self.nodes, self.initializers, self._names = onnx, [], [], {}
    self._count = 0

  def add_node(
    self, operator: str, inputs: Sequence[Value], shape: Sequence[int], dtype: Any = None, **attributes: object
  ) -> Value:
    """Adds a node and returns its output.

    Args:
      operator: name of the ONNX operator.
      inputs: inputs of the node.
      shape: shape of the output.
      dtype: type of the output. The default is the type of the first input.
      **attributes: attributes of the node.
    """
    self._count += 1
    output = f"{operator.lower()}_{self._count}"
    names = [self.name(value) for value in inputs]
    self.nodes.append(self.onnx.helper.make_node(operator, names, [output], name=output, **attributes))
    return Value(tuple(shape), np.dtype(dtype or inputs[0].dtype), name=output)

  def name(self, value: Value) -> str:
    """Returns the name of a value in the graph. A known array becomes an initializer at its first use."""
    if value.array is None:
      return value.name
    array = np.ascontiguousarray(value.array).reshape(value.array.shape)
    key = (array.dtype.str, array.shape, array.tobytes() if array.nbytes < 2**16 else id(value.array))
    if key not in self._names:
      name = f"constant_{len(self._names) + 1}"
      self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
      self._names[key] = name, value.array  # keeps the array alive, so that its id stays unique
    return self._names[key][0]

  def make_sizes(self, shape: Sequence[int]) -> Value:
    """Returns a shape as a value for Expand. It is computed from the number of images if it depends on that number."""
    if not any(map(depends_on_batch, shape)):
      return make_constant(np.array(shape, np.int64))
    batch = self.add_node("Shape", [Value((), np.dtype(np.int64), name=INPUT)], (1,), start=0, end=1)
    parts = []
    for side in shape:
      part = make_constant(np.array([side // BATCH if depends_on_batch(side) else side], np.int64))
      parts.append(self.add_node("Mul", [batch, part], (1,)) if depends_on_batch(side) else part)
    return parts[0] if len(parts) == 1 else self.add_node("Concat", parts, (len(parts),), axis=0)

  def reshape(self, value: Value, shape: Sequence[int]) -> Value:
    """Returns the value in another shape with the same number of elements.

    Args:
      value: the value.
      shape: the new shape.
    """
    if tuple(shape) == value.shape:
      return value
    if value.array is not None:
      return make_constant(value.array.reshape(shape))
    growing = [i for i, side in enumerate(shape) if depends_on_batch(side)]
    if len(growing) > 1:
      return self.add_node("Reshape", [value, self.make_sizes(shape)], shape)
    sides = make_constant(np.array([-1 if i in growing else side for i, side in enumerate(shape)], np.int64))
    return self.add_node("Reshape", [value, sides], shape)

  def transpose(self, value: Value, order: Sequence[int]) -> Value:
    """Returns the value with its axes in another order.

    Args:
      value: the value.
      order: numbers of the axes in their new order.
    """
    if list(order) == list(range(len(value.shape))):
      return value
    if value.array is not None:
      return make_constant(value.array.transpose(order))
    return self.add_node("Transpose", [value], [value.shape[i] for i in order], perm=list(order))

  def expand(self, value: Value, shape: Sequence[int]) -> Value:
    """Returns the value in the traced shape, repeated along axes of size 1.

    Args:
      value: the value.
      shape: the traced shape.
    """
    if value.shape == tuple(shape):
      return value
    if value.array is not None and not any(map(depends_on_batch, shape)):
      return make_constant(np.broadcast_to(value.array, shape))
    return self.add_node("Expand", [value, self.make_sizes(shape)], shape)

  def model(self, inputs: Mapping[str, Value], outputs: Mapping[str, Value], about: Mapping[str, str]) -> Any:
    """Returns the onnx.ModelProto of the graph.

    Args:
      inputs: inputs by name.
      outputs: outputs by name.
      about: metadata, as texts by name.
    """
    helper = self.onnx.helper
    for name, value in outputs.items():
      self.nodes.append(helper.make_node("Identity", [self.name(value)], [name], name=f"identity_{name}"))

    def describe(name: str, value: Value) -> Any:
      kind = helper.np_dtype_to_tensor_dtype(value.dtype)
      return helper.make_tensor_value_info(
        name, kind, ["batch" if depends_on_batch(side) else side for side in value.shape]
      )

    ends = ([describe(name, value) for name, value in each.items()] for each in (inputs, outputs))
    graph = helper.make_graph(self.nodes, "vit_jax", *ends, self.initializers)
    model = helper.make_model(
      graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="vit_jax"
    )
    helper.set_model_props(model, dict(about))
    return model


def depends_on_batch(side: int) -> bool:
  """Returns true if a dimension depends on the number of images."""
  return side > 0 and side % BATCH == 0


Translation = Callable[[Graph, core.JaxprEqn, Sequence[Value]], Any]  # adds the nodes of an equation
Operators = Mapping[str, Translation]


def trace_graph(
  function: Callable[[jax.Array], object], image: tuple[int, ...], onnx: types.ModuleType, operators: Operators
) -> tuple[Graph, dict[str, Value], list[Value]]:
  """Converts a function of uint8 images (B, *image) to a graph.

  Args:
    function: function from images to an array or several arrays.
    image: shape of an image.
    onnx: the `onnx` package.
    operators: functions (graph, equation, values) -> values, by the name of the JAX primitive.

  Returns:
    The graph, its input by name, and its outputs.

  Raises:
    ConfigError: if the function uses a primitive that `operators` does not contain.
  """
  shape = (BATCH, *image)
  closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, np.uint8))
  graph, images = Graph(onnx), Value(shape, np.dtype(np.uint8), name=INPUT)
  outputs = add_program(graph, closed, [images], operators)
  full = [graph.expand(value, variable.shape) for value, variable in zip(outputs, closed.out_avals, strict=True)]
  return graph, {INPUT: images}, full


def add_program(
  graph: Graph, closed: core.ClosedJaxpr, inputs: Sequence[Value], operators: Mapping[str, Any]
) -> list[Value]:
  """Adds the nodes of a program to the graph.

  Args:
    graph: the graph.
    closed: the program.
    inputs: inputs of the program.
    operators: functions (graph, equation, values) -> values, by the name of the JAX primitive.

  Returns:
    The outputs of the program.
  """
  program = getattr(closed, "jaxpr", closed)
  known = dict(zip(program.constvars, map(make_constant, getattr(closed, "consts", ())), strict=True))
  known |= dict(zip(program.invars, inputs, strict=True))

  def value(variable: Any) -> Value:
    return make_constant(variable.val) if isinstance(variable, core.Literal) else known[variable]

  for equation in program.eqns:
    values = [value(variable) for variable in equation.invars]
    known |= zip(equation.outvars, _convert_equation(graph, equation, values, operators), strict=True)
  return [value(variable) for variable in program.outvars]


def get_shape(variable: core.Var | core.Literal) -> tuple[int, ...]:
  """Returns the shape of an operand or result in the traced program."""
  return variable.aval.shape  # type: ignore[attr-defined]  # JAX declares the base class of all abstract values


def _convert_equation(
  graph: Graph, equation: core.JaxprEqn, values: Sequence[Value], operators: Operators
) -> Sequence[Value]:
  """Returns the outputs of an equation: constants if all operands are constants, otherwise outputs of nodes."""
  if inside := find_inner_program(equation):
    return add_program(graph, inside, values, operators)
  name = equation.primitive.name
  sides = [side for variable in (*equation.invars, *equation.outvars) for side in get_shape(variable)]
  known = [value.array for value in values if value.array is not None]
  if name not in ALWAYS and len(known) == len(values) and not any(map(depends_on_batch, sides)):
    full = [np.broadcast_to(array, get_shape(var)) for array, var in zip(known, equation.invars, strict=True)]
    made = equation.primitive.bind(*full, **equation.params)
    return [make_constant(array) for array in (made if equation.primitive.multiple_results else [made])]
  if name not in operators:
    raise ConfigError(f"the model computes {name!r}, which is not supported in ONNX files. Write OUT.stablehlo instead")
  made = operators[name](graph, equation, values)
  return made if isinstance(made, list) else [made]


# Converted even if all operands are constants. A broadcast constant need not be stored at full size, and a branch must
# be selected.
ALWAYS = ("broadcast_in_dim", "platform_index", "cond")


def find_inner_program(equation: core.JaxprEqn) -> core.ClosedJaxpr | None:
  """Returns the program that an equation calls with its own inputs, or None if it does not call a program."""
  if equation.primitive.name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2"):
    return next(equation.params[key] for key in ("call_jaxpr", "jaxpr", "fun_jaxpr") if key in equation.params)
  return equation.params["jaxpr"] if equation.primitive.name in ("checkpoint", "remat") else None

"""A traced function as a graph of ONNX nodes: values, constants, and the nodes that operators add.

A dimension that is a multiple of BATCH is the number of images times a whole number; everything else is fixed. What
depends on constants alone is computed here, once.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from vit_jax.schema import ConfigError

# A prime larger than any side, width or number of tokens: who traces a function with so many images sees in the
# shapes which dimensions grow with them.
BATCH = 1_000_003
OPSET, IR = 18, 8  # of ONNX 1.13, December 2022
INPUT = "images"  # name of the one input


@dataclasses.dataclass(frozen=True)
class Value:
  """What an operator takes and gives: an array that is known, or the name of a node's output.

  Its own `shape` has 1 where the traced one may have more: broadcasting is left to operators that do it themselves.
  """

  shape: tuple[int, ...]
  dtype: np.dtype
  array: np.ndarray | None = None
  name: str = ""


def constant(array: Any) -> Value:
  """An array that is known."""
  array = np.asarray(array)
  return Value(array.shape, array.dtype, array)


class Graph:
  """Nodes and initializers in the making; `model` closes it."""

  def __init__(self, onnx):
    self.onnx, self.nodes, self.initializers, self._names = onnx, [], [], {}
    self._count = 0

  def node(self, operator: str, inputs: Sequence[Value], shape: Sequence[int], dtype=None, **attributes) -> Value:
    """Adds a node; its output, of the type of the first input unless said otherwise."""
    self._count += 1
    output = f"{operator.lower()}_{self._count}"
    names = [self.name(value) for value in inputs]
    self.nodes.append(self.onnx.helper.make_node(operator, names, [output], name=output, **attributes))
    return Value(tuple(shape), np.dtype(dtype or inputs[0].dtype), name=output)

  def name(self, value: Value) -> str:
    """The name of a value in the graph; an array becomes an initializer when it is first used."""
    if value.array is None:
      return value.name
    array = np.ascontiguousarray(value.array).reshape(value.array.shape)
    key = (array.dtype.str, array.shape, array.tobytes() if array.nbytes < 2**16 else id(value.array))
    if key not in self._names:
      name = f"constant_{len(self._names) + 1}"
      self.initializers.append(self.onnx.numpy_helper.from_array(array, name))
      self._names[key] = name, value.array  # which keeps the array, and so its id
    return self._names[key][0]

  def sizes(self, shape: Sequence[int]) -> Value:
    """A shape as a value, for Expand: computed from the number of images where it depends on that."""
    if not any(map(grows, shape)):
      return constant(np.array(shape, np.int64))
    batch = self.node("Shape", [Value((), np.dtype(np.int64), name=INPUT)], (1,), start=0, end=1)
    parts = []
    for side in shape:
      part = constant(np.array([side // BATCH if grows(side) else side], np.int64))
      parts.append(self.node("Mul", [batch, part], (1,)) if grows(side) else part)
    return parts[0] if len(parts) == 1 else self.node("Concat", parts, (len(parts),), axis=0)

  def reshape(self, value: Value, shape: Sequence[int]) -> Value:
    """The value in another shape of as many elements."""
    if tuple(shape) == value.shape:
      return value
    if value.array is not None:
      return constant(value.array.reshape(shape))
    growing = [i for i, side in enumerate(shape) if grows(side)]
    if len(growing) > 1:
      return self.node("Reshape", [value, self.sizes(shape)], shape)
    sides = constant(np.array([-1 if i in growing else side for i, side in enumerate(shape)], np.int64))
    return self.node("Reshape", [value, sides], shape)

  def transpose(self, value: Value, order: Sequence[int]) -> Value:
    """The value with its axes in another order."""
    if list(order) == list(range(len(value.shape))):
      return value
    if value.array is not None:
      return constant(value.array.transpose(order))
    return self.node("Transpose", [value], [value.shape[i] for i in order], perm=list(order))

  def full(self, value: Value, shape: Sequence[int]) -> Value:
    """The value in the traced shape, repeated along axes where it has 1."""
    if value.shape == tuple(shape):
      return value
    if value.array is not None and not any(map(grows, shape)):
      return constant(np.broadcast_to(value.array, shape))
    return self.node("Expand", [value, self.sizes(shape)], shape)

  def model(self, inputs: Mapping[str, Value], outputs: Mapping[str, Value], about: Mapping[str, str]):
    """The onnx.ModelProto of the graph; `about` are texts by name, its metadata."""
    helper = self.onnx.helper
    for name, value in outputs.items():
      self.nodes.append(helper.make_node("Identity", [self.name(value)], [name], name=f"identity_{name}"))

    def described(name, value):
      kind = helper.np_dtype_to_tensor_dtype(value.dtype)
      return helper.make_tensor_value_info(name, kind, ["batch" if grows(side) else side for side in value.shape])

    ends = ([described(name, value) for name, value in each.items()] for each in (inputs, outputs))
    graph = helper.make_graph(self.nodes, "vit_jax", *ends, self.initializers)
    model = helper.make_model(
      graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="vit_jax"
    )
    helper.set_model_props(model, dict(about))
    return model


def grows(side: int) -> bool:
  """Whether a dimension grows with the number of images."""
  return side > 0 and side % BATCH == 0


def trace(
  function: Callable, image: tuple[int, ...], onnx, operators: Mapping[str, Callable]
) -> tuple[Graph, dict[str, Value], list[Value]]:
  """(graph, its input by name, its outputs) of a function of uint8 images [B, *image].

  `operators` are functions (graph, equation, values) -> values by the name of the primitive. ConfigError for one that
  is not among them.
  """
  shape = (BATCH, *image)
  closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(shape, np.uint8))
  graph, images = Graph(onnx), Value(shape, np.dtype(np.uint8), name=INPUT)
  outputs = walk(graph, closed, [images], operators)
  full = [graph.full(value, variable.shape) for value, variable in zip(outputs, closed.out_avals, strict=True)]
  return graph, {INPUT: images}, full


def walk(graph: Graph, closed: core.ClosedJaxpr, inputs: Sequence[Value], operators: Mapping) -> list[Value]:
  """Adds the nodes of a program to the graph; its outputs."""
  program = getattr(closed, "jaxpr", closed)
  known = dict(zip(program.constvars, map(constant, getattr(closed, "consts", ())), strict=True))
  known |= dict(zip(program.invars, inputs, strict=True))

  def value(variable):
    return constant(variable.val) if isinstance(variable, core.Literal) else known[variable]

  for equation in program.eqns:
    values = [value(variable) for variable in equation.invars]
    known |= zip(equation.outvars, _computed(graph, equation, values, operators), strict=True)
  return [value(variable) for variable in program.outvars]


def _computed(graph, equation, values, operators) -> Sequence[Value]:
  """What an equation gives: a constant of constants, or the output of nodes."""
  if inside := program_in(equation):
    return walk(graph, inside, values, operators)
  name = equation.primitive.name
  sides = [side for variable in (*equation.invars, *equation.outvars) for side in variable.aval.shape]
  if name not in ALWAYS and all(value.array is not None for value in values) and not any(map(grows, sides)):
    full = [np.broadcast_to(v.array, var.aval.shape) for v, var in zip(values, equation.invars, strict=True)]
    made = equation.primitive.bind(*full, **equation.params)
    return [constant(array) for array in (made if equation.primitive.multiple_results else [made])]
  if name not in operators:
    raise ConfigError(f"the model computes {name!r}, which is not written as ONNX; write OUT.stablehlo instead")
  made = operators[name](graph, equation, values)
  return made if isinstance(made, list) else [made]


# Of constants too: a broadcast one need not be stored at its full size, and a branch has to be chosen.
ALWAYS = ("broadcast_in_dim", "platform_index", "cond")


def program_in(equation) -> core.ClosedJaxpr | None:
  """The program that an equation calls with its own inputs; None for one that computes something itself."""
  if equation.primitive.name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2"):
    return next(equation.params[key] for key in ("call_jaxpr", "jaxpr", "fun_jaxpr") if key in equation.params)
  return equation.params["jaxpr"] if equation.primitive.name in ("checkpoint", "remat") else None

"""Tensors in the pickle of a PyTorch file: their names, shapes and types, and functions that read their values.

The calls with which torch.save creates tensors are defined in `torch/_utils.py`.
"""

import dataclasses
import math
import pathlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from vit_jax.importers.formats import pickles
from vit_jax.importers.formats.lazy_tensors import Tensor, guard_read
from vit_jax.importers.formats.pickles import GlobalName, Placeholder
from vit_jax.schema import ConfigError, show

# Maximum nesting of dictionaries, lists and objects, and maximum number of these and of tensors.
_DEPTH, _NODES = 16, 200_000

_NUMBERS = {
  "Double": "f8",
  "Float": "f4",
  "Half": "f2",
  "BFloat16": ml_dtypes.bfloat16,
  "ComplexDouble": "c16",
  "ComplexFloat": "c8",
  "Long": "i8",
  "Int": "i4",
  "Short": "i2",
  "Char": "i1",
  "Byte": "u1",
  "Bool": "?",
}
_STORAGES = {f"{name}Storage": np.dtype(kind) for name, kind in _NUMBERS.items()} | {"UntypedStorage": np.dtype("u1")}
_TYPES = {
  **{name: np.dtype(name) for name in ("uint16", "uint32", "uint64")},
  **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fn", "float8_e5m2", "bfloat16")},
  **{name: np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")},
}


@dataclasses.dataclass(frozen=True)
class Storage:
  """A range of values in the file.

  Attributes:
    dtype: type of the values, or None for a type that is not supported.
    key: key of the values.
    first: number of the first value of a view.
    count: number of values.
  """

  dtype: np.dtype | None
  key: str
  first: int
  count: int


class _Dense(NamedTuple):
  """A tensor: a view of a storage."""

  storage: Storage
  dtype: np.dtype
  offset: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]


def describe_conversion(path: pathlib.Path) -> str:
  """Returns instructions for converting an unsupported file to a supported one."""
  return (
    "Save the tensors alone, with a program that may trust this file:\n"
    f'  checkpoint = torch.load("{path.name}", map_location="cpu")\n'
    '  torch.save(checkpoint["model"], "clean.pth")  # the state dict; of a module, checkpoint.state_dict()'
  )


# Calls in the pickle that create tensors.


def create_storage(pid: object) -> Storage:
  """Returns the storage that a persistent id refers to.

  Raises:
    pickle.UnpicklingError: if the persistent id has another form.
  """
  match pid:
    case ("storage", GlobalName(full), str(key), _, int(count), *view):
      kind = _STORAGES.get(full.rpartition(".")[2])
      first = view[0][1] if view and isinstance(view[0], tuple) else 0
      return Storage(kind, key, first, count)
  what = show(pid) if isinstance(pid, str) else f"a {type(pid).__name__}"
  raise pickle.UnpicklingError(f"its pickle refers to values by {what}")


def build_tensor(called: dict[str, None], name: str, arguments: tuple[Any, ...]) -> Any:
  """Returns the tensor that a call creates, or UNKNOWN for any other call.

  Args:
    called: dictionary to which the name of an unknown call is added.
    name: name of the function.
    arguments: arguments of the call.
  """
  match name.removeprefix("torch._utils.").removeprefix("torch._tensor."), arguments:
    case "_rebuild_tensor" | "_rebuild_tensor_v2", (Storage(), int(), tuple(), tuple(), *rest):
      storage = arguments[0]
      if storage.dtype is not None and not any(rest[2:]):  # flags of negated and conjugated values
        return _Dense(storage, storage.dtype, *arguments[1:4])
    case "_rebuild_tensor_v3", (Storage(), int(), tuple(), tuple(), _, _, GlobalName(full), *rest):
      kind = _TYPES.get(full.removeprefix("torch."))
      if kind is not None and not any(rest):
        return _Dense(arguments[0], kind, *arguments[1:4])
    case "_rebuild_parameter" | "_rebuild_parameter_with_state", (_Dense(), *_):
      return arguments[0]
    case "_rebuild_from_type_v2", (GlobalName(function), _, tuple(inner), _):
      if (tensor := build_tensor(called, function, inner)) is not pickles.UNKNOWN:
        return tensor
  called[name] = None
  return pickles.UNKNOWN


# Names of tensors.


def find_tensors(path: pathlib.Path, loaded: object, starts: Mapping[str, tuple[int, int]]) -> dict[str, Tensor]:
  """Returns all tensors of a pickled value by name.

  Args:
    path: the file.
    loaded: the pickled value.
    starts: {key: (start, number of bytes)} of the values in the file.

  Raises:
    ConfigError: if the value is not a dictionary or object of dense tensors, or a tensor is damaged.
  """
  if not isinstance(loaded, Mapping | Placeholder):
    kind = "tensor" if isinstance(loaded, _Dense) else type(loaded).__name__
    raise ConfigError(f"{path}: expected a state dict of tensors by name, got a {kind}. {describe_conversion(path)}")
  result: dict[str, Tensor] = {}
  for name, dense in _flatten(path, loaded):
    if name in result:
      raise ConfigError(f"{path}: two tensors are named {show(name)}. Save the file again with one of them")
    result[name] = _create_tensor(path, name, dense, starts)
  if not result and isinstance(loaded, Placeholder):
    raise ConfigError(f"{path}: contains an object {show(loaded.name)} instead of tensors. {describe_conversion(path)}")
  return result


def _flatten(path: pathlib.Path, loaded: Any) -> Iterator[tuple[str, _Dense]]:
  """Yields (name, tensor) of all tensors in dictionaries, lists and placeholders. Each placeholder is visited once."""
  levels, nodes, seen = [("", loaded)], 0, set()
  for _ in range(_DEPTH):
    below = []
    for prefix, value in levels:
      for key, inner in _list_children(value):
        if isinstance(inner, _Dense):
          yield f"{prefix}{key}", inner
        elif isinstance(inner, Mapping | list | tuple | Placeholder):
          if isinstance(inner, Placeholder):
            _check_tensor(path, f"{prefix}{key}", inner)
            if id(inner) in seen:
              continue
            seen.add(id(inner))
          below.append((f"{prefix}{key}.", inner))
        else:
          continue
        nodes += 1
        if nodes > _NODES:
          raise ConfigError(f"{path}: the file contains more than {_NODES:,} tensors, dictionaries and lists")
    if not (levels := below):
      return
  raise ConfigError(
    f"{path}: its dictionaries and lists are nested in more than {_DEPTH} levels. {describe_conversion(path)}"
  )


def _list_children(value: Any) -> Iterator[tuple[Any, Any]]:
  """Yields (key, value) inside of a dictionary, a list or a placeholder."""
  if isinstance(value, Mapping):
    yield from value.items()
  elif not isinstance(value, Placeholder):
    yield from enumerate(value)
  elif isinstance(value.state, Mapping) and {"_parameters", "_modules"} <= value.state.keys():
    yield from _list_module_items(value.state)
  else:
    yield from enumerate((*value.arguments, *value.elements))
    yield from value.items.items()
    for state in value.state if isinstance(value.state, tuple) else (value.state,):  # (attributes, slots)
      if isinstance(state, Mapping):
        yield from state.items()


def _list_module_items(state: Mapping[str, Any]) -> Iterator[tuple[Any, Any]]:
  """Yields the items in the state dict of a pickled module."""
  computed = state.get("_non_persistent_buffers_set") or []
  for group in ("_parameters", "_buffers", "_modules"):
    if isinstance(state.get(group), Mapping):
      yield from ((key, value) for key, value in state[group].items() if group != "_buffers" or key not in computed)


def _check_tensor(path: pathlib.Path, name: str, placeholder: Placeholder) -> None:
  """Raises ConfigError for unsupported tensors: sparse, quantised, or a subclass that contains other tensors."""
  if placeholder.name.startswith(("torch._utils._rebuild", "torch._tensor._rebuild")):
    raise ConfigError(
      f"{path}: {show(name)} is made by {show(placeholder.name)}, which is not read. Allowed: dense tensors of plain "
      f"numbers. {describe_conversion(path)}"
    )


def _create_tensor(path: pathlib.Path, name: str, dense: _Dense, starts: Any) -> Tensor:
  """Returns a tensor that reads its values on demand. Raises ConfigError if values are missing in the file."""
  storage, dtype, offset, shape, strides = dense
  if any(type(n) is not int for n in (*shape, *strides, offset, storage.first)):  # possibly too large to print
    raise ConfigError(f"{path}: {show(name)} has a shape or strides that are not integers")
  if len(shape) != len(strides) or min(*shape, *strides, offset, storage.first, 0) < 0:
    raise ConfigError(f"{path}: {show(name)} has the shape {show(shape)} with the strides {show(strides)}")
  start, held = starts.get(storage.key, (0, 0))
  stored = storage.dtype if storage.dtype is not None else dtype
  first = storage.first * stored.itemsize + offset * dtype.itemsize
  span = math.prod(shape) and 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
  if first + span * dtype.itemsize > held or math.prod(shape) * dtype.itemsize > held:
    raise ConfigError(f"{path}: {show(name)} has the shape {show(shape)}, and fewer values than that")

  def values() -> np.ndarray:
    raw = np.fromfile(path, np.uint8, span * dtype.itemsize, offset=start + first)
    if raw.size < span * dtype.itemsize:
      raise EOFError("it is truncated within its tensors")
    steps = [stride * dtype.itemsize for stride in strides]
    return np.ascontiguousarray(np.lib.stride_tricks.as_strided(raw.view(dtype), shape, steps))

  return Tensor(shape, dtype, guard_read(path, values))

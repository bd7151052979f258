"""A parser for pickles that treats them as data: it never imports a module and never calls a function.

`pickletools` of the standard library splits a pickle into instructions. They are executed here on plain values only:
numbers, strings, dictionaries, lists, and placeholders for all other objects. Loading a pickle with `pickle` would call
any function that it names.
"""

import dataclasses
import itertools
import pickle
import pickletools
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import Any, BinaryIO

# Limits above those of all weight files, and low enough to parse within a minute.
_INSTRUCTIONS, _LONGEST = 10_000_000, 2**28
# Functions that start programs, run code or change files. Weight files never call them, so a file that does is rejected
# as an attack. Safety does not depend on this list, because functions in a pickle are never called.
_ATTACK = re.compile(
  r"(os|posix|nt|sys|shutil|socket|importlib|runpy|pty|webbrowser)\.[a-z]\w*|(subprocess|commands|ctypes)\..*"
  r"|(builtins|__builtin__)\.(eval|exec|execfile|compile|open|__import__|breakpoint|input)|_?io\.(open|FileIO)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class GlobalName:
  """A class or function that a pickle refers to, as "module.name", for example "argparse.Namespace"."""

  full: str


class Placeholder:
  """A placeholder for an object that is not created. It contains the call in the pickle and its arguments.

  Attributes:
    name: name of the class or function.
    arguments: arguments of the call.
    state: state of the object, usually a dictionary of its attributes.
    items: items, if the object is a kind of dictionary.
    elements: elements, if the object is a kind of list.
  """

  __slots__ = ("arguments", "elements", "items", "name", "state")

  def __init__(self, name: str, arguments: tuple[object, ...]) -> None:
    self.name, self.arguments = name, arguments
    self.state: Any = None
    self.items: dict[str, Any] = {}
    self.elements: list[Any] = []

  def __repr__(self) -> str:
    return f"<{self.name}>"


UNKNOWN = object()  # result of a `BuildObject` for an unknown call
BuildObject = Callable[[str, tuple[Any, ...]], Any]  # function (name of a class or function, arguments) -> value


def load_pickle(file: BinaryIO, build: BuildObject, storage: Callable[[Any], object]) -> Any:
  """Parses the pickle at the current position of a file, and moves the position behind it.

  Args:
    file: file that is open for reading bytes.
    build: function that returns the value of a call. UNKNOWN leaves a `Placeholder`.
    storage: function that returns the value for a persistent id. torch.save refers to the values of tensors with these
      ids.

  Returns:
    The value, with placeholders for all objects that `build` does not know.

  Raises:
    pickle.UnpicklingError: if the pickle is damaged or too long.
    AttackError: if the pickle calls a function that only malicious files call.
  """
  machine = _Machine(build, storage)
  instructions = pickletools.genops(_Bounded(file))  # type: ignore[arg-type]
  for code, argument, _ in itertools.islice(instructions, _INSTRUCTIONS):
    if code.name == "STOP":
      return machine.stack.pop()
    machine.run(code.name, argument)
  raise pickle.UnpicklingError(f"its pickle has more than {_INSTRUCTIONS:,} instructions")


class _Bounded:
  """A file that rejects reads of more bytes than a value of a pickle may have, before memory is allocated."""

  def __init__(self, file: BinaryIO) -> None:
    self.file, self.tell = file, file.tell

  def read(self, size: int) -> bytes:
    if size > _LONGEST:
      raise pickle.UnpicklingError(f"its pickle has a value of {size:,} bytes. Allowed: {_LONGEST:,}")
    return self.file.read(size)

  def readline(self) -> bytes:
    return self.file.readline(2**16)


_MARK = object()
# Instructions with a value as argument.
_VALUES = {
  *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING"),
  *("SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "SHORT_BINUNICODE"),
  *("BINUNICODE", "BINUNICODE8"),
}
_MAKERS: Mapping[str, Callable[[], Any]] = {
  "NONE": lambda: None,
  "NEWTRUE": lambda: True,
  "NEWFALSE": lambda: False,
  "EMPTY_TUPLE": tuple,
  "EMPTY_LIST": list,
  "EMPTY_DICT": dict,
  "EMPTY_SET": list,
  "MARK": lambda: _MARK,
}
# Keys of dictionaries, also in a short tuple. The hash of nested or long tuples and of huge numbers may need unlimited
# time, and that of nested tuples also unlimited stack.
_KEYS = (str, bytes, int, float, type(None), GlobalName, Placeholder)
_KEY_PARTS, _KEY_BITS = 16, 4096
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_IGNORED = {"PROTO", "FRAME"}


class _Machine:
  """The stack and the memo of a pickle, with the effects of its instructions. Sets become lists."""

  def __init__(self, build: BuildObject, storage: Callable[[Any], object]) -> None:
    self.build, self.storage = build, storage
    self.stack: list[Any] = []
    self.memo: dict[int, Any] = {}
    self.copied = 0  # number of values that calls of `_PLAIN` have copied

  def run(self, name: str, argument: object) -> None:
    """Executes one instruction."""
    if name in _VALUES:
      self.stack.append(argument)
    elif name in _MAKERS:
      self.stack.append(_MAKERS[name]())
    elif name in _TUPLES:
      self.stack.append(tuple(self._pop(_TUPLES[name])))
    elif name not in _IGNORED:
      self._run(name, argument)

  def _run(self, name: str, argument: Any) -> None:
    stack = self.stack
    match name:
      case "PUT" | "BINPUT" | "LONG_BINPUT":
        self.memo[argument] = stack[-1]
      case "MEMOIZE":
        self.memo[len(self.memo)] = stack[-1]
      case "GET" | "BINGET" | "LONG_BINGET":
        stack.append(self.memo[argument])
      case "GLOBAL":
        stack.append(_create_name(*argument.split(" ", 1)))
      case "STACK_GLOBAL":
        stack.append(_create_name(*self._pop(2)))
      case "BINPERSID":
        stack.append(self.storage(stack.pop()))
      case "POP":
        stack.pop()
      case "DUP":
        stack.append(stack[-1])
      case "APPEND" | "SETITEM" | "BUILD" | "REDUCE" | "NEWOBJ" | "NEWOBJ_EX":
        self._change(name, self._pop({"SETITEM": 2, "NEWOBJ_EX": 2}.get(name, 1)))
      case _:
        self._run_on_marked(name, argument)

  def _run_on_marked(self, name: str, argument: Any) -> None:
    """Executes an instruction on the values since the last mark."""
    if name not in ("POP_MARK", "TUPLE", "LIST", "DICT", "FROZENSET", "APPENDS", "ADDITEMS", "SETITEMS", "INST", "OBJ"):
      raise pickle.UnpicklingError(f"its pickle has the instruction {name}, which no file of weights needs")
    start = next((i for i in range(len(self.stack) - 1, -1, -1) if self.stack[i] is _MARK), None)
    if start is None:
      raise pickle.UnpicklingError("its pickle uses values that do not exist")
    values = self.stack[start + 1 :]
    del self.stack[start:]
    match name:
      case "TUPLE" | "FROZENSET":
        self.stack.append(tuple(values))
      case "LIST":
        self.stack.append(values)
      case "DICT":
        self.stack.append(_create_dict(values))
      case "APPENDS" | "ADDITEMS":
        self._change("APPEND", values)
      case "SETITEMS":
        self._change("SETITEM", values)
      case "INST":
        self.stack.append(self._called(_create_name(*argument.split(" ", 1)), tuple(values)))
      case "OBJ":
        self.stack.append(self._called(values[0], tuple(values[1:])))

  def _change(self, name: str, values: Any) -> None:
    """Executes an instruction on the value at the top of the stack."""
    target = self.stack[-1]
    match name:
      case "APPEND":
        _find_container(target, list, "elements").extend(values)
      case "SETITEM":
        _find_container(target, dict, "items").update(_create_dict(values))
      case "BUILD":  # The attributes of a dictionary are ignored, for example the module versions of a state dict.
        if isinstance(target, Placeholder):
          target.state = values[0]
        elif not isinstance(target, dict):
          raise pickle.UnpicklingError(f"its pickle sets the state of a {type(target).__name__}")
      case "NEWOBJ_EX":
        self.stack[-1] = self._called(target, (*_check_tuple(values[0]), values[1]))
      case _:
        self.stack[-1] = self._called(target, _check_tuple(values[0]))

  def _called(self, target: object, arguments: Any) -> Any:
    """Returns the value of a call, or a placeholder for it."""
    if not isinstance(target, GlobalName | Placeholder):
      raise pickle.UnpicklingError(f"its pickle calls a {type(target).__name__}")
    name = target.full if isinstance(target, GlobalName) else target.name
    if _ATTACK.fullmatch(name):
      raise AttackError(name)
    if name in _PLAIN and isinstance(target, GlobalName):
      self.copied += sum(len(each) for each in arguments if isinstance(each, Sized))
      if self.copied > _INSTRUCTIONS:
        raise pickle.UnpicklingError(f"its pickle copies more than {_INSTRUCTIONS:,} values")
      return _PLAIN[name](*arguments)
    value = self.build(name, arguments) if isinstance(target, GlobalName) else UNKNOWN
    return Placeholder(name, arguments) if value is UNKNOWN else value

  def _pop(self, count: int) -> Any:
    values = self.stack[-count:]
    if len(values) < count or any(value is _MARK for value in values):
      raise pickle.UnpicklingError("its pickle uses values that do not exist")
    del self.stack[-count:]
    return values


class AttackError(pickle.UnpicklingError):
  """An error for a pickle that would start a program, run code or change files.

  The argument is the name of the function.
  """


def _create_name(module: str, name: str) -> Any:
  if not isinstance(module, str) or not isinstance(name, str):
    raise pickle.UnpicklingError("its pickle has a name that is not text")
  return GlobalName(f"{module}.{name}")


def _create_dict(values: Sequence[object]) -> dict[Any, Any]:
  if len(values) % 2:
    raise pickle.UnpicklingError("its pickle has a key without a value")
  for key in values[::2]:
    parts = key if type(key) is tuple else (key,)
    if len(parts) > _KEY_PARTS or any(isinstance(part, int) and part.bit_length() > _KEY_BITS for part in parts):
      raise pickle.UnpicklingError("its pickle has a key that is a long tuple or contains a huge number")
    for part in parts:
      if not isinstance(part, _KEYS):
        raise pickle.UnpicklingError(f"its pickle has a key that is or contains a {type(part).__name__}")
  return dict(zip(values[::2], values[1::2], strict=True))


def _copy_dict(contents: object = ()) -> dict[Any, Any]:
  """Returns the value of a call of `dict` with a dictionary, or with a list of keys and values in pairs."""
  if isinstance(contents, dict):
    return dict(contents)
  if not isinstance(contents, list | tuple) or any(not isinstance(p, list | tuple) or len(p) != 2 for p in contents):
    raise pickle.UnpicklingError("its pickle makes a dictionary of values that are not pairs")
  return _create_dict([part for pair in contents for part in pair])


# Containers that are created as plain values.
_PLAIN: Mapping[str, Callable[..., Any]] = {
  **dict.fromkeys(("collections.OrderedDict", "collections.Counter", "builtins.dict", "__builtin__.dict"), _copy_dict),
  **dict.fromkeys(("builtins.set", "builtins.frozenset", "__builtin__.set", "__builtin__.frozenset"), list),
  "collections.defaultdict": lambda *factory: {},
}


def _check_tuple(value: object) -> tuple[Any, ...]:
  if not isinstance(value, tuple):
    raise pickle.UnpicklingError(f"its pickle calls a function with a {type(value).__name__} of arguments")
  return value


def _find_container(target: object, kind: type[object], attribute: str) -> Any:
  """Returns the container that an instruction changes: the value itself, or a container of a placeholder."""
  if isinstance(target, Placeholder):
    return getattr(target, attribute)
  if not isinstance(target, kind):
    raise pickle.UnpicklingError(f"its pickle changes a {type(target).__name__} as if it were a {kind.__name__}")
  return target

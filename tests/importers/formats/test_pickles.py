"""Tests that pickles are parsed to the values of `pickle`, and that no code in them runs."""

import argparse
import collections
import fractions
import io
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vit_jax.importers.formats import pickles
from vit_jax.importers.formats.pickles import Placeholder
from vit_jax.storage import files


def load(data: bytes, build=lambda name, arguments: pickles.UNKNOWN, storage=lambda pid: ("stored", pid)):
  return pickles.load_pickle(io.BytesIO(data), build, storage)


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
  LEAVES,
  lambda inside: st.lists(inside) | st.dictionaries(st.text() | st.integers(), inside) | st.tuples(inside, inside),
  max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_match_pickle(value, protocol):
  data = pickle.dumps(value, protocol)
  assert load(data) == pickle.loads(data) == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_standard_library_containers_become_plain_containers(protocol):
  ordered = collections.OrderedDict(b=1, a=[2])
  value = [ordered, collections.Counter("aab"), collections.defaultdict(list, x=[1]), {1, 2}, frozenset("a")]
  data = pickle.dumps(value, protocol)
  first, counted, default, numbers, letters = load(data)
  assert list(first.items()) == [("b", 1), ("a", [2])] and counted == {"a": 2, "b": 1} and default == {"x": [1]}
  assert sorted(numbers) == [1, 2] and list(letters) == ["a"]
  assert all(type(each) in (dict, list, tuple) for each in (first, counted, default, numbers, letters))


def test_value_with_two_references_is_one_object():
  inside: list = [1]
  loop = {"a": inside, "b": inside}
  loop["c"] = loop
  result = load(pickle.dumps(loop))
  assert result["a"] is result["b"] and result["c"] is result


def test_several_pickles_of_a_file_are_read_in_sequence():
  file = io.BytesIO(pickle.dumps([1]) + pickle.dumps({"a": 2}) + b"rest")
  unknown = (lambda name, arguments: pickles.UNKNOWN), (lambda pid: pid)
  assert (pickles.load_pickle(file, *unknown), pickles.load_pickle(file, *unknown), file.read()) == (
    [1],
    {"a": 2},
    b"rest",
  )


class Config(dict):
  """A dictionary with attributes, like those of yacs and Lightning."""


class History(list):
  """A list with attributes."""


class Slotted:
  __slots__ = ("a", "b")


def objects():
  config, history, slotted = Config(lr=0.1), History([1, 2]), Slotted()
  config.frozen, history.name, slotted.a, slotted.b = True, "loss", 1, 2
  yield argparse.Namespace(lr=1), "argparse.Namespace", {"state": {"lr": 1}}
  yield config, f"{__name__}.Config", {"items": {"lr": 0.1}, "state": {"frozen": True}}
  yield history, f"{__name__}.History", {"elements": [1, 2], "state": {"name": "loss"}}
  yield slotted, f"{__name__}.Slotted", {"state": (None, {"a": 1, "b": 2})}
  yield pathlib.PurePosixPath("/a/b"), None, {"arguments": ("/", "a", "b")}


@pytest.mark.parametrize(("value", "name", "parts"), list(objects()), ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_objects_become_placeholders_with_their_arguments_and_state(value, name, parts, protocol):
  if isinstance(value, pathlib.PurePath) and sys.version_info >= (3, 12):
    parts = {}  # Python 3.12 pickles paths with other arguments
  result = load(pickle.dumps([value, value], protocol))
  assert result[0] is result[1] and isinstance(result[0], Placeholder)
  assert name is None or result[0].name == name
  assert {key: getattr(result[0], key) for key in parts} == parts


@pytest.mark.parametrize("value", [np.float64(3), np.arange(3), np.dtype("f4")], ids=repr)
def test_numpy_values_become_placeholders(value):
  assert load(pickle.dumps(value, 2)).name.startswith("numpy")


def test_build_and_storage_callbacks_create_values():
  def build(name, arguments):
    return fractions.Fraction(*arguments) if name == "fractions.Fraction" else pickles.UNKNOWN

  class Pickler(pickle.Pickler):
    def persistent_id(self, value):
      return ("storage", 7) if value is io else None

  file = io.BytesIO()
  Pickler(file, 2).dump([fractions.Fraction(1, 3), io])
  assert load(file.getvalue(), build) == [fractions.Fraction(1, 3), ("stored", ("storage", 7))]


# Attacks.


class Attack:
  """An object that calls a function when it is unpickled."""

  def __init__(self, function, *arguments):
    self.call = function, arguments

  def __reduce__(self):
    return self.call


CALLS = [
  (os.system, "touch owned"),
  (subprocess.Popen, ["touch", "owned"]),
  (subprocess.check_output, ["touch", "owned"]),
  (eval, "open('owned', 'w')"),
  (exec, "open('owned', 'w')"),
  (open, "owned", "w"),
  (__import__, "owned_module"),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call[0].__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_calls_that_run_programs_are_an_error_and_not_run(tmp_path, monkeypatch, call, protocol):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(pickles.AttackError, match=call[0].__name__):
    load(pickle.dumps({"a": [Attack(*call)]}, protocol))
  assert not list(tmp_path.iterdir())


def text(value: str) -> bytes:
  """Returns the instruction that pushes a text."""
  return b"\x8c" + bytes([len(value)]) + value.encode()


TOUCH = b"(" + text("touch owned") + b"t"
SYSTEM = b"cposixpath\nos\n" + text("system")  # a module under the name of another one, and its function
# Pickles that would create the file `owned` in ways that a list of forbidden names does not cover.
INDIRECT = {
  "a module that is not imported": b"cowned_module\nThing\n)R.",
  "a module by the stack": b"\x80\x04" + text("owned_module") + text("Thing") + b"\x93)R.",
  "an instance of it": b"(iowned_module\nThing\n.",
  "an object of it": b"(cowned_module\nThing\no.",
  "a new object of it": b"\x80\x02cowned_module\nThing\n)\x81.",
  "a new object with words": b"\x80\x04cowned_module\nThing\n)}\x92.",
  "a function by getattr": b"cbuiltins\ngetattr\n(" + SYSTEM + b"tR" + TOUCH + b"R.",
  "a function by its attribute": b"coperator\nattrgetter\n("
  + text("system")
  + b"tR(cposixpath\nos\ntR"
  + TOUCH
  + b"R.",
  "a partial function": b"cfunctools\npartial\n(cposix\nsystem\n" + text("touch owned") + b"tR)R.",
  "a map over a function": b"cbuiltins\nlist\n(cbuiltins\nmap\n(cposix\nsystem\n(" + text("touch owned") + b"ltRtR.",
  "a state that is set by code": (
    b"cowned_module\nThing\n)R}" + text("__setstate__") + b"cposix\nsystem\nsb" + text("touch owned") + b"b."
  ),
  "a state of a class": b"cowned_module\nThing\n}" + text("__setstate__") + b"cos\nsystem\nsb.",
  "attributes that lists have": b"cowned_module\nThing\n)R}" + text("append") + b"cos\nsystem\nsb" + text("x") + b"a.",
  "numpy's loader": b"cnumpy\nload\n(" + text("owned") + b"tR.",
  "a call of a text": text("owned") + b")R.",
  "a call of a dictionary": b"})R.",
  "a state of a list": b"]}b.",
  "an extension": b"\x82\x01.",
  "a long extension": b"\x84\x01\0\0\0.",
  "an id in text": b"Powned\n.",
  "a buffer from outside": b"\x80\x05\x97.",
}


@pytest.mark.parametrize("name", [name for name in INDIRECT if "function" in name])
def test_attacks_work_on_pickle_itself(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  pickle.loads(INDIRECT[name])
  assert (tmp_path / "owned").exists()


@pytest.mark.parametrize("name", INDIRECT)
def test_pickles_cannot_import_modules_or_call_functions(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(str(tmp_path))
  (tmp_path / "owned_module.py").write_text("open('owned', 'w')\nclass Thing: pass\n")
  before = set(sys.modules)
  try:
    value = load(INDIRECT[name])
  except (pickle.UnpicklingError, *files.DAMAGE):
    value = Placeholder("refused", ())
  assert isinstance(value, Placeholder | pickles.GlobalName | list)
  assert set(sys.modules) == before and [path.name for path in tmp_path.iterdir()] == ["owned_module.py"]


def deep(count: int, innermost: bytes, around: bytes) -> bytes:
  return innermost + around * count


DAMAGED = {
  "no bytes": b"",
  "no end": b"]",
  "an end alone": b".",
  "an unknown instruction": b"\xff.",
  "a mark that is not there": b"]e.",
  "values that do not exist": b"]\x86.",
  "a key without a value": b"}(Nu.",
  "a pair of a mark": b"(N\x86.",
  "a memo that is not there": b"h\x07.",
  "a memo far away": b"Nr\xff\xff\xff\xff0j\xfe\xff\xff\xff.",
  "a text of 2^62 bytes": b"\x8d" + struct.pack("<Q", 2**62) + b"a.",
  "bytes of 2^40": b"\x8e" + struct.pack("<Q", 2**40) + b"a.",
  "an array of bytes of 2^62": b"\x96" + struct.pack("<Q", 2**62) + b"a.",
  "a number of 2^31 bytes": b"\x8b\xff\xff\xff\x7f.",
  "a number of 10,000 digits": b"L" + b"9" * 10_000 + b"L\n.",
  "a list as a key": b"}]Ns.",
  "a deep tuple as a key": b"}" + deep(100_000, b")", b"\x85") + b"Ns.",
  "a wide tuple as a key": b"}" + deep(64, b")", b"2\x86") + b"Ns.",
  "a deep tuple as a key of a call": b"ccollections\nOrderedDict\n]" + deep(200_000, b")", b"\x85") + b"N\x86a\x85R.",
  "a wide tuple as a key of a call": b"ccollections\nOrderedDict\n]" + deep(64, b")", b"2\x86") + b"N\x86a\x85R.",
  "a long tuple as a key": b"}(" + b"N" * 10_000 + b"tNs.",
  "a huge number as a key": b"}\x8b" + struct.pack("<I", 1000) + b"\x01" * 1000 + b"Ns.",
  "a call of a dictionary with a number": b"ccollections\nOrderedDict\nK\x01\x85R.",
  "lists that are copied many times": b"](" + b"N" * 10_000 + b"e" + b"0cbuiltins\nset\nh\x00\x85R" * 10_000 + b".",
  "a name of a number": b"K\x01K\x02\x93.",
  "a call with a list": b"ca\nb\n]R.",
  "a tuple that grows": b")Na.",
  "a number with items": b"K\x01(NNu.",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_and_huge_pickles_are_errors_that_need_little_memory(name):
  tracemalloc.start()
  try:
    with pytest.raises((pickle.UnpicklingError, *files.DAMAGE)):
      load(DAMAGED[name])
    assert tracemalloc.get_traced_memory()[1] < 2**28
  finally:
    tracemalloc.stop()


def test_deeply_nested_values_need_no_recursion():
  assert load(deep(100_000, b"]", b"]a").replace(b"]a", b"\x85") + b".") is not None


def test_too_many_instructions_are_an_error(monkeypatch):
  monkeypatch.setattr(pickles, "_INSTRUCTIONS", 1000)
  with pytest.raises(pickle.UnpicklingError, match="more than 1,000 instructions"):
    load(b"]" + b"Na" * 1000 + b".")

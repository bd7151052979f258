"""Tests of PyTorch files made by hand, with tensors that may refer to values outside of the file."""

import functools
import io
import pickle
import struct
import zipfile

import numpy as np
import pytest

from vit_jax.importers.formats import containers, torch_files
from vit_jax.schema import ConfigError

torch = pytest.importorskip("torch", reason="needs pip install -e '.[test]'")


class _Reference:
  """A reference of a pickle by name or by persistent id."""

  def __init__(self, name=None, pid=None):
    self.name, self.pid = name, pid

  def __reduce__(self):
    return self.name


class Pickler(pickle._Pickler):
  """Writes references as torch.save does."""

  def save(self, obj, save_persistent_id=True):
    if isinstance(obj, _Reference) and obj.pid is not None:
      self.save(obj.pid, save_persistent_id=False)
      self.write(pickle.BINPERSID)
    elif isinstance(obj, _Reference):
      self.write(b"c" + obj.name.replace(" ", "\n").encode() + b"\n")
    elif isinstance(obj, _Call):
      self.save(_Reference(obj.name))
      self.save(obj.arguments)
      self.write(pickle.REDUCE)
    else:
      super().save(obj, save_persistent_id)


class _Call:
  def __init__(self, name, *arguments):
    self.name, self.arguments = name, arguments


def tensor(
  offset=0, shape=(3,), strides=(1,), key="0", kind="torch FloatStorage", count=3, function="_rebuild_tensor_v2"
):
  pid = ("storage", _Reference(kind), key, "cpu", count)
  return _Call(f"torch._utils {function}", _Reference(pid=pid), offset, shape, strides, False, None)


def write_file(path, value, values=bytes(12), key="0"):
  file = io.BytesIO()
  Pickler(file, 2).dump(value)
  with zipfile.ZipFile(path, "w") as archive:
    archive.writestr("x/data.pkl", file.getvalue())
    archive.writestr("x/version", "3\n")
    archive.writestr(f"x/data/{key}", values)
  return path


def test_file_made_by_hand_is_read(tmp_path):
  path = write_file(tmp_path / "x.pth", {"w": tensor()}, struct.pack("<3f", 1, 2, 3))
  assert np.asarray(torch_files.read(path)[0]["w"]).tolist() == [1, 2, 3]
  assert torch.load(path, weights_only=True)["w"].tolist() == [1, 2, 3]


# A tuple that a file stores in a few hundred bytes, and whose text would have 2^60 characters.
DOUBLED = functools.reduce(lambda inner, _: (inner, inner), range(60), ())
HOSTILE = {
  "values before the first": {"offset": -1},
  "values after the last": {"offset": 1},
  "more values": {"shape": (4,)},
  "10^30 values": {"shape": (10**30,)},
  "10^30 values by a stride of zero": {"shape": (10**30,), "strides": (0,)},
  "a huge stride": {"shape": (2,), "strides": (2**62,)},
  "a stride below zero": {"strides": (-1,)},
  "a shape below zero": {"shape": (-3,)},
  "a shape of truth": {"shape": (True,)},
  "a shape of texts": {"shape": ("3",)},
  "a shape with an endless text": {"shape": DOUBLED},
  "strides with an endless text": {"strides": DOUBLED},
  "no strides": {"strides": ()},
  "values of another key": {"key": "1"},
  "values of a file outside": {"key": "../../../../../etc/passwd"},
  "larger numbers": {"kind": "torch DoubleStorage"},
  "an unknown type": {"kind": "torch QInt8Storage"},
  "a module as a type": {"kind": "os system"},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_tensors_with_values_outside_of_the_file_are_errors(tmp_path, name):
  path = write_file(tmp_path / "x.pth", {"w": tensor(**HOSTILE[name])})
  with pytest.raises(ConfigError, match=r"x\.pth: "):
    containers.read(path)


@pytest.mark.parametrize(
  "value",
  [
    {"w": _Call("torch._utils _rebuild_tensor_v2")},
    {"w": _Call("torch._utils _rebuild_tensor_v2", 1, 0, (3,), (1,), False, None)},
    {"w": _Call("torch._utils _rebuild_parameter", "text", True, None)},
    {"w": _Call("torch._tensor _rebuild_from_type_v2", _Reference("os system"), None, ("touch owned",), None)},
    {"w": _Reference(pid=("module", 1))},
    {"w": _Reference(pid=("storage", "torch.FloatStorage", "0", "cpu", 3))},
    {"w": _Reference(pid="0")},
    {"w": _Reference(pid=DOUBLED)},
  ],
  ids=range(8),
)
def test_calls_with_other_arguments_are_errors_and_not_run(tmp_path, monkeypatch, value):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=r"x\.pth: "):
    containers.read(write_file(tmp_path / "x.pth", value))
  assert [path.name for path in tmp_path.iterdir()] == ["x.pth"]

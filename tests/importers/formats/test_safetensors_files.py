"""Tests of .safetensors files against the format's library, of sharded models, and of memory use."""

import functools
import json
import pathlib
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from vit_jax import importers
from vit_jax.importers.formats import containers, safetensors_files
from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.schema import ConfigError

ARRAYS = {
  "b": np.arange(6, dtype=np.float32).reshape(2, 3),
  "a": np.array([1.5, -2, 3], np.float16),
  "c": np.array([[0.1], [3e30]], ml_dtypes.bfloat16),
  "none": np.zeros((1, 0, 4), np.float32),
  "scalar": np.array(2.5, np.float64),
  "big endian": np.arange(3, dtype=">f4"),
  "å": np.arange(8, dtype=np.float32).reshape(2, 4).T,
}


def contents(path):
  """Returns the header of a file, the bytes of its values, and the header's length."""
  data = path.read_bytes()
  length = int.from_bytes(data[:8], "little")
  return json.loads(data[8 : 8 + length]), data[8 + length :], length


def test_written_files_match_those_of_the_library(tmp_path):
  mine, theirs = tmp_path / "mine.safetensors", tmp_path / "theirs.safetensors"
  # The library orders types of equal width differently.
  arrays = {name: array for name, array in ARRAYS.items() if name != "c"}
  safetensors_files.write(mine, arrays, {"format": "pt"})
  native = {name: np.asarray(array, array.dtype.newbyteorder("="), order="C") for name, array in arrays.items()}
  safetensors.numpy.save_file(native, theirs, metadata={"format": "pt"})
  assert contents(mine) == contents(theirs)


def test_library_reads_every_written_type(tmp_path):
  safetensors_files.write(tmp_path / "x.safetensors", ARRAYS, {})
  back = safetensors.numpy.load_file(tmp_path / "x.safetensors")
  assert back.keys() == ARRAYS.keys()
  assert all(np.array_equal(back[name], array) for name, array in ARRAYS.items())


def test_values_are_read_in_sequence_and_not_kept(tmp_path):
  alive = weakref.WeakValueDictionary()

  def read(i):
    assert len(alive) <= 1  # the next array replaces it
    alive[i] = array = np.full(1000, i, np.float32)
    return array

  tensors = {str(i): Tensor((1000,), np.float32, functools.partial(read, i)) for i in range(5)}
  safetensors_files.write(tmp_path / "x.safetensors", tensors, {})
  back = safetensors.numpy.load_file(tmp_path / "x.safetensors")
  assert all(np.all(back[str(i)] == i) for i in range(5)) and len(back) == 5


def test_unreadable_value_leaves_no_partial_file(tmp_path):
  def refuse():
    raise ConfigError("is damaged")

  with pytest.raises(ConfigError, match="is damaged"):
    containers.write(tmp_path / "x.safetensors", {"a": np.ones(3), "b": Tensor((2,), np.float32, refuse)}, {})
  assert not list(tmp_path.iterdir())


# Sharded models.


def sharded(folder, places=None):
  """Writes an index and the two files that it lists, and returns the arrays."""
  arrays = {name: np.full(3, i, np.float32) for i, name in enumerate("abcd")}
  names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
  for name, part in zip(names, ("ab", "cd"), strict=True):
    safetensors.numpy.save_file({key: arrays[key] for key in part}, folder / name)
  listed = {key: names[key in "cd"] for key in arrays} | (places or {})
  (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
  return arrays


@pytest.mark.parametrize("name", ["", "model.safetensors.index.json", "model-00002-of-00002.safetensors"])
def test_sharded_model_is_read_by_folder_index_or_any_shard(tmp_path, name):
  arrays = sharded(tmp_path)
  (tmp_path / "config.json").write_text(json.dumps({"num_attention_heads": 6}))
  tensors, hints = containers.read(tmp_path / name)
  assert tensors.keys() == arrays.keys() and hints["heads"] == 6
  assert all(np.array_equal(tensors[key], arrays[key]) for key in arrays)


def test_one_shard_without_its_index_is_an_error(tmp_path):
  sharded(tmp_path)
  (tmp_path / "model.safetensors.index.json").unlink()
  with pytest.raises(ConfigError, match=r"model-00001-of-00002\.safetensors: this is one of 2 files of a model"):
    containers.read(tmp_path / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize(
  ("places", "message"),
  [
    ({"a": "../model.safetensors"}, "Allowed: a .safetensors file in the same folder for each tensor"),
    ({"a": "/etc/model.safetensors"}, "Allowed: a .safetensors file in the same folder for each tensor"),
    ({"a": "model.bin"}, "Allowed: a .safetensors file in the same folder for each tensor"),
    ({"a": 3}, "Allowed: a .safetensors file in the same folder for each tensor"),
    (
      {"a": "model-00002-of-00002.safetensors"},
      "'a' is not in model-00002-of-00002.safetensors, contrary to the index",
    ),
    ({"a": "model-00003-of-00003.safetensors"}, "lists no tensor of model-00001-of-00003.safetensors"),
  ],
)
def test_false_index_is_an_error(tmp_path, places, message):
  sharded(tmp_path, places)
  with pytest.raises(ConfigError) as error:
    importers.inspect(tmp_path)
  assert message in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize("values", ["{}", '{"weight_map": {}}', '{"weight_map": [1]}', "[1]", "{"])
def test_index_without_a_weight_map_is_an_error(tmp_path, values):
  (tmp_path / "model.safetensors.index.json").write_text(values)
  with pytest.raises(ConfigError, match=r"index\.json"):
    importers.inspect(tmp_path)


# Memory.

CONVERT = """
import json, pathlib, resource, sys
import numpy as np
from vit_jax import convert, importers
from vit_jax.importers import layout
from vit_jax.importers.formats import safetensors_files
from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.models import Description
from vit_jax.schema import Choice


def converted(folder, width):
  described = Description(Choice("vit_small_plus_patch16_dinov3_qkvb", {"width": width, "head": Choice("cls")}), 64, 0)
  made = importers.find_layout(described, "hf")
  arrays = {
    path: Tensor(shape, np.float32, lambda shape=shape: np.ones(shape, np.float32))
    for path, shape in layout.compute_shapes(described).items()
  }
  (folder / "timm").mkdir(parents=True)
  source, target = folder / "model.safetensors", folder / "timm/model.safetensors"
  safetensors_files.write(source, layout.write_lazily(made, arrays, described), {})
  (folder / "config.json").write_text(json.dumps(made.create_config(described)))
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  convert.convert(source, target, "timm", {})
  grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
  return target.stat().st_size, grown


folder = pathlib.Path(sys.argv[1])
converted(folder / "small", 96)  # warms up imports and compilation
print(*converted(folder / "large", 768))
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_size_of_a_converted_file(tmp_path):
  root = pathlib.Path(__file__).parent.parent.parent
  words = [sys.executable, "-c", CONVERT, str(tmp_path)]
  output = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
  size, grown = map(int, output.split())
  assert size > 2e8 and grown < 5e7, (size, grown)

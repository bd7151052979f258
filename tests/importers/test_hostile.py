"""Tests that damaged, false or malicious weights raise one short error before memory is allocated or code runs."""

import tracemalloc

import numpy as np
import pytest

from tests import hostile, hostile_paths
from vit_jax import importers
from vit_jax.schema import ConfigError


def read_error(path):
  """Reads a file, checks that memory use stays below 128 MiB, and returns the error message."""
  tracemalloc.start()
  try:
    with pytest.raises(ConfigError) as caught:
      importers.load(path)
    assert tracemalloc.get_traced_memory()[1] < 2**27
  finally:
    tracemalloc.stop()
  message = str(caught.value)
  assert len(message) < 2500 and message.count("\n") <= 3
  assert not set(message) & set("\x1b\x07")
  return message


@pytest.mark.parametrize("name", hostile.WEIGHTS)
def test_hostile_weights_are_an_error_that_names_the_file(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  if name.startswith("pth"):
    pytest.importorskip("torch")
  path = hostile.weights(tmp_path, name)
  message = read_error(path)
  assert path.name in message and "weights_only" not in message
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", hostile_paths.PATHS)
def test_paths_that_are_not_files_are_an_error_that_names_them(tmp_path, name):
  path = hostile_paths.PATHS[name](tmp_path / "w.npz")
  assert path.name[:100] in read_error(path)


def test_file_name_with_a_zero_byte_is_an_error():
  assert r"'a\x00.npz'" in read_error(hostile_paths.ZERO)


@pytest.mark.parametrize("name", hostile.HUB)
def test_hub_config_of_another_model_is_an_error(tmp_path, name):
  assert "config.json" in read_error(hostile.hub(tmp_path, name))


def test_float16_weights_are_read_as_float32(tmp_path):
  arrays = {name: array.astype(np.float16) for name, array in hostile.good("vit_jax").items()}
  np.savez_compressed(tmp_path / "a.npz", **arrays)
  assert all(array.dtype == np.float32 for array in importers.load(tmp_path / "a.npz")[1].values())

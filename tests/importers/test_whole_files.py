"""Tests that truncated and contradictory weight files raise an error that names the reason."""

import json
import struct
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from tests import archive_files, hostile
from tests.importers.formats.test_safetensors_files import sharded
from vit_jax import importers
from vit_jax.importers.formats import containers
from vit_jax.schema import ConfigError


def check_error(path, message):
  with pytest.raises(ConfigError, match=message) as error:
    containers.read(path)
  assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
  ("cut", "message"),
  [
    (0, "it is empty"),
    (4, "it is truncated, within its header"),
    (30, "it is truncated, within its header"),
    (
      -1,
      r"it is truncated\. Its header lists 4,000 bytes of tensors, but the file contains 3,999. Save or download",
    ),
    (-3999, "but the file contains 1"),
  ],
)
def test_truncated_safetensors_file_is_an_error(tmp_path, cut, message):
  data = safetensors.numpy.save({"a": np.ones(1000, np.float32)})
  path = tmp_path / "x.safetensors"
  path.write_bytes(data[:cut])
  check_error(path, message)
  path.write_bytes(data)
  assert containers.read(path)[0]["a"].shape == (1000,)


def test_bytes_after_the_last_tensor_are_an_error(tmp_path):
  path = tmp_path / "x.safetensors"
  path.write_bytes(safetensors.numpy.save({"a": np.ones(10, np.float32)}) + b"123")
  check_error(path, "it has 3 bytes after the last tensor")


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.pth"])
@pytest.mark.parametrize(
  ("data", "message"),
  [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "it is a pointer of Git LFS"),
    (b"\n<!DOCTYPE html><html>", "it is a web page"),
    (b"", "it is empty"),
  ],
)
def test_error_names_the_content_that_replaces_weights(tmp_path, name, data, message):
  if name == "x.pth":
    pytest.importorskip("torch")
  (tmp_path / name).write_bytes(data)
  check_error(tmp_path / name, message)


def test_truncated_npz_and_torch_files_are_an_error(tmp_path):
  torch = pytest.importorskip("torch")
  np.savez(tmp_path / "x.npz", a=np.ones(1000))
  torch.save({"a": torch.ones(1000)}, tmp_path / "x.pth")
  for path in (tmp_path / "x.npz", tmp_path / "x.pth"):
    path.write_bytes(path.read_bytes()[:-200])
    check_error(path, "it is truncated")


def header(text: str, size: int) -> bytes:
  return struct.pack("<Q", len(text)) + text.encode() + bytes(size)


def test_duplicate_key_in_a_safetensors_header_is_an_error(tmp_path):
  entry = '"a":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
  (tmp_path / "x.safetensors").write_bytes(header("{" + entry % (0, 4) + "," + entry % (4, 8) + "}", 8))
  check_error(tmp_path / "x.safetensors", "the key 'a' occurs twice")
  (tmp_path / "y.safetensors").write_bytes(
    header('{"a":{"dtype":"F32","shape":[1],"shape":[2],"data_offsets":[0,8]}}', 8)
  )
  check_error(tmp_path / "y.safetensors", "the key 'shape' occurs twice")


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "model.safetensors.index.json"])
def test_duplicate_key_in_a_json_file_next_to_weights_is_an_error(tmp_path, name):
  sharded(tmp_path)
  (tmp_path / name).write_text('{"weight_map": {}, "num_attention_heads": 2, "num_attention_heads": 4}')
  with pytest.raises(ConfigError, match="'num_attention_heads' occurs twice"):
    containers.read(tmp_path)


@pytest.mark.parametrize("names", [("a.npy", "a.npy"), ("a.npy", "b.npy", "a.npy"), ("a.npy", "a")])
def test_duplicate_member_of_an_npz_file_is_an_error(tmp_path, names):
  (tmp_path / "x.npz").write_bytes(archive_files.archive(*names))
  check_error(tmp_path / "x.npz", "two members are named 'a'")


def test_duplicate_member_of_a_torch_file_is_an_error(tmp_path):
  torch = pytest.importorskip("torch")
  path = tmp_path / "x.pth"
  torch.save({"a": torch.ones(3)}, path)
  with zipfile.ZipFile(path, "a") as archive:
    name = next(name for name in archive.namelist() if name.endswith("/data/0"))
    with pytest.warns(UserWarning):
      archive.writestr(name, bytes(12))
  check_error(path, "two members are named '.*data/0'")


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_tensor_in_two_shards_is_an_error(tmp_path):
  sharded(tmp_path)
  safetensors.numpy.save_file({key: np.zeros(3, np.float32) for key in "acd"}, tmp_path / SECOND)
  with pytest.raises(ConfigError, match=f"'a' is in {FIRST} and in {SECOND}"):
    containers.read(tmp_path)


def test_tensor_that_the_index_does_not_list_is_an_error(tmp_path):
  sharded(tmp_path)
  safetensors.numpy.save_file({key: np.zeros(3, np.float32) for key in "cde"}, tmp_path / SECOND)
  with pytest.raises(ConfigError, match=f"'e' is in {SECOND}, and the index does not list it"):
    containers.read(tmp_path)


def test_shard_that_the_index_does_not_list_is_an_error(tmp_path):
  sharded(tmp_path)
  index = tmp_path / "model.safetensors.index.json"
  index.write_text(json.dumps({"weight_map": {"a": FIRST, "b": FIRST}}))
  with pytest.raises(ConfigError, match=f"lists no tensor of {SECOND}"):
    containers.read(tmp_path)


def test_one_shard_of_a_pytorch_model_is_an_error(tmp_path):
  (tmp_path / "pytorch_model-00001-of-00003.bin").write_bytes(b"PK")
  check_error(tmp_path / "pytorch_model-00001-of-00003.bin", "this is one of 3 files of a model")


# Class names.

NAMES = {"0": "cat", "1": "dog", "2": "owl"}


def read_labels(folder, **metadata):
  safetensors.numpy.save_file(hostile.good("hf"), folder / "model.safetensors")
  (folder / "config.json").write_text(json.dumps({"num_attention_heads": 2} | metadata))
  return importers.inspect(folder).image_metadata.labels


@pytest.mark.parametrize(
  "numbers", [{"cat": 0, "dog": 1, "owl": 2}, {"cat": "0", "dog": "1", "owl": "2"}, {"dog": 1}, {}]
)
def test_consistent_label2id_is_accepted(tmp_path, numbers):
  assert read_labels(tmp_path, id2label=NAMES, label2id=numbers) == ("cat", "dog", "owl")


@pytest.mark.parametrize(
  ("numbers", "message"),
  [
    ({"cat": 1, "dog": 0, "owl": 2}, "label2id gives 'cat' the number 1, but id2label calls class 1 'dog'"),
    ({"cat": 0, "dog": 1, "owl": 3}, "label2id gives 'owl' the number 3, but id2label has no such class"),
    ({"cat": 0, "elk": 1}, "label2id gives 'elk' the number 1, but id2label calls class 1 'dog'"),
    ({"cat": -1}, "the number -1, but id2label has no such class"),
    ({"cat": None}, "the number None"),
    ({"cat": True}, "the number True"),
    ({"cat": 0.0}, "the number 0.0"),
  ],
)
def test_label2id_that_contradicts_id2label_is_an_error(tmp_path, numbers, message):
  with pytest.raises(ConfigError, match=message):
    read_labels(tmp_path, id2label=NAMES, label2id=numbers)


@pytest.mark.parametrize(
  "names", [{"0": "cat", "2": "owl"}, {"1": "cat", "2": "dog", "3": "owl"}, {"0": "cat", "1": 3}]
)
def test_id2label_with_gaps_is_an_error(tmp_path, names):
  with pytest.raises(ConfigError, match=r"id2label is .* Allowed: a name for each class, from 0 on"):
    read_labels(tmp_path, id2label=names)

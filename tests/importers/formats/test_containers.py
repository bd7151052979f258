"""Tests of vit_jax/importers/formats/containers.py with valid, damaged, malicious and partly written containers."""

import io
import json
import os
import pathlib
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from vit_jax.importers.formats import containers
from vit_jax.schema import ConfigError

ARRAYS = {
  "a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
  "b": np.array([1.5, -2], np.float16),
  "c": np.array([0.1, 3e30], ml_dtypes.bfloat16),
}


def same(tensors, arrays=ARRAYS):
  assert tensors.keys() == arrays.keys()
  for name, array in arrays.items():
    assert tensors[name].shape == array.shape
    np.testing.assert_array_equal(np.asarray(tensors[name], np.float32), np.asarray(array, np.float32))


@pytest.mark.parametrize("ending", containers.WRITTEN)
def test_written_tensors_are_read_back(tmp_path, ending):
  path = tmp_path / f"x{ending}"
  containers.write(path, ARRAYS, {"model": 1})
  tensors, hints = containers.read(path)
  same(tensors)
  assert hints["name"] == path.name
  assert hints.get("description") == ({"model": 1} if ending == ".safetensors" else None)
  assert [p.name for p in tmp_path.iterdir()] == [path.name]  # no partial file


def test_failed_write_leaves_the_old_file(tmp_path):
  path = tmp_path / "x.npz"
  containers.write(path, ARRAYS, {})
  before = path.read_bytes()
  with pytest.raises(TypeError):
    containers.write(path, {"a": ARRAYS["b"], 3: ARRAYS["b"]}, {})
  assert path.read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_tensors_are_read_when_their_values_are_needed(tmp_path):
  path = tmp_path / "x.npz"
  np.savez(path, small=np.ones(3), large=np.ones(100_000))
  tensors, _ = containers.read(path)
  assert tensors["large"].shape == (100_000,) and tensors["large"].dtype == np.float64
  data = bytearray(path.read_bytes())
  middle = data.find(b"large.npy") + 100_000
  data[middle] ^= 255
  path.write_bytes(data)
  tensors, _ = containers.read(path)
  np.testing.assert_array_equal(tensors["small"], np.ones(3))
  with pytest.raises(ConfigError, match=r"x\.npz: cannot be read: .*CRC"):
    np.asarray(tensors["large"])


class Bomb:
  """An object that creates a file when it is unpickled."""

  def __init__(self, path):
    self.path = path

  def __reduce__(self):
    return open, (str(self.path), "w")


def test_pickled_objects_in_npz_are_an_error_and_not_run(tmp_path):
  mark, path = tmp_path / "mark", tmp_path / "x.npz"
  np.savez(path, a=np.array([Bomb(mark)], dtype=object))
  with pytest.raises(ConfigError, match="'a' contains pickled objects, which are never loaded"):
    containers.read(path)
  assert not mark.exists()


def test_pickled_objects_in_pth_are_an_error_and_not_run(tmp_path):
  torch = pytest.importorskip("torch")
  mark, path = tmp_path / "mark", tmp_path / "x.pth"
  torch.save({"state_dict": {"a": torch.ones(2)}, "extra": Bomb(mark)}, path)
  with pytest.raises(ConfigError, match="cannot be read"):
    containers.read(path)
  path.write_bytes(pickle.dumps(Bomb(mark)))
  with pytest.raises(ConfigError, match="cannot be read"):
    containers.read(path)
  assert not mark.exists()


@pytest.mark.parametrize("name", ["x.pth", "x.bin", "x.pth.zip", "x.pt"])
@pytest.mark.parametrize("wrapper", ["", "state_dict", "model"])
@pytest.mark.parametrize("old_format", [False, True])
def test_state_dicts_of_torch_are_found_in_their_wrappers(tmp_path, name, wrapper, old_format):
  torch = pytest.importorskip("torch")
  state = {f"module.{name}": torch.tensor(np.asarray(array, np.float32)) for name, array in ARRAYS.items()}
  state["module.c"] = state["module.c"].to(torch.bfloat16)
  whole = {wrapper: state, "epoch": 3, "arch": "x"} if wrapper else state
  torch.save(whole, tmp_path / name, _use_new_zipfile_serialization=not old_format)
  prefix = f"{wrapper}.module." if wrapper else "module."
  same({key.removeprefix(prefix): tensor for key, tensor in containers.read(tmp_path / name)[0].items()})


def test_torch_file_without_tensors_is_an_error(tmp_path):
  torch = pytest.importorskip("torch")
  torch.save([1, 2], tmp_path / "x.pth")
  with pytest.raises(ConfigError, match="expected a state dict of tensors by name, got a list"):
    containers.read(tmp_path / "x.pth")
  torch.save({"epoch": 3}, tmp_path / "x.pth")
  with pytest.raises(ConfigError, match="contains no tensors"):
    containers.read(tmp_path / "x.pth")


def broken():
  """Yields names and contents of damaged files and files of another format."""
  whole = io.BytesIO()
  np.savez(whole, a=np.ones(1000), b=np.ones(3))
  npz, tensors = whole.getvalue(), safetensors.numpy.save({"a": np.ones(1000, np.float32)})
  text = io.BytesIO()
  with zipfile.ZipFile(text, "w") as archive:
    archive.writestr("a.npy", "no array")
  yield from (("x.npz", npz[:cut]) for cut in (0, 10, len(npz) // 2, len(npz) - 5))
  yield from (("x.safetensors", tensors[:cut]) for cut in (0, 5, 40, len(tensors) - 1))
  yield "x.npz", text.getvalue()
  yield "x.npz", tensors
  yield "x.safetensors", npz
  yield "x.safetensors", b"\xff" * 64
  yield "x.pth", b""
  yield "x.pth", npz
  yield "x.pth", b"\x80\x02]q\x00."


@pytest.mark.parametrize(
  ("name", "data"), list(broken()), ids=lambda value: value if isinstance(value, str) else len(value)
)
def test_damaged_file_is_an_error(tmp_path, name, data):
  if name == "x.pth":
    pytest.importorskip("torch")
  (tmp_path / name).write_bytes(data)
  with pytest.raises(ConfigError, match=name):
    containers.read(tmp_path / name)


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("weights.npz", r"no file .*weights\.npz'\. Did you mean '.*weight\.npz'"),
    ("x.h5", r"cannot read '\.h5'. Allowed: \.npz, \.safetensors, \.pth"),
    (
      ".",
      r"no weights in the folder '.*'\. Expected checkpoints/ .* It contains .*runs, .*weight\.npz: name one of them$",
    ),
    ("data1", r"no weights in the folder '.*data1'\..* Name a file of weights or a workdir$"),
    ("model.safetensors", r"no file '.*model\.safetensors'\. Allowed: \.npz, .*, or a workdir$"),
    ("nowhere/x.npz", r"no file .*x\.npz'\. Allowed: \.npz, .*, or a workdir$"),
    ("run", r"no file .*run'\. Did you mean '.*runs'"),
    ("pipe.npz", r"pipe\.npz' is not a regular file\. Name a file of weights or a workdir$"),
    ("code.npz", r"no file .*code\.npz'\. Allowed: "),
    ("data", r"no file .*data'\. Allowed: "),
    (
      "dinov2_vitg14_reg4_pretrain.pth",
      r"no file .*pth'\. Download it from https://dl\.fbaipublicfiles\.com/dinov2/dinov2_vitg14/"
      r"dinov2_vitg14_reg4_pretrain\.pth, or correct the path$",
    ),
  ],
)
def test_missing_files_and_other_formats_are_errors_with_suggestions(tmp_path, name, message):
  (tmp_path / "weight.npz").write_bytes(b"")
  (tmp_path / "x.h5").write_bytes(b"")
  (tmp_path / "code.py").write_bytes(b"")
  (tmp_path / "data1").mkdir()
  os.mkfifo(tmp_path / "pipe.npz")
  (tmp_path / "runs" / "checkpoints").mkdir(parents=True)
  with pytest.raises(ConfigError, match=message):
    containers.read(tmp_path / name)


@pytest.mark.parametrize("name", ["HF:timm/vit", "timm/vit", "huggingface.co/timm/vit"])
def test_repository_on_the_hub_is_suggested_for_a_missing_file(tmp_path, monkeypatch, name):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=rf"^no file '{name}'. Did you mean hf:timm/vit\?$"):
    containers.read(pathlib.Path(name))


def test_hub_folder_specifies_heads_epsilon_and_activation(tmp_path):
  containers.write(tmp_path / "model.safetensors", ARRAYS, {})
  config = {"num_attention_heads": 6, "layer_norm_eps": 1e-12, "hidden_act": "gelu_new", "image_size": 384}
  (tmp_path / "config.json").write_text(json.dumps(config))
  _, hints = containers.read(tmp_path)
  expected = {"heads": 6, "norm_eps": 1e-12, "gelu": "tanh", "image_size": 384, "name": tmp_path.name}
  assert {key: hints[key] for key in expected} == expected
  (tmp_path / "config.json").write_text(json.dumps({"architecture": "tf_efficientnet_b0"}))
  assert containers.read(tmp_path)[1]["name"] == "tf_efficientnet_b0"
  (tmp_path / "config.json").write_text("{")
  with pytest.raises(ConfigError, match=r"config\.json cannot be read as JSON"):
    containers.read(tmp_path)


def test_text_arrays_keep_their_type_for_a_later_error(tmp_path):
  np.savez(tmp_path / "x.npz", a=np.array(["text"]))
  tensors, _ = containers.read(tmp_path / "x.npz")
  assert tensors["a"].dtype.kind == "U"  # `layout.read` raises an error for it

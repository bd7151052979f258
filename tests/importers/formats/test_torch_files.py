"""Tests of vit_jax/importers/formats/torch_files.py: files of torch.save against the values that PyTorch saved."""

import argparse
import collections
import pathlib
import pickle
import sys
import types
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tests import hostile
from vit_jax.importers.formats import containers, torch_files
from vit_jax.schema import ConfigError

torch = pytest.importorskip("torch", reason="needs pip install -e '.[test]'")


def saved(folder, value, old=False, **options):
  torch.save(value, folder / "x.pth", _use_new_zipfile_serialization=not old, **options)
  return folder / "x.pth"


def as_numpy(tensor):
  tensor = tensor.detach()
  bits = {torch.bfloat16: ml_dtypes.bfloat16, torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn}
  if kind := bits.get(tensor.dtype):
    return tensor.contiguous().view(torch.int8).numpy().view(kind).reshape(tensor.shape)
  return tensor.numpy()


def check_same(path, expected):
  """Checks that a file contains exactly these tensors."""
  tensors = torch_files.read(path)[0]
  assert tensors.keys() == expected.keys()
  for name, tensor in expected.items():
    array, wanted = np.asarray(tensors[name]), as_numpy(tensor)
    assert (tensors[name].shape, tensors[name].dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(array.view(np.uint8), np.ascontiguousarray(wanted).view(np.uint8))


def views():
  """Yields tensors of every type, and views that share values."""
  base = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
  for kind in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "complex64", "bool"):
    yield kind, torch.tensor([[0.0, 1.0, 2.5]]).to(getattr(torch, kind))
  for kind in ("int64", "int32", "int16", "int8", "uint8", "uint16"):
    yield kind, torch.tensor([[0, 1, 2]]).to(getattr(torch, kind))
  yield "whole", base
  yield "transposed", base.permute(3, 1, 0, 2)
  yield "part", base[1, 1:, ::2, 3]
  yield "expanded", base[0, 0, :1].expand(7, 5)
  yield "channels last", base.to(memory_format=torch.channels_last)
  yield "one number", torch.tensor(3.0)
  yield "no numbers", torch.ones(0, 3)
  yield "parameter", torch.nn.Parameter(base[0].clone())
  attributed = torch.nn.Parameter(base[1].clone())
  attributed.tag = "with an attribute"
  yield "attributed", attributed
  yield "buffer", torch.nn.Buffer(base.clone())


@pytest.mark.parametrize("old", [False, True])
def test_tensors_have_the_type_shape_and_values_that_pytorch_saved(tmp_path, old):
  expected = {name: tensor for name, tensor in views() if not (old and "8_e" in name)}
  check_same(saved(tmp_path, expected, old), expected)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("old", [False, True])
def test_every_pickle_protocol_is_read(tmp_path, old, protocol):
  expected = dict(views()) if not old else {"a": torch.ones(3)}
  check_same(saved(tmp_path, expected, old, pickle_protocol=protocol), expected)


def test_files_are_read_without_pytorch(tmp_path, monkeypatch):
  path = saved(tmp_path, {"a": torch.ones(3), "b": torch.arange(2)})
  monkeypatch.setitem(sys.modules, "torch", None)
  tensors, _ = containers.read(path)
  assert np.asarray(tensors["a"]).tolist() == [1, 1, 1] and np.asarray(tensors["b"]).tolist() == [0, 1]


def test_values_are_read_when_they_are_needed(tmp_path):
  path = saved(tmp_path, {"a": torch.ones(1000), "b": torch.ones(3)})
  tensors, _ = torch_files.read(path)
  path.write_bytes(path.read_bytes()[:300])
  assert tensors["a"].shape == (1000,)
  with pytest.raises(ConfigError, match=r"x\.pth: cannot be read: it is truncated within its tensors"):
    np.asarray(tensors["a"])


# Objects that training codes save together with the tensors.


class Config(dict):
  """A dictionary like yacs' CfgNode, which Swin saves."""


def foreign(module, name, bases=(object,)):
  """Creates a class in a package that is not installed when the file is read."""
  made = type(name, bases, {"__module__": module})
  sys.modules[module] = types.ModuleType(module)
  setattr(sys.modules[module], name, made)
  return made


def training_objects():
  container = foreign("omegaconf", "DictConfig")()
  container.__dict__ |= {"_content": {"lr": 1.0}, "_parent": None}
  config = Config(lr=0.1, path=pathlib.PurePosixPath("/data"))
  config.frozen = True
  yield "argparse.Namespace", {"args": argparse.Namespace(lr=1, out=pathlib.PurePosixPath("runs"))}
  yield "omegaconf.DictConfig", {"cfg": container}
  yield "Config", {"config": config}
  yield "lightning.Callback", {"callbacks": {foreign("lightning", "Callback"): {"best": np.float64(3)}}}
  yield "deepspeed.LossScaler", {"loss_scaler": foreign("deepspeed", "LossScaler")()}
  yield "functools.partial", {"schedule": __import__("functools").partial(max, 1)}
  yield "collections.deque", {"losses": collections.deque([1.0, 2.0])}


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("case", [name for name, _ in training_objects()])
def test_objects_of_training_codes_are_omitted_and_noted(tmp_path, case, old):
  path = saved(tmp_path, {"model": {"w": torch.ones(2)}} | dict(training_objects())[case], old)
  for module in ("omegaconf", "lightning", "deepspeed"):
    sys.modules.pop(module, None)
  tensors, notes = torch_files.read(path)
  assert list(tensors) == ["model.w"] and np.asarray(tensors["model.w"]).tolist() == [1, 1]
  assert len(notes) == (case != "lightning.Callback")
  assert all("read as data, without running their code: " in note and case in note for note in notes)


def test_numbers_and_texts_need_no_note(tmp_path):
  content = {"w": torch.ones(1), "epoch": 3, "best": np.float32(1), "shape": torch.Size([1]), "bytes": b"\xff"}
  content |= {"device": torch.device("cpu"), "dtype": torch.float32, "seen": {1, 2}, "rng": torch.get_rng_state()}
  tensors, notes = torch_files.read(saved(tmp_path, content))
  assert (tensors.keys(), notes) == ({"w", "rng"}, [])


class Average:
  """An object that contains a module, like timm's ModelEma."""

  def __init__(self, module):
    self.module, self.decay, self.own = module, 0.9, torch.zeros(1)


def module():
  inside = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
  inside.register_buffer("computed", torch.ones(3), persistent=False)
  inside.register_buffer("table", torch.ones(2))
  inside.plain = torch.ones(4)
  return torch.nn.ModuleDict({"a": inside, "b": torch.nn.LayerNorm(3, bias=False)})


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_pickled_module_has_the_tensors_of_its_state_dict(tmp_path, old):
  made = module()
  check_same(saved(tmp_path, made, old), made.state_dict())
  both = {"model": made, "ema": Average(made["a"])}
  expected = {f"model.{name}": tensor for name, tensor in made.state_dict().items()}
  tensors, _ = torch_files.read(saved(tmp_path, both, old))
  assert tensors.keys() == expected.keys() | {"ema.own"}  # a module that occurs twice is listed once
  average = {"ema": Average(made["a"])}
  tensors, _ = torch_files.read(saved(tmp_path, average, old))
  assert tensors.keys() == {f"ema.module.{name}" for name in made["a"].state_dict()} | {"ema.own"}


# Unsupported contents.


def snippet(error):
  """Returns whether an error ends with two lines of code that write a clean file."""
  lines = str(error.value).split("\n")
  return [line.strip().split("(")[0] for line in lines[1:]] == ["checkpoint = torch.load", "torch.save"]


def others():
  yield "sparse", lambda: {"w": torch.eye(3).to_sparse()}, "'w' is made by 'torch._utils._rebuild_sparse_tensor'"
  yield "meta", lambda: {"w": torch.ones(3, device="meta")}, "'torch._utils._rebuild_meta_tensor_no_storage'"
  yield "list", lambda: [{"w": torch.ones(3)}], "expected a state dict of tensors by name, got a list"
  yield "tensor", lambda: torch.ones(3), "expected a state dict of tensors by name, got a tensor"
  yield "object", lambda: argparse.Namespace(lr=1), "contains an object 'argparse.Namespace' instead of tensors"


@pytest.mark.parametrize(
  ("name", "make", "message"), list(others()), ids=lambda value: value if type(value) is str else ""
)
@pytest.mark.filterwarnings("ignore")
def test_unsupported_contents_are_errors_with_code_for_a_clean_file(tmp_path, name, make, message):
  path = saved(tmp_path, make())
  with pytest.raises(ConfigError) as error:
    containers.read(path)
  assert message in str(error.value) and snippet(error)


@pytest.mark.filterwarnings("ignore")
def test_torchscript_plain_pickles_and_big_endian_files_are_errors(tmp_path):
  torch.jit.save(torch.jit.script(torch.nn.Linear(2, 3)), tmp_path / "script.pt")
  (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"w": np.ones(3)}))
  source = saved(tmp_path, {"w": torch.ones(3)})
  with zipfile.ZipFile(source) as old, zipfile.ZipFile(tmp_path / "big.pth", "w") as new:
    for member in old.infolist():
      new.writestr(member, b"big" if member.filename.endswith("byteorder") else old.read(member))
  message = {
    "script.pt": "a TorchScript program",
    "plain.pkl": "torch.save did not write it",
    "big.pth": "its byte order",
  }
  for name, text in message.items():
    with pytest.raises(ConfigError, match=text) as error:
      containers.read(tmp_path / name)
    assert snippet(error)


def test_code_in_the_error_writes_a_clean_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  path = saved(tmp_path, {"model": {"w": torch.ones(3)}, "counts": torch.eye(3).to_sparse()})
  with pytest.raises(ConfigError) as error:
    containers.read(path)
  exec("\n".join(line.strip() for line in str(error.value).split("\n")[1:]), {"torch": torch})
  check_same(tmp_path / "clean.pth", {"w": torch.ones(3)})


def test_zip_archive_without_a_model_is_an_error(tmp_path):
  for name, member in (("x.zip", "model.pth"), ("x.pth", "a/b/data.pkl")):
    with zipfile.ZipFile(tmp_path / name, "w") as archive:
      archive.writestr(member, "1")
    with pytest.raises(ConfigError, match="a zip archive without a PyTorch model"):
      containers.read(tmp_path / name)


def test_attacks_are_errors_without_advice_to_load_the_file(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  path = saved(tmp_path, {"w": torch.ones(3), "args": hostile.Attack()})
  with pytest.raises(ConfigError, match=r"it calls '.*open'.* It was not called\. Do not load the file") as error:
    containers.read(path)
  assert "torch.load" not in str(error.value) and not (tmp_path / "owned").exists()


@pytest.mark.parametrize("cut", [1, 100, 4000, 4200])
def test_truncated_file_of_the_old_format_is_an_error(tmp_path, cut):
  path = saved(tmp_path, {"w": torch.ones(1000)}, old=True)
  path.write_bytes(path.read_bytes()[:-cut])
  with pytest.raises(ConfigError, match=r"x\.pth: cannot be read: "):
    containers.read(path)

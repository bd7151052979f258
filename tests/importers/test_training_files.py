"""Tests of PyTorch files as training codes save them, against timm's loader."""

import argparse
import pathlib

import numpy as np
import pytest

from tests import peers
from tests.importers.test_subtrees import ARRAYS, AVERAGE, BODY, HEAD, HINTS, RAW, under
from vit_jax import importers
from vit_jax.importers.formats import containers
from vit_jax.schema import ConfigError


def torch_files():
  """Yields names and contents of files as training codes save them. timm finds the model in each."""
  plain, average = ({name: tensor.copy() for name, tensor in tensors.items()} for tensors in (RAW, AVERAGE))
  state = {"state": {i: {"exp_avg": np.ones(3, np.float32)} for i in range(4)}, "param_groups": [{"lr": 0.1}]}
  yield "plain", plain
  yield "state_dict", {"state_dict": plain, "epoch": 3, "optimizer": state}
  yield "state_dict_ema", {"state_dict": plain, "state_dict_ema": average, "arch": "x", "optimizer": state}
  yield "model_ema", {"model": plain, "model_ema": average, "optimizer": state}
  yield "model", {"model": plain, "args": None, "scaler": {"scale": 1.0}}
  yield "arguments", {"model": plain, "args": argparse.Namespace(lr=1, out=pathlib.PurePosixPath("runs")), "epoch": 3}
  yield (
    "arguments and state_dict_ema",
    {"state_dict": plain, "state_dict_ema": average, "args": argparse.Namespace(), "optimizer": state},
  )
  yield "compiled", under("_orig_mod.", plain)
  yield "parallel and compiled", under("module._orig_mod.", plain)
  yield "compiled average", {"state_dict": under("_orig_mod.", plain), "state_dict_ema": under("module.", average)}


def convert_to_torch(torch, value):
  if isinstance(value, dict):
    return {key: convert_to_torch(torch, inner) for key, inner in value.items()}
  return torch.tensor(value) if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize(
  ("name", "content"), list(torch_files()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_tensors_match_those_that_timm_loads(tmp_path, name, content):
  timm = peers.timm()
  import torch

  path = tmp_path / "model_best.pth.tar"
  torch.save(convert_to_torch(torch, content), path)
  theirs = timm.models.load_state_dict(path, weights_only=False)
  recognised = importers.inspect(path, HINTS)
  assert recognised.tensors.keys() == theirs.keys() == RAW.keys()
  for key, tensor in theirs.items():
    np.testing.assert_array_equal(np.asarray(recognised.tensors[key]), tensor.numpy())
  raw = timm.models.load_state_dict(path, use_ema=False, weights_only=False)
  if "_ema" in name or "average" in name:
    ours = importers.inspect(path, HINTS, ema=False).tensors
    assert all(np.array_equal(np.asarray(ours[key]), tensor.numpy()) for key, tensor in raw.items())
    assert "left out" in "".join(recognised.notes) or name == "compiled average"


def test_nested_dictionaries_and_lists_of_a_torch_file_are_listed(tmp_path):
  torch = pytest.importorskip("torch")
  classifier = {"weight": HEAD["head.weight"], "bias": HEAD["head.bias"]}
  content = {"model": convert_to_torch(torch, BODY), "shadow_params": [torch.ones(2)] * 3}
  content |= {"classifier": convert_to_torch(torch, classifier)}
  torch.save(content | {"optimizer_states": [{"state": {0: {"m": torch.ones(2)}}}]}, tmp_path / "x.ckpt")
  description, arrays, notes, *_ = importers.read(tmp_path / "x.ckpt", HINTS)
  assert description.classes == 7 and np.array_equal(arrays["head/bias"], ARRAYS["head/bias"])
  assert notes[-1] == "left out, not part of this model: shadow_params.* (3 tensors), optimizer_states.0.state.0.m"


def test_two_nested_tensors_with_one_name_are_an_error(tmp_path):
  torch = pytest.importorskip("torch")
  torch.save({"head": {"bias": torch.ones(2)}, "head.bias": torch.zeros(2)}, tmp_path / "x.pth")
  with pytest.raises(ConfigError, match=r"two tensors are named 'head\.bias'"):
    containers.read(tmp_path / "x.pth")

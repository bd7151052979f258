"""Tests that every verb selects weights by the same rule and options, and prints its selection."""

import argparse
import dataclasses

import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests import runs, small_weights
from vit_jax import config, convert, fewshot, importers, predict
from vit_jax.config import flags, migrations
from vit_jax.inference import stored
from vit_jax.schema import ConfigError
from vit_jax.training import loop

MODEL = small_weights.described()
RAW = small_weights.arrays(MODEL)
AVERAGE = {path: array + np.float32(1) for path, array in RAW.items()}
LISTED = "left out, not part of this model: dino_loss.center"


@pytest.fixture(scope="module")
def both(tmp_path_factory):
  """Writes a file with raw and averaged weights of a model and a tensor of its loss, and a config.json."""
  tensors = {"dino_loss.center": np.ones(3, np.float32)}
  for prefix, arrays in (("model.", RAW), ("model_ema.", AVERAGE)):
    tensors |= {prefix + name: tensor for name, tensor in importers.export_tensors(arrays, MODEL, "timm").items()}
  folder = tmp_path_factory.mktemp("both")
  config = '{"architecture": "vit_small_patch8_224", "model_args": {"num_heads": 2, "act_layer": "gelu_tanh"}}'
  (folder / "config.json").write_text(config)
  safetensors.numpy.save_file({name: np.ascontiguousarray(t) for name, t in tensors.items()}, folder / "w.safetensors")
  return folder / "w.safetensors"


def identify_weights(arrays) -> str:
  """Returns whether weights are the averaged or the raw ones."""
  key = "blocks/0/mlp/up/kernel"
  assert np.array_equal(arrays[key], AVERAGE[key]) or np.array_equal(arrays[key], RAW[key])
  return "averaged" if np.array_equal(arrays[key], AVERAGE[key]) else "raw"


CHOICES = [
  ({}, "averaged"),
  ({"ema": True}, "averaged"),
  ({"ema": False}, "raw"),
  ({"prefix": "model"}, "raw"),
  ({"prefix": "model_ema."}, "averaged"),
]
each_choice = pytest.mark.parametrize(("choice", "expected"), CHOICES)


def as_flags(choice):
  words = {("ema", True): "--ema", ("ema", False): "--no-ema"}
  return [words.get((key, value), f"--{key}={value}") for key, value in choice.items()]


def check_notes(notes, expected):
  text = "\n".join(notes)
  assert LISTED in text and "also in the file" in text
  assert ("these are averaged weights" in text) == (expected == "averaged")


@each_choice
def test_convert_and_inspect_select_weights(both, tmp_path, capsys, choice, expected):
  target = tmp_path / "new/folder/out.npz"
  convert.main([str(both), str(target), *as_flags(choice)])
  check_notes(capsys.readouterr().out.splitlines(), expected)
  assert identify_weights(importers.load(target)[1]) == expected
  convert.main(["--inspect", str(both), *as_flags(choice)])
  check_notes(capsys.readouterr().out.splitlines(), expected)


@each_choice
def test_predict_selects_weights(both, choice, expected):
  arguments = argparse.Namespace(weights=str(both), image_size=None, **{"ema": None, "prefix": None} | choice)
  use = predict.load_weights(arguments)
  check_notes(use.notes, expected)
  assert identify_weights(use.arrays) == expected
  assert stored.read_normalisation(both, **choice).keys() == {"mean", "std"}


@pytest.mark.heavy
def test_load_in_python_selects_weights(both):
  for choice, expected in CHOICES[1:4]:
    model = vit_jax.load(both, **choice)
    check_notes(model.notes, expected)
    assert identify_weights(model.params) == expected


@each_choice
def test_fewshot_selects_weights(both, choice, expected):
  measured = config.resolve(flags.load_config(str(runs.ROOT / "configs/fewshot.py:digits"), {}), config.Measurement)
  measured = dataclasses.replace(measured, **choice)
  weights = fewshot.load_weights(str(both), measured)
  check_notes(weights.notes, expected)
  assert identify_weights(weights.arrays) == expected


@each_choice
def test_init_of_a_run_selects_weights(both, choice, expected):
  words = {f"init.{key}": str(value).lower() for key, value in choice.items()} | {"init.from": str(both)}
  init = config.resolve(flags.load_config(str(runs.ROOT / "configs/digits.py"), words)).init
  arrays, notes = importers.load_fitted(init.from_, MODEL, init.head, init.ema, init.prefix)
  check_notes(notes, expected)
  assert identify_weights(arrays) == expected


@each_choice
def test_teacher_selects_weights(both, choice, expected):
  weights = importers.open_weights(str(both), 32, "float32", **choice)
  check_notes(weights.notes, expected)
  assert identify_weights(weights.load()) == expected


@pytest.mark.long
def test_run_with_a_teacher_prints_the_selected_weights(tmp_path, capsys):
  model = small_weights.described(classes=10)
  tensors = {
    f"model_ema.{name}": t for name, t in importers.export_tensors(small_weights.arrays(model), model, "timm").items()
  }
  safetensors.numpy.save_file(
    {name: np.ascontiguousarray(t) for name, t in tensors.items()}, tmp_path / "t.safetensors"
  )
  teacher = {"task__teacher": str(tmp_path / "t.safetensors"), "task__ema": True}
  loop.train(runs.parts(1, total=1, task__name="distill", **teacher), tmp_path / "run")
  assert f"{tmp_path}/t.safetensors: these are averaged weights" in capsys.readouterr().out


def test_prefix_for_a_workdir_is_an_error(tmp_path):
  (tmp_path / "checkpoints").mkdir()
  with pytest.raises(ConfigError, match=r"a workdir contains one model\. Remove the prefix 'model'"):
    importers.load(tmp_path, prefix="model")


def test_migration_removes_ema_from_configs_of_older_versions():
  before = {"init": {"from": "x", "head": "auto", "ema": False}, "task": {"name": "distill", "ema": False}}
  assert migrations.migrate_run(before) == {"init": {"from": "x", "head": "auto"}, "task": {"name": "distill"}}
  now = {"init": {"from": "x", "ema": False, "prefix": None}, "task": {"name": "distill", "ema": True}}
  assert migrations.migrate_run(now) == now


# Missing folders.


@pytest.mark.heavy
def test_missing_folder_is_created_only_if_the_conversion_succeeds(both, tmp_path):
  convert.convert(both, tmp_path / "a/b/c.safetensors", None, {})
  assert sorted(path.name for path in (tmp_path / "a/b").iterdir()) == ["c.safetensors", "config.json"]
  convert.convert(both, tmp_path / "a/d/workdir", None, {})
  assert importers.is_workdir(tmp_path / "a/d/workdir")
  damaged = tmp_path / "damaged.safetensors"
  damaged.write_bytes(both.read_bytes()[:-1])
  with pytest.raises(ConfigError, match="it is truncated"):
    convert.convert(damaged, tmp_path / "e/f/g.npz", None, {})
  assert not (tmp_path / "e").exists()

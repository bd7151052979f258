"""Tests of settings that a run adopts from its initial weights or its teacher unless its config sets them."""

import dataclasses
import json

import numpy as np
import pytest

from tests import runs, small_weights
from vit_jax import config, schema, train
from vit_jax.checkpoints import provenance
from vit_jax.config import flags, migrations
from vit_jax.importers import adoption, normalisation
from vit_jax.schema import Choice
from vit_jax.sweeps.study import Study
from vit_jax.training import build

IMAGENET = {key: list(values) for key, values in normalisation.IMAGENET.items()}
DEIT = {"pretrained_cfg": IMAGENET | {"crop_pct": 0.9, "interpolation": "bicubic", "input_size": [3, 32, 32]}}
HALVES = {"mean": [0.5] * 3, "std": [0.5] * 3}
SIGLIP = {"model_args": {"act_layer": "gelu_tanh"}}  # in timm's format
SIGLIP |= {"pretrained_cfg": HALVES | {"crop_pct": 1.0, "interpolation": "bicubic", "input_size": [3, 32, 32]}}
SMALL = {"width": 64, "depth": 2, "heads": 2, "hidden": 96}


def deit(folder):
  folder.mkdir(exist_ok=True)
  return small_weights.file(folder, small_weights.described(gelu="erf"), **DEIT)


def siglip(folder):
  folder.mkdir(exist_ok=True)
  return small_weights.file(folder, small_weights.described(gelu="tanh", pool="map"), **SIGLIP)


def resolve_run(path, model=(), **data):
  """Returns a run that starts from weights and sets only the given arguments."""
  return config.resolve(
    config.recipe(
      model={"name": "ViT-S/8", **SMALL, **dict(model)},
      data={"name": "digits", "image_size": 48, **data},
      optim={"name": "sgd", "lr": 0.1},
      total="1ep",
      batch=16,
      init={"from": str(path)},
    )
  )


def select_settings(run):
  model = schema.flatten_choices(run.model.args)
  return {key: model[key] for key in ("gelu", "norm.eps", "resampling")} | {
    key: run.data.args[key] for key in ("mean", "std", "test_crop")
  }


def test_run_adopts_the_settings_of_weights_like_deit(tmp_path):
  before = resolve_run(deit(tmp_path))
  run = build.complete(before)
  assert select_settings(run) == {
    "gelu": "erf",
    "norm.eps": 1e-6,
    "resampling": "bicubic_antialiased",
    "mean": normalisation.IMAGENET["mean"],
    "std": normalisation.IMAGENET["std"],
    "test_crop": Choice("torchvision", {"ratio": 0.9, "interpolation": "bicubic"}),
  }
  assert run.evals["test"].args["data"] is None  # evaluates on the run's own data with the same preprocessing
  own = build.complete(before, adopt=False)
  [note] = adoption.describe_settings(before.init.from_, own, run)
  assert "model.gelu=erf" in note and "data.mean='(0.485,0.456,0.406)'" in note and "data.test_crop.ratio=0.9" in note
  assert "To override: --config.model.gelu=tanh" in note and "--config.data.mean='(0.5,0.5,0.5)'" in note


def test_run_adopts_the_settings_of_weights_like_siglip(tmp_path):
  run = build.complete(resolve_run(siglip(tmp_path), {"pool": "map", "gelu": "erf"}))
  assert select_settings(run) | {"gelu": "tanh", "resampling": "zoom"} == select_settings(
    build.complete(resolve_run("none"))
  ) | {"test_crop": Choice("torchvision", {"ratio": 1.0, "interpolation": "bicubic"})}
  assert run.model.args["gelu"] == "erf"  # set by the config
  assert build.complete(resolve_run(siglip(tmp_path), {"pool": "map"})).model.args["gelu"] == "tanh"
  named = {"name": "vit_small_patch16_224", "pool": "map"}  # its default is erf
  assert build.complete(resolve_run(siglip(tmp_path), named)).model.args["gelu"] == "tanh"


def test_config_has_priority_and_the_note_lists_flags_of_the_file(tmp_path):
  before = resolve_run(
    deit(tmp_path), {"gelu": "tanh", "eps": 1e-5}, mean=(0.1, 0.2, 0.3), test_crop={"name": "resize"}
  )
  run = build.complete(before)
  assert select_settings(run) | {"std": None, "resampling": None} == {
    "gelu": "tanh",
    "norm.eps": 1e-5,
    "mean": (0.1, 0.2, 0.3),
    "test_crop": Choice("resize", {"interpolation": "area"}),
    "std": None,
    "resampling": None,
  }
  assert run.data.args["std"] == normalisation.IMAGENET["std"]
  [note] = adoption.describe_settings(before.init.from_, build.complete(before, adopt=False), run)
  assert "the config sets model.gelu=tanh model.norm.eps=1e-05 data.mean='(0.1,0.2,0.3)'" in note
  assert "To adopt its values: --config.model.gelu=erf --config.model.norm.eps=1e-06 --config.data.mean='(0.485" in note
  assert "--config.data.test_crop.name=torchvision --config.data.test_crop.ratio=0.9" in note


@pytest.mark.parametrize("path", ["gone.npz", "damaged.npz", None])
def test_unreadable_weights_and_other_families_change_no_setting(tmp_path, path):
  (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04")
  before = resolve_run(deit(tmp_path) if path is None else tmp_path / path)
  if path is None:
    before = dataclasses.replace(before, model=Choice("Mixer-S/16"))
  assert build.complete(before) == build.complete(before, adopt=False)


def test_run_adopts_the_settings_of_a_workdir(tmp_path, monkeypatch):
  data = {"name": "folder", "image_size": 32, "mean": [0.1] * 3, "std": [0.2] * 3}
  data["test_crop"] = {"name": "centre", "resize": 40}
  about = {"model": small_weights.described(gelu="erf").to_json(), "identity": {"config": {"data": data}}}
  (tmp_path / "checkpoints").mkdir()
  monkeypatch.setattr(adoption.checkpoints, "read_description", lambda *_: about)
  run = build.complete(resolve_run(tmp_path))
  assert (run.model.args["gelu"], run.data.args["mean"], run.data.args["std"]) == ("erf", (0.1,) * 3, (0.2,) * 3)
  assert run.data.args["test_crop"].args["resize"] == 60  # for images of 48 px


def test_restart_without_the_weights_file_is_the_same_run(tmp_path, monkeypatch):
  file = deit(tmp_path / "weights")
  recipe, flagged = str(runs.ROOT / "configs/finetune.py:digits,ViT-S/8,48"), {"init.from": str(file)}
  flagged |= {f"model.{key}": str(value) for key, value in SMALL.items()}
  first = build.complete(config.resolve(flags.load_config(recipe, flagged)))
  assert first.model.args["gelu"] == "erf"
  monkeypatch.setattr(provenance, "read_stored_config", lambda *_: json.loads(config.dumps(first)))
  file.unlink()
  absent = build.complete(config.resolve(flags.load_config(recipe, flagged)))
  assert absent.model.args["gelu"] == "tanh"
  assert train.apply_stored_settings(recipe, flagged, absent, tmp_path) == first
  assert migrations.migrate_run(json.loads(config.dumps(first))) == schema.to_plain(first)
  older = schema.to_plain(absent)  # a run of an older version adopted no settings, and its restart keeps them
  monkeypatch.setattr(provenance, "read_stored_config", lambda *_: older)
  deit(tmp_path / "weights")
  now = build.complete(config.resolve(flags.load_config(recipe, flagged)))
  assert schema.to_plain(train.apply_stored_settings(recipe, flagged, now, tmp_path)) == older


def test_sweep_trials_adopt_the_same_settings_as_their_runs(tmp_path):
  recipe, flagged = str(runs.ROOT / "configs/finetune.py:digits,ViT-S/8,48"), {"init.from": str(deit(tmp_path))}
  flagged |= {f"model.{key}": str(value) for key, value in SMALL.items()}
  trials = Study(
    recipe, flagged, config.Sweep([{"optim.lr": 0.1}, {"optim.lr": 0.2}]), tmp_path / "sweep"
  ).make_trials()
  for trial in trials:
    assert trial.config == config.dumps(build.complete(config.resolve(flags.load_config(recipe, trial.flags))))
    assert json.loads(trial.config)["model"]["gelu"] == "erf"


def test_teacher_keeps_its_own_normalisation(tmp_path):
  before = config.resolve(
    config.recipe(
      model={"name": "ViT-S/8", **SMALL},
      data={"name": "digits", "image_size": 32},
      optim={"name": "sgd", "lr": 0.1},
      task={"name": "distill", "teacher": str(deit(tmp_path))},
      total="1ep",
      batch=16,
    )
  )
  run = build.complete(before)
  assert run.task.args["teacher_mean"] == normalisation.IMAGENET["mean"]
  assert run.task.args["teacher_std"] == normalisation.IMAGENET["std"]
  assert run.data.args["mean"] == (0.5,) * 3 and run.model.args["gelu"] == "tanh"  # the student's settings
  stored = json.loads(config.dumps(build.complete(before, adopt=False)))
  assert adoption.find_recorded_settings(stored) == {"task": {"teacher_mean": None, "teacher_std": None}}
  del stored["task"]["teacher_mean"], stored["task"]["teacher_std"]
  assert adoption.find_recorded_settings(stored) == {"task": {"teacher_mean": None, "teacher_std": None}}
  assert np.all(np.asarray(run.task.args["teacher_std"]) > 0)

"""Tests of the start of `train`: defaults of older runs, an impossible workdir, and printed parameters."""

import pathlib

import pytest

from tests import runs
from vit_jax import config, schema, train
from vit_jax.checkpoints import provenance
from vit_jax.config import flags
from vit_jax.training import build

pytestmark = pytest.mark.heavy


def test_run_keeps_the_default_of_the_version_that_started_it(tmp_path, monkeypatch, capsys):
  file, flagged = str(runs.ROOT / "configs/folder.py:cct_2_3x2_32"), {"data.path": "/photos", "data.validation": "0"}
  run = build.complete(config.resolve(flags.load_config(file, flagged)))
  assert run.evals["test"].args["every"] == "20%"
  stored = schema.to_plain(run)
  stored["evals"]["test"]["every"] = "10%"
  stored["evals"]["gone"] = stored["evals"]["test"]
  monkeypatch.setattr(provenance, "read_stored_config", lambda *_: stored)
  assert train.apply_stored_settings(file, flagged, run, tmp_path).evals["test"].args["every"] == "10%"
  assert "config.evals.test.every=10%, as in the run in" in capsys.readouterr().out
  explicit = flagged | {"evals.test.every": "20%"}
  assert train.apply_stored_settings(file, explicit, run, tmp_path) == run


def test_run_on_a_mixture_keeps_the_class_order_of_each_part(tmp_path, monkeypatch, capsys):
  file, parts = str(runs.ROOT / "configs/digits.py"), "[dict(name='folder', path='x'), dict(name='cifar10')]"
  flagged = {"data.name": "mixture", "data.parts": parts}
  run = build.complete(config.resolve(flags.load_config(file, flagged)))
  assert run.data.args["parts"][0].args["class_order"] == "numeric"
  stored = schema.to_plain(run)
  del stored["data"]["parts"][0]["class_order"]
  monkeypatch.setattr(provenance, "read_stored_config", lambda *_: stored)
  parts = train.apply_stored_settings(file, flagged, run, tmp_path).data.args["parts"]
  assert (parts[0].args["class_order"], parts[1]) == ("text", run.data.args["parts"][1])
  assert "config.data.parts[0].class_order=text, as in the run in" in capsys.readouterr().out
  explicit = flagged | {"data.parts[0].class_order": "numeric"}
  assert train.apply_stored_settings(file, explicit, run, tmp_path) == run


def test_settings_of_an_older_run_on_other_data_are_ignored(tmp_path, monkeypatch, capsys):
  file = str(runs.ROOT / "configs/digits.py")
  run = build.complete(config.resolve(flags.load_config(file)))
  monkeypatch.setattr(provenance, "read_stored_config", lambda *_: {"data": {"name": "folder", "path": "x"}})
  applied = train.apply_stored_settings(file, {}, run, tmp_path)  # `objection` reports that the data differ
  assert applied.data.args == run.data.args | {"exif": False} and "class_order" not in capsys.readouterr().out


@pytest.mark.skipif(not pathlib.Path("/proc/self").exists(), reason="needs a directory in which nothing can be made")
def test_impossible_workdir_is_an_error_before_the_run_is_built(monkeypatch):
  monkeypatch.setattr(build, "build", None)
  with pytest.raises(schema.ConfigError, match=r"--workdir: /proc/run/a cannot be made in /proc: .*Name a directory"):
    train.main(runs.words("/proc/run/a"))


def test_parameters_flag_prints_all_parameters(tmp_path, monkeypatch, capsys):
  made = runs.parts(1)
  monkeypatch.setattr(build, "build", lambda run, devices: made)
  monkeypatch.setattr(train.loop, "train", lambda *_: dict.fromkeys(("images_per_second", "train_seconds"), 1.0))
  for more in ([], ["--parameters"]):
    train.main(["--no-report", *runs.words(tmp_path / "run"), *more])
    printed = capsys.readouterr().out
    assert all((f"| {path} " in printed) == bool(more) for path in made.state_shapes.params)


@pytest.mark.parametrize(
  ("recipe", "command"),
  [
    ("digits", "vit_jax.predict --weights=runs/a PHOTO"),
    (
      "dinov2",
      "vit_jax.fewshot --config=probes:knn,folder --config.image_size=224 "
      "--config.evals.folder.data.path=LABELLED --weights=runs/a",
    ),
  ],
)
def test_run_ends_with_the_next_command(recipe, command):
  path = f"{runs.ROOT}/configs/{recipe}.py" + ":folder" * (recipe == "dinov2")
  run = build.complete(config.resolve(flags.load_config(path, {"data.path": "x", "init.from": "none"})))
  assert train.suggest_next_command(run, pathlib.Path("runs/a")) == f"python -m {command}"

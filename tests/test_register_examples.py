"""Tests of the four examples of docs/extend, from training to a sweep."""

import dataclasses
import inspect
import json
import pathlib
import sys

import jax
import numpy as np
import pytest

import vit_jax
from tests import runs, stages
from tests.extension_files import forget
from vit_jax import checkpoints, config, models, register, tasks
from vit_jax.checkpoints import forms, provenance
from vit_jax.config import extensions, flags
from vit_jax.schema import ConfigError
from vit_jax.training import build, loop

EXAMPLE = runs.ROOT / "examples/extend"


@pytest.fixture(autouse=True)
def own_names(monkeypatch):
  """Starts each test with no registered names, and restores the import path."""
  monkeypatch.setattr(sys, "path", list(sys.path))
  forget()
  yield
  forget()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
  """Writes an .npz file for the reader of the examples, with 64 training images and 16 test images."""
  path, draw = tmp_path_factory.mktemp("arrays") / "digits.npz", np.random.default_rng(0)
  arrays = {}
  for split, count in (("train", 64), ("test", 16)):
    arrays[f"{split}_images"] = draw.integers(0, 255, (count, 16, 16, 3), np.uint8)
    arrays[f"{split}_labels"] = draw.integers(0, 3, count)
  np.savez(path, **arrays, classes=["a", "b", "c"])
  return path


def keys(data):
  return {
    "data.path": str(data), "data.image_size": "16", "batch": "16", "total": "6", "checkpoint.every": "2",
    "log.images": "false", "model.width": "8", "evals.test.every": "3", "evals.calibration.every": "3",
  }  # fmt: skip


def parts(data, devices=8, **changes):
  """Builds the run of examples/extend/config.py on some of the fake devices."""
  run = build.complete(config.resolve(flags.load_config(str(EXAMPLE / "config.py"), keys(data) | changes)))
  return build.build(run, jax.devices()[:devices])


@pytest.mark.heavy
def test_examples_are_built_like_built_in_choices(data):
  made = parts(data, **{"mesh.data": "4", "mesh.fsdp": "2"})
  assert "fsdp" in str(made.state_shapes.params["embedding/kernel"].sharding.spec)
  assert {row["names"][0] for row in made.identity["extensions"]} == {
    "reader arrays", "model patch_mlp", "task focal", "evaluation brier",
  }  # fmt: skip
  assert "patch_mlp" in made.format_overview() and models.create("patch_mlp", classes=3).head.kernel.shape == (64, 3)
  with pytest.raises(ConfigError, match=r"config\.task\.gama: unknown key for 'focal'.*Did you mean 'gamma'"):
    parts(data, **{"task.gama": "1"})


@pytest.mark.heavy
def test_parameter_without_a_sharding_row_is_an_error(data):
  parts(data)
  row = models.table.TABLE["patch_mlp"]
  models.table.TABLE["patch_mlp"] = dataclasses.replace(row, rows=row.rows[1:])
  with pytest.raises(ConfigError, match=r"parameter 'embedding/kernel' matches 0 rows of the sharding table"):
    parts(data)


@pytest.mark.heavy
def test_focal_loss_with_gamma_zero_is_the_cross_entropy():
  extensions.run_file(EXAMPLE / "config.py")
  supplied = stages.supplied()
  logits, targets = np.array([[2.0, 0.0, -1.0]], np.float32), np.array([[0.0, 1.0, 0.0]], np.float32)
  entropy = -np.log(np.exp(0.0) / np.exp(logits[0]).sum())
  assert tasks.TASKS["focal"](supplied, gamma=0.0).cross_entropy(logits, targets)[0] == pytest.approx(entropy, rel=1e-5)
  focal = (1 - np.exp(-entropy)) ** 2 * entropy
  assert tasks.TASKS["focal"](supplied).cross_entropy(logits, targets)[0] == pytest.approx(focal, rel=1e-5)


@pytest.fixture(scope="module")
def trained(data, tmp_path_factory):
  """The workdir and the result of an uninterrupted run of the examples."""
  workdir = tmp_path_factory.mktemp("run") / "whole"
  result = loop.train(parts(data, devices=1), workdir)
  forget()
  return workdir, result


@pytest.mark.full
def test_interrupted_run_resumes_with_the_same_bits(data, trained, tmp_path):
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts(data, devices=1), 4), tmp_path / "run")
  forget()
  again = loop.train(parts(data, devices=1), tmp_path / "run")
  assert again["weights_sha256"] == trained[1]["weights_sha256"]
  assert again["calibration/brier_loss"] == trained[1]["calibration/brier_loss"]


@pytest.mark.heavy
def test_figures_match_numpy(data, trained):
  model = vit_jax.load(trained[0])  # imports the four files again
  assert {name for _, name in extensions.list_registered()} == {"arrays", "patch_mlp", "focal", "brier"}
  stored = np.load(data)
  images = list(stored["test_images"])
  shares = np.stack([one.probabilities for one in model.predict(images)])
  order = np.stack([one.numbers for one in model.predict(images)])
  probabilities = np.take_along_axis(shares, np.argsort(order, axis=1), axis=1)
  brier = ((probabilities - np.eye(3)[stored["test_labels"]]) ** 2).sum(1).mean()
  assert trained[1]["calibration/brier_loss"] == pytest.approx(brier, rel=1e-4)
  assert trained[1]["top1"] == pytest.approx((order[:, 0] == stored["test_labels"]).mean())
  assert model.classes == ("a", "b", "c")


@pytest.mark.long
def test_every_verb_opens_the_run_in_a_new_process(data, trained, tmp_path):
  workdir, _ = trained
  photo = runs.ROOT / "docs/digits.png"
  sweep = [f"--config.{key}={value}" for key, value in (keys(data) | {"total": "1"}).items()]
  output = runs.finish(
    runs.several(
      ["predict", f"--weights={workdir}", str(photo)],
      ["evaluate", f"--workdir={workdir}"],
      ["convert", str(workdir), str(tmp_path / "weights")],
      ["convert", "--inspect", str(tmp_path / "weights")],
      ["report", str(workdir), f"--out={tmp_path / 'report.html'}"],
      ["sweep", f"--config={EXAMPLE / 'config.py'}", f"--workdir={tmp_path / 'sweep'}", *sweep],
    )
  )
  assert output.count("exit 0") == 6, output
  assert "calibration/brier_loss" in output and "checkpoint of patch_mlp" in output
  record = json.loads((tmp_path / "sweep/sweep.json").read_text())
  assert [trial["status"] for trial in record["trials"]] == ["done", "done"]


@pytest.mark.heavy
def test_input_processes_use_the_reader_of_the_user(data, tmp_path):
  with_workers = loop.train(parts(data, devices=1, **{"data.workers": "1", "total": "2"}), tmp_path / "workers")
  without = loop.train(parts(data, devices=1, **{"data.workers": "0", "total": "2"}), tmp_path / "threads")
  assert with_workers["weights_sha256"] == without["weights_sha256"]


@pytest.mark.long
def test_changed_extension_code_is_noted_at_a_restart(data, trained):
  about = checkpoints.read_description(trained[0], forms.check_metadata)
  assert len(about["identity"]["extensions"]) == 4
  now = json.loads(json.dumps(about["identity"]))
  now["extensions"][0]["sha256"] = "0" * 64
  (line,) = [line for line in provenance.list_notes(about["identity"], now) if "changed" in line]
  assert pathlib.Path(now["extensions"][0]["file"]).name in line and "Results may differ" in line
  assert provenance.select_shared_values(now | {"data": now["data"]}) != provenance.select_shared_values(
    about["identity"]
  )


def test_page_names_all_examples_and_decorators():
  page = (runs.ROOT / "docs/extend/index.md").read_text()
  for name in ("array_reader", "patch_mlp", "focal_task", "brier_evaluation", "config"):
    assert f"examples/extend/{name}.py" in page
  for decorator in register.__all__:
    assert f"register.{decorator}" in page and inspect.getdoc(getattr(register, decorator))

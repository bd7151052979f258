"""Tests of whole runs: results, bit-exact restarts after interruptions, errors, and other meshes."""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import shutil
import signal
import time

import jax
import numpy as np
import pytest

from tests import runs
from tests.image_files import image
from vit_jax import checkpoints, config, evaluate, runtime, schema, train
from vit_jax.checkpoints import provenance
from vit_jax.config import flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.parallel import sharding
from vit_jax.training import build, experiment, goodput, loop

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module", autouse=True)
def prepared():
  prepare_dataset("digits")


@pytest.fixture(scope="module")
def complete_run(tmp_path_factory):
  """An uninterrupted run of 12 steps on one device, started like a user."""
  workdir = tmp_path_factory.mktemp("whole")
  printed = runs.finish(runs.command("train", *runs.words(workdir)))
  return workdir, printed, json.loads((workdir / "result.json").read_text())


def weights(workdir):
  return json.loads((workdir / "result.json").read_text())["weights_sha256"]


def test_run_prints_progress_and_writes_its_figures(complete_run):
  workdir, printed, result = complete_run
  for words in ("parameters", "12/12  100%", "images/s", "left", "f1_macro", "goodput", "tensorboard --logdir"):
    assert words in printed, words
  figures = {f"{metric}_{average}" for metric in ("precision", "recall", "f1") for average in ("weighted", "macro")}
  assert figures | {
      "top1", "top5", "loss", "mean_per_class", "calibration_error", "seed", "steps", "train_seconds",
      "images_per_second", "goodput", "config_sha256", "weights_sha256", "packages", "images", "skipped_images",
      "certificate", "intervals", "selection",
  } == result.keys()  # fmt: skip
  assert (result["steps"], result["seed"], result["images"]) == (12, 0, 360)
  assert result["recall_weighted"] == pytest.approx(result["top1"], abs=1e-12)
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  logged = [line for line in lines if "train/loss" in line]
  assert [line["step"] for line in logged] == [2, 4, 6, 8, 10, 12]
  assert {
    "train/learning_rate",
    "train/gradient_norm",
    "data_wait",
    "images_per_second_per_chip",
  } <= (logged[-1].keys())
  assert [line["step"] for line in lines if "test/top1" in line] == [6, 12]


@pytest.mark.long
def test_finished_run_reports_that_it_is_finished_and_changes_no_file(complete_run):
  workdir = complete_run[0]
  before = {file: file.stat().st_mtime_ns for file in workdir.rglob("*") if file.is_file() and file.name != "lock"}
  printed = runs.finish(runs.command("train", *runs.words(workdir)))
  assert "already finished" in printed
  assert "f1_macro" in printed
  assert before == {
    file: file.stat().st_mtime_ns for file in workdir.rglob("*") if file.is_file() and file.name != "lock"
  }


@pytest.mark.long
def test_evaluate_gives_the_final_figures_of_training(complete_run):
  workdir, _, result = complete_run
  printed = runs.finish(runs.command("evaluate", f"--workdir={workdir}"))
  for name in ("top1", "top5", "f1_macro"):
    assert f"{result[name]:.2%}" in next(line for line in printed.splitlines() if line.split()[:1] == [name])
  assert f"{result['loss']:.4f}" in printed


def read_until_step(process, step):
  """Reads a run's output until the line of `step`."""
  for line in process.stdout:
    if line.lstrip().startswith(f"{step}/"):
      return
  pytest.fail(f"no line of step {step}: {process.stderr.read()[-3000:]}")


def stop_in_a_save(process, folder):
  """Stops a run while it writes a checkpoint, and returns the step of this partial checkpoint."""
  while process.poll() is None:
    if any(folder.glob("*tmp*")):
      process.send_signal(signal.SIGSTOP)
      os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
      if half := [path.name for path in folder.glob("*tmp*")]:
        return int(half[0].partition(".")[0])
      process.send_signal(signal.SIGCONT)
    time.sleep(0.0005)
  pytest.fail(f"no save was seen: {process.stderr.read()[-3000:]}")


def test_run_killed_at_a_step_and_in_a_save_ends_with_the_same_bits(complete_run, tmp_path):
  command = ("train", *runs.words(tmp_path, checkpoint__every=1, log__every=1))
  first = runs.command(*command)
  read_until_step(first, 3)
  first.kill()
  first.communicate()
  saved = [int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit()]
  assert saved and max(saved) < 12

  second = runs.command(*command)
  read_until_step(second, max(saved) + 2)  # the previous checkpoint may still be incomplete
  step = stop_in_a_save(second, tmp_path / "checkpoints")
  second.kill()
  second.communicate()
  assert max(saved) + 1 <= step <= 12
  assert not (tmp_path / "checkpoints" / str(step)).exists()

  runs.finish(runs.command(*command))
  assert weights(tmp_path) == complete_run[2]["weights_sha256"]
  steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert steps == sorted(steps)
  assert set(steps) == set(range(1, 13))


@pytest.mark.long
def test_sigterm_finishes_the_step_saves_and_exits_42(complete_run, tmp_path):
  process = runs.command("train", *runs.words(tmp_path, total=4000, checkpoint__every=100000, log__every=1))
  read_until_step(process, 2)
  process.send_signal(signal.SIGTERM)
  printed = runs.finish(process, 42)
  step = int(printed.split(" Step ")[1].split()[0])
  assert (tmp_path / "checkpoints" / str(step)).is_dir()
  assert step >= 2


@pytest.mark.long
def test_another_config_in_a_workdir_is_an_error_with_the_differences(complete_run):
  workdir = complete_run[0]
  message = runs.finish(runs.command("train", *runs.words(workdir, **{"optim.lr": "0.5", "batch": 32})), 2)
  assert "optim.lr: 0.003 -> 0.5" in message
  assert "batch: 16 -> 32" in message
  assert "model" not in message.split("undo:")[1]


@pytest.mark.long
def test_config_is_read_from_the_checkpoint_if_config_json_is_damaged(complete_run, tmp_path):
  shutil.copytree(complete_run[0], tmp_path / "run")
  file, parts, other = tmp_path / "run/config.json", runs.parts(1), runs.parts(1, seed=1)
  stored = json.loads(file.read_text())
  stored["model"]["heads"], stored["total"] = 2, "x"
  given = argparse.Namespace(workdir=tmp_path / "run", weights=None, config=None, overrides={})
  for text in (json.dumps(stored), "{", None):
    file.unlink() if text is None else file.write_text(text)
    assert train.find_workdir_conflict(tmp_path / "run", parts) is None
    assert "seed: 0 -> 1" in train.find_workdir_conflict(tmp_path / "run", other)
    assert evaluate.find_run(given) == parts.run


@pytest.mark.long
def test_on_error_may_change_at_a_restart(tmp_path):
  evals = {"evals.other.name": "accuracy", "evals.other.data.name": "digits"}
  parts, other = (runs.parts(1, **evals, **{"data.on_error": how}) for how in ("raise", "skip"))
  (tmp_path / "config.json").write_text(config.dumps(parts.run))
  assert train.find_workdir_conflict(tmp_path, parts) is None
  assert train.find_workdir_conflict(tmp_path, other) is None


def test_only_listed_keys_may_change_at_a_restart():
  assert [key for key in ("total", "log.every", "limits.step", "data.prefetch", "evals.a.data.on_error") if
          not train.may_change(key)] == []  # fmt: skip
  assert not any(map(train.may_change, ("totals", "data", "data.path", "logs", "model.name", "x.data.on_error")))


@pytest.fixture
def saved(tmp_path):
  """Photos of two classes, the flags of a run on them that has a checkpoint, and its workdir."""
  for label, i in itertools.product("ab", range(20)):
    file = tmp_path / "photos" / label / f"{i}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(image(i))
  changes = runs.SMALL | {"data.path": str(tmp_path / "photos"), "checkpoint.every": "3"}
  run = build.complete(config.resolve(flags.load_config("configs/folder.py:cct_2_3x2_32", changes)))
  parts = build.build(run, jax.devices()[:1])
  with contextlib.closing(
    checkpoints.Checkpoints(tmp_path / "run", sharding.make_replicated_sharding(parts.mesh))
  ) as store:
    progress = goodput.GoodputTracker().get_counts() | {"evaluated": True, "pending": {"steps": 0, "sums": {}}}
    about = loop.describe_checkpoint(parts, {}, 0) | progress
    store.save(0, parts.create_initial_state(), about)
  words = ["--config=configs/folder.py:cct_2_3x2_32", f"--workdir={tmp_path / 'run'}"]
  return tmp_path / "photos", [*words, *(f"--config.{key}={value}" for key, value in changes.items())], tmp_path / "run"


@pytest.mark.long
def test_changed_data_are_an_error_before_the_state_is_read(saved, monkeypatch):
  photos, words, workdir = saved
  before = {file: file.stat().st_mtime_ns for file in workdir.rglob("*")}
  monkeypatch.setattr(jax, "devices", lambda devices=jax.devices()[:1]: devices)
  (photos / "c").mkdir()
  (photos / "c" / "0.png").write_bytes(image(0))  # the head now has another shape
  with pytest.raises(schema.ConfigError) as error:
    train.main(words)
  assert f"--workdir: {workdir} contains a run with other data. Restore them, or use another" in str(error.value)
  assert "1 class new: 'c'" in str(error.value)
  shutil.rmtree(photos / "c")
  os.utime(photos / "a" / "0.png")
  with pytest.raises(schema.ConfigError, match="modification times of files differ"):
    train.main(words)
  assert {file: file.stat().st_mtime_ns for file in workdir.rglob("*")} == before


@pytest.mark.long
def test_run_of_a_version_without_exif_resumes_without_it(saved, monkeypatch, capsys):
  _, words, workdir = saved
  file, flagged = "configs/folder.py:cct_2_3x2_32", flags.split_overrides(words)[0]
  run = build.complete(config.resolve(flags.load_config(file, flagged)))
  assert run.data.args["exif"] is True
  stored = schema.to_plain(run)
  del stored["data"]["exif"]
  monkeypatch.setattr(provenance, "read_stored_config", lambda workdir, about: stored)
  applied = train.apply_stored_settings(file, flagged, run, workdir)
  assert applied.data.args == run.data.args | {"exif": False}
  assert "config.data.exif=false, as in the run in" in capsys.readouterr().out
  parts = build.build(applied, jax.devices()[:1])
  assert train.find_workdir_conflict(workdir, parts, accept=True) is None
  explicit = flagged | {"data.exif": "true"}
  run = build.complete(config.resolve(flags.load_config(file, explicit)))
  assert train.apply_stored_settings(file, explicit, run, workdir) == run
  assert "data.exif: False -> True" in train.find_workdir_conflict(workdir, build.build(run, jax.devices()[:1]))
  assert train.apply_stored_settings(file, flagged, run, workdir / "nothing") == run


@pytest.mark.long
def test_second_process_in_a_workdir_is_an_error(tmp_path):
  with runtime.claim_workdir(tmp_path):
    message = runs.finish(runs.command("train", *runs.words(tmp_path)), 2)
  assert f"in use by process {os.getpid()}" in message


MESHES = {
    "all": (8, {"mesh.data": 2, "mesh.fsdp": 2, "mesh.tensor": 2}),
    "8 data": (8, {}), "4 data": (4, {}), "fsdp": (8, {"mesh.data": 2, "mesh.fsdp": 4}),
    "accumulated": (8, {"optim.accumulate": 2, "model.attention_dropout": 0, "model.stochastic_depth": 0}),
    "tensor": (8, {"mesh.data": 4, "mesh.tensor": 2}),
    "replicas": (8, {"mesh.replica": 2, "mesh.data": 2, "mesh.fsdp": 2}),
}  # fmt: skip


def build_on(devices, **changes):
  return runs.parts(devices, **({"model.heads": 2, "optim.clip": "none"} | changes))


def train_parameters(parts):
  """Returns the parameters after all steps of a run, without evaluations and checkpoints."""
  step, state = parts.compile(), parts.create_initial_state()
  with contextlib.closing(parts.open_batches(0)) as batches:
    for batch in itertools.islice(batches, parts.total):
      state, _ = step(state, batch, {})
  return jax.device_get(state.params)


@functools.cache
def train_on_one_device(plain):
  """Returns the parameters of the run on one device, with or without random layers of the model."""
  return train_parameters(build_on(1, **({"model.attention_dropout": 0, "model.stochastic_depth": 0} if plain else {})))


@pytest.mark.long
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_trains_the_same_model(name):
  devices, changes = MESHES[name]
  found, expected = train_parameters(build_on(devices, **changes)), train_on_one_device("accumulate" in str(changes))
  for path, value in expected.items():
    np.testing.assert_allclose(found[path], value, atol=1e-5, err_msg=path)


@pytest.mark.long
@pytest.mark.parametrize("after", [4, 1])
def test_run_resumes_on_fewer_devices_with_the_same_result(tmp_path, after, capsys):
  def dies(params, poll):
    raise InterruptedError

  parts = dataclasses.replace(build_on(8), evals={"test": experiment.Eval(7, dies)})
  with pytest.raises(InterruptedError):
    loop.train(parts, tmp_path)
  after_it = build_on(after)
  loop.train(after_it, tmp_path)
  assert (
    f"devices: 8 x cpu in 1 process at the last checkpoint, {after} x cpu in 1 process now. Low-order bits may differ"
    in capsys.readouterr().out
  )
  with contextlib.closing(
    checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(after_it.mesh), read_only=True)
  ) as store:
    found = jax.device_get(store.restore(after_it.state_shapes)[0].params)
  for path, value in train_on_one_device(False).items():
    np.testing.assert_allclose(found[path], value, atol=1e-5, err_msg=path)


@pytest.mark.long
def test_workdir_of_an_older_version_has_no_conflict(tmp_path):
  own = {"evals__own__name": "accuracy", "evals__own__data__name": "digits"}
  parts = runs.parts(1, **own)
  stored = schema.to_plain(parts.run)
  stored["optim"]["decay"] = "adamw"
  for data in (stored["data"], stored["evals"]["own"]["data"]):
    data |= {"holdout": 0.2, "split_seed": 0, "builder": None, "labels": None}
  stored["evals"]["own"]["data"] |= {"flip": False, "mixing": {"name": "none"}, "crop": {"name": "resize"}}
  (tmp_path / "config.json").write_text(json.dumps(stored))
  assert train.find_workdir_conflict(tmp_path, parts) is None
  stored["optim"]["decay"] = "decoupled"
  (tmp_path / "config.json").write_text(json.dumps(stored))
  assert "optim.decay: 'independent' -> 'times_lr'" in train.find_workdir_conflict(tmp_path, parts)

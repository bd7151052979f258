"""vit_jax/training/loop.py: what ends a loop early, and what it leaves; whole restarts are in test_train."""

import contextlib
import dataclasses
import json
import time

import jax
import numpy as np
import pytest

from tests import runs
from vit_jax import checkpoints, runtime
from vit_jax.data.images import ImageError
from vit_jax.data.workers import WorkerError
from vit_jax.parallel import sharding
from vit_jax.schema import ConfigError, Duration
from vit_jax.schema.errors import NotFiniteError
from vit_jax.training import experiment, loop

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def parts():
  """A run of 12 steps on one device."""
  return runs.parts(1)


def lines(workdir):
  return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def state_of(workdir, parts):
  store = checkpoints.Checkpoints(workdir, sharding.make_replicated_sharding(parts.mesh), read_only=True)
  with contextlib.closing(store):
    return store.restore(parts.state_shapes)[0]


def with_batches(parts, batches):
  """The run with other batches from a step on."""

  class Fed(type(parts)):
    def open_batches(self, start):
      return batches(parts.open_batches(start))

  return Fed(**{field.name: getattr(parts, field.name) for field in dataclasses.fields(parts)})


def saving(parts, every):
  """The run with another interval of checkpoints."""
  checkpoint = dataclasses.replace(parts.run.checkpoint, every=Duration(str(every)))
  return dataclasses.replace(parts, run=dataclasses.replace(parts.run, checkpoint=checkpoint))


class Broken:
  """Batches of a run, one of which cannot be made: it has an image that cannot be decoded, or its worker died."""

  def __init__(self, batches, after, error=None):
    self.batches, self.left = batches, after
    self.error = error or ImageError("photos/7.jpg: truncated")

  def __next__(self):
    if not self.left:
      raise self.error
    self.left -= 1
    return next(self.batches)

  def __getattr__(self, name):
    return getattr(self.batches, name)


def test_a_value_that_is_not_finite_ends_with_44_and_names_the_last_good_checkpoint(tmp_path):
  changes = {"optim.lr": "1e30", "optim.clip": "none", "optim.warmup": "6", "checkpoint__every": 1}
  parts = runs.parts(1, **changes)
  with pytest.raises(runtime.Stop, match=r"step \d+: not finite: .*loss") as stopped:
    loop.train(parts, tmp_path)
  assert stopped.value.code == 44
  kept = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
  assert f"the last good checkpoint is step {kept[-1]}." in str(stopped.value)
  assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(state_of(tmp_path, parts)))


def test_an_image_that_cannot_be_decoded_ends_with_a_checkpoint_of_the_step_before(parts, tmp_path):
  broken = with_batches(parts, lambda batches: Broken(batches, 5))
  with pytest.raises(ConfigError, match=r"photos/7.jpg: truncated. Step 5 is saved"):
    loop.train(broken, tmp_path)
  assert int(state_of(tmp_path, parts).step) == 5


@pytest.mark.long
def test_a_dead_worker_process_ends_the_run_with_134_and_a_checkpoint(parts, tmp_path):
  died = WorkerError("input process 7, one of config.data.workers, was ended by SIGKILL")
  broken = with_batches(parts, lambda batches: Broken(batches, 5, died))
  with pytest.raises(runtime.Stop, match=r"input process 7.*Step 5 is saved; the same command continues") as stopped:
    loop.train(broken, tmp_path)
  assert stopped.value.code == runtime.EXIT_PEER == 134
  assert int(state_of(tmp_path, parts).step) == 5


@pytest.mark.long
def test_a_stop_in_the_last_evaluation_trains_no_more_and_evaluates_again(parts, tmp_path):
  def measure(params, poll):
    raise runtime.Preempted(42, "stopped on request")

  last = {"test": experiment.Eval(12, measure)}
  with pytest.raises(runtime.Stop, match=r"stopped on request\. Step 12 is saved") as stopped:
    loop.train(dataclasses.replace(parts, evals=last), tmp_path)
  assert stopped.value.code == 42
  store = checkpoints.Checkpoints(tmp_path, sharding.make_replicated_sharding(parts.mesh), read_only=True)
  with contextlib.closing(store):
    seconds = store.restore(parts.state_shapes)[1]["train_seconds"]
  never = with_batches(parts, lambda batches: Broken(batches, 0))
  result = loop.train(never, tmp_path)
  assert result["train_seconds"] == seconds
  assert result["images"] == 360
  assert [line["step"] for line in lines(tmp_path) if "train/loss" in line] == [2, 4, 6, 8, 10, 12]


@pytest.mark.long
def test_an_evaluation_that_a_stop_cut_short_is_made_up_for(parts, tmp_path):
  def measure(params, poll):
    raise runtime.Preempted(42, "stopped on request")

  real = parts.evals["test"].measure
  with pytest.raises(runtime.Stop, match="Step 2 is saved"):
    loop.train(dataclasses.replace(parts, evals={"test": experiment.Eval(2, measure)}), tmp_path)
  assert checkpoints.read_description(tmp_path)["evaluated"] is False
  expected = real(state_of(tmp_path, parts).params, lambda: None).figures
  evaluated = dataclasses.replace(saving(parts, 4), evals={"test": experiment.Eval(2, real)})
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(evaluated, 5), tmp_path)
  made_up, later = [line for line in lines(tmp_path) if "test/top1" in line]
  assert made_up == {"step": 2} | {f"test/{name}": value for name, value in expected.items()}
  assert later["step"] == 4
  assert checkpoints.read_description(tmp_path)["evaluated"] is True  # of step 4, so that it is not made up for


@pytest.mark.long
def test_a_run_goes_on_that_has_one_step_left(parts, tmp_path):
  with pytest.raises(ConfigError, match="Step 11 is saved"):
    loop.train(with_batches(parts, lambda batches: Broken(batches, 11)), tmp_path)
  assert loop.train(parts, tmp_path)["steps"] == 12
  (last,) = [line for line in lines(tmp_path) if "train/loss" in line and line["step"] == 12]
  assert "images_per_second" not in last


def test_a_finished_run_does_nothing_and_gives_its_result(parts, tmp_path, capsys):
  result = loop.train(parts, tmp_path)
  before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
  assert loop.train(parts, tmp_path) == result
  assert "already finished" in capsys.readouterr().out
  assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
  shorter = dataclasses.replace(parts, total=5)
  with pytest.raises(ConfigError, match=r"config.total: 5 steps, but the run in .* has already completed 12"):
    loop.train(shorter, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
  "odd",
  [
    {"train_seconds": "1"},
    {"train_seconds": 10**400},
    {"images_per_second": []},
    {"steps": "12"},
    {"target": [1]},
    {"target": {"metric": "top1"}},
    {"goodput": {}},
    {"goodput": {"attempts": 1, "goodput": None}},
    {"selection": {"metric": "test/top1", "test_measurements": 1}},
  ],
)
def test_a_result_that_is_not_as_it_was_written_is_measured_again(parts, tmp_path, odd):
  values = {"steps": 12, "train_seconds": 1.0, "images_per_second": None}
  (tmp_path / "result.json").write_text(json.dumps(values))
  assert loop.load_result(tmp_path, 12) == values
  (tmp_path / "result.json").write_text(json.dumps(values | odd))
  assert loop.load_result(tmp_path, 12) is None


def test_a_step_that_gets_arrays_of_the_host_is_an_error(parts, tmp_path):
  class OnHost(Broken):
    def __next__(self):
      return jax.device_get(super().__next__())

  host = with_batches(parts, lambda batches: OnHost(batches, 12))
  with pytest.raises(jax.errors.JaxRuntimeError, match="Disallowed host-to-device transfer"):
    loop.train(host, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(("headline", "shown"), [("gradient_norm", True), ("nothing", False)])
def test_a_headline_stands_beside_the_loss_where_it_is_measured(parts, tmp_path, monkeypatch, capsys, headline, shown):
  monkeypatch.setattr(type(parts.task), "headline", headline)
  loop.train(dataclasses.replace(parts, total=2), tmp_path)
  line = next(line for line in capsys.readouterr().out.splitlines() if "2/2  100%" in line)
  assert (headline in line) == shown


@pytest.mark.long
def test_a_trace_is_written_that_tensorboard_finds(parts, tmp_path, capsys):
  loop.train(parts, tmp_path, profile=2)
  assert list((tmp_path / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))
  assert f"tensorboard --logdir={tmp_path}/tensorboard" in capsys.readouterr().out


@pytest.mark.long
def test_what_is_said_to_be_saved_is_whole_before_the_others_hear_of_the_end(parts, tmp_path, monkeypatch):
  """The others leave soon after they have heard of it, and take this process with them."""
  there = []

  class Told(runtime.Watch):
    def report(self, kind, error, trace):
      if error and not there:
        there.append([path.name for path in (tmp_path / "checkpoints").iterdir()])
      super().report(kind, error, trace)

  def stop(params, poll):
    raise runtime.Preempted(42, "stopped on request")

  slow = checkpoints.Checkpoints.wait
  monkeypatch.setattr(checkpoints.Checkpoints, "wait", lambda store: (time.sleep(0.5), slow(store)))
  with Told() as watch, pytest.raises(runtime.Stop, match="Step 4 is saved"):
    loop.train(dataclasses.replace(parts, evals={"stop": experiment.Eval(4, stop)}), tmp_path, watch=watch)
  assert "4" in there[0]


@pytest.mark.long
def test_the_line_of_a_step_precedes_its_evaluation(parts, tmp_path, capsys):
  loop.train(dataclasses.replace(parts, evals={"test": parts.evals["test"]._replace(every=2)}), tmp_path)
  rows = [("test/top1" in line, line["step"]) for line in lines(tmp_path)]
  assert rows == sorted(rows, key=lambda row: (row[1], row[0]))
  steps = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "%  loss" in line or "evaluated" in line]
  assert steps[:4] == [f"2/{parts.total}", "2", f"4/{parts.total}", "4"]


@pytest.mark.long
def test_an_evaluation_that_was_made_up_for_and_then_killed_has_one_line(parts, tmp_path):
  """Stopped in an evaluation, which the next attempt makes, and is killed before it saves."""
  accuracy = parts.evals["test"].measure
  calls = iter(range(10**6))

  def measure(params, poll):
    match next(calls):
      case 0:
        raise runtime.Preempted(42, "stopped on request")
      case _:
        return accuracy(params, poll)

  run = dataclasses.replace(saving(parts, 100), evals={"test": experiment.Eval(4, measure)})
  with pytest.raises(runtime.Stop):
    loop.train(run, tmp_path)
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(run, 5), tmp_path)
  loop.train(run, tmp_path)
  steps = [line["step"] for line in lines(tmp_path) if "test/top1" in line]
  assert steps == sorted(set(steps))


@pytest.mark.long
def test_a3_a_restart_with_another_setting_prints_one_warning_with_its_consequence(tmp_path, parts, capsys):
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 5), tmp_path)
  assert "warning" not in capsys.readouterr().out
  with jax.default_matmul_precision("highest"):  # which changes no bits on a CPU
    loop.train(dataclasses.replace(parts, task=parts.task), tmp_path)
  warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
  assert warnings == [
    "warning: JAX_DEFAULT_MATMUL_PRECISION: None at the last checkpoint, highest now. Low-order bits may differ from "
    "those of an uninterrupted run."
  ]


def test_a2_a_non_finite_evaluation_ends_with_44_without_a_save(parts, tmp_path):
  def measure(params, poll):
    raise NotFiniteError("image 'a.png': output 'logits' is not finite")

  broken = dataclasses.replace(parts, evals={"test": experiment.Eval(parts.total, measure)})
  with pytest.raises(
    runtime.Stop, match=r"step \d+: image 'a\.png': output 'logits' is not finite.*checkpoint"
  ) as stopped:
    loop.train(broken, tmp_path)
  assert stopped.value.code == 44
  assert not (tmp_path / "result.json").exists()
  assert not (tmp_path / "checkpoints" / str(parts.total)).exists()

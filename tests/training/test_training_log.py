"""Lines of metrics are those of an undisturbed run, wherever a kill fell between a save and a line."""

import contextlib
import dataclasses
import errno
import json
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import runs
from vit_jax import config, runtime
from vit_jax.data import catalog, decoding
from vit_jax.evals import metrics, plots
from vit_jax.evals.accuracy import AccuracyDetails
from vit_jax.training import goodput, loop, training_log

pytestmark = pytest.mark.heavy

LOSSES = np.random.default_rng(0).normal(size=13).astype(np.float32)


class Store:
  """Checkpoints that nothing asks for."""


@pytest.fixture(scope="module")
def parts():
  return runs.parts(1, log__every=4)


def part(parts, workdir, first, last, about, save=None):
  """Logs some steps as the loop does; what is said about the state that is saved at step `save`."""
  workdir.mkdir(exist_ok=True)
  timer = goodput.GoodputTracker()
  lines = training_log.TrainingLog(parts, workdir, first, timer, timer.phase, Store(), about)
  progress = None
  with contextlib.closing(lines):
    for step in range(first, last):
      lines.write_due(step)
      lines.add(step + 1, {"loss": jnp.asarray(LOSSES[step + 1])}, 0)
      if step + 1 == save:
        lines.write_due(save)
        with lines.phase("save", save):
          progress = json.loads(json.dumps(lines.get_progress(save)))
    if save is None:
      lines.write(last)
  return progress


def losses(workdir):
  """{step: loss} of the lines."""
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  assert [line["step"] for line in lines] == sorted(line["step"] for line in lines)
  return {line["step"]: line["train/loss"] for line in lines}


@pytest.mark.sample(2)
@pytest.mark.parametrize("saved", range(1, 12))
def test_a_kill_after_any_save_leaves_every_line_to_the_bit(parts, tmp_path, saved):
  part(parts, tmp_path / "whole", 0, 12, {})
  # The kill comes at once after the save, or three steps later.
  for later in (0, 3):
    workdir = tmp_path / f"killed{later}"
    about = part(parts, workdir, 0, min(12, saved + later), {}, save=saved)
    part(parts, workdir, saved, 12, about)
    assert losses(workdir) == losses(tmp_path / "whole")
  assert list(losses(tmp_path / "whole")) == [4, 8, 12]
  assert losses(tmp_path / "whole")[8] == pytest.approx(LOSSES[5:9].mean(), rel=1e-6)


def test_e2_measurements_are_counted_over_all_attempts_and_once_for_a_step(parts, tmp_path):
  def attempt(start, steps, about, again=()):
    timer = goodput.GoodputTracker()
    lines = training_log.TrainingLog(parts, tmp_path, start, timer, timer.phase, Store(), about)
    with contextlib.closing(lines):
      for step in steps:
        for _ in range(1 + (step in again)):
          lines.write_evaluation(step, {"top1": 0.5, "ema_top1": 0.5} | ({"val/top1": 0.5} if step % 2 else {}))
      return lines.count_measurements(), json.loads(json.dumps(lines.get_progress(steps[-1])))

  counts, about = attempt(0, [3, 6], {})
  assert counts == {"test": 2, "val": 1}
  counts, about = attempt(6, [6, 9, 12], about, again=[12])  # the evaluation of step 6 is repeated
  assert counts == {"test": 4, "val": 2}
  assert attempt(12, [24], about)[0] == {"test": 5, "val": 2}  # a restart with a larger total
  older = {key: value for key, value in about.items() if key != "measured"}
  every = {name: each.every for name, each in parts.evals.items()}
  assert attempt(12, [24], older)[0]["test"] == 12 // every["test"] + 1


def test_a_line_that_cannot_be_written_is_an_error_of_the_workdir(parts, tmp_path):
  (tmp_path / "run").mkdir()
  timer = goodput.GoodputTracker()
  lines = training_log.TrainingLog(parts, tmp_path / "run", 0, timer, timer.phase, Store(), {})
  (tmp_path / "run").rename(tmp_path / "moved")
  lines.add(1, {"loss": jnp.asarray(1.0)}, 0)
  with pytest.raises(FileNotFoundError, match="the workdir no longer exists"):
    lines.write(1)
  lines.close()


def test_the_program_is_few_steps_ahead_of_its_devices(parts, tmp_path, monkeypatch):
  """Else a stop would wait for all that is under way, and the watch would take polls for steps."""
  waited = []
  monkeypatch.setattr(training_log.jax, "block_until_ready", waited.append)
  timer = goodput.GoodputTracker()
  with contextlib.closing(training_log.TrainingLog(parts, tmp_path, 0, timer, timer.phase, Store(), {})) as lines:
    for step in range(1, 11):
      lines.add(step, {"loss": step}, 0)
  assert waited == [{"loss": step} for step in range(1, 11 - training_log.AHEAD)]


def test_a_run_that_waits_for_its_data_says_once_what_helps(parts, tmp_path, monkeypatch, capsys):
  timer = goodput.GoodputTracker()
  shares = iter([0.5, 0.5, 0.02, 0.3, 0.3, 0.3, 0.4])  # of the lines; two in a row are chance
  monkeypatch.setattr(timer, "measure_lap", lambda images: {"images_per_second": 9.0, "data_wait": next(shares)})
  monkeypatch.setattr(goodput.GoodputTracker, "rate", 9.0)
  (tmp_path / "run").mkdir()
  with contextlib.closing(
    training_log.TrainingLog(parts, tmp_path / "run", 0, timer, timer.phase, Store(), {})
  ) as lines:
    output = []
    for step in range(1, 8):
      lines.add(step, {"loss": jnp.asarray(1.0)}, 0)
      lines.write(step)
      output.append([line for line in capsys.readouterr().out.splitlines() if "spent waiting for data" in line])
  cores = decoding.count_usable_cores()
  threads = max(2, cores)  # of local files
  present = f"30% of the time is spent waiting for data, with 0 workers and {threads} threads on {cores} core"
  assert [len(lines) for lines in output] == [0] * 5 + [1, 0] and output[5][0].startswith(present)


def test_a_problem_of_the_task_is_reported_only_after_warmup_and_the_first_tenth(tmp_path, monkeypatch, capsys):
  def warned(name, **changes):
    experiment = runs.parts(1, total=40, **changes)
    monkeypatch.setattr(type(experiment.task), "check_metrics", lambda self, means: "the features have collapsed")
    (tmp_path / name).mkdir()
    timer = goodput.GoodputTracker()
    arguments = experiment, tmp_path / name, 0, timer, timer.phase, Store(), {}
    with contextlib.closing(training_log.TrainingLog(*arguments)) as lines:
      for step in range(1, 13):
        lines.add(step, {"loss": jnp.asarray(1.0)}, 0)
        lines.write(step)
        if "warning: the features have collapsed" in capsys.readouterr().out:
          return step
    return None

  assert warned("long", optim__warmup=10) == 12
  assert warned("none", optim__warmup=0) == 6


@pytest.mark.parametrize(("rate", "text"), [(1234.5, "  1,234 images/s  "), (0.44, "  0.4 images/s  "), (16e9, None)])
def test_throughput_of_a_line_is_readable_or_omitted(parts, tmp_path, monkeypatch, capsys, rate, text):
  timer = goodput.GoodputTracker()
  monkeypatch.setattr(timer, "measure_lap", lambda images: {"images_per_second": rate, "data_wait": 0.0})
  monkeypatch.setattr(goodput.GoodputTracker, "rate", 9.0)
  with contextlib.closing(training_log.TrainingLog(parts, tmp_path, 0, timer, timer.phase, Store(), {})) as lines:
    lines.add(1, {"loss": jnp.asarray(1.0)}, 0)
    lines.write(1)
  printed = capsys.readouterr().out
  assert (text in printed) if text else "images/s" not in printed
  assert " left" in printed


def shown(workdir):
  """(pictures, texts) that TensorBoard reads of a run: {name: [(step, bytes)]}, {name: [(step, text)]}."""
  events = EventAccumulator(str(workdir / "tensorboard"), size_guidance={"images": 0, "tensors": 0})
  events.Reload()
  pictures = {
    name: [(each.step, each.encoded_image_string) for each in events.Images(name)] for name in events.Tags()["images"]
  }
  texts = {
    name: [(each.step, each.tensor_proto.string_val[0].decode()) for each in events.Tensors(name)]
    for name in events.Tags()["tensors"]
  }
  return pictures, texts


@pytest.mark.long
def test_tensorboard_gets_config_first_batch_confusion_and_mistakes(parts, tmp_path, monkeypatch):
  monkeypatch.setattr(training_log, "DRAWING", 0.0)
  log = dataclasses.replace(parts.run.log, images=True)
  parts = dataclasses.replace(parts, run=dataclasses.replace(parts.run, log=log))
  png = plots.render_png(plots.draw_image_grid([], []), 20)
  with pytest.raises(InterruptedError):
    loop.train(runs.dying(parts, 5), tmp_path, draw_pictures=lambda: {"first batch": png})
  loop.train(parts, tmp_path, draw_pictures=lambda: {"first batch": png})
  drawn, texts = shown(tmp_path)
  assert texts == {"config": [(0, f"```\n{config.dumps(parts.run)}```")]}
  assert drawn["first batch"] == [(0, png)]
  assert {name: [step for step, _ in each] for name, each in drawn.items()} == {
    "first batch": [0],
    "test/confusion": [6, 12],  # the first, after which no time is left, and the last
    "test/mistakes": [6, 12],
  }
  assert all(sum(len(each[i][1]) for each in drawn.values() if len(each) > i) < 2**20 for i in (0, 1))
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  made = training_log.TrainingLog(
    parts, tmp_path / "other", 0, timer := goodput.GoodputTracker(), timer.phase, Store(), {}
  )
  made.write_config()
  made.draw(12, {"": None})
  assert not (tmp_path / "other").exists()


class RecordingWatch(runtime.Watch):
  """A watch that records the names of its phases."""

  def phase(self, name, detail=str):
    self.entered = [*getattr(self, "entered", []), name]
    return super().phase(name, detail)


def test_first_batch_is_drawn_after_the_first_line_and_counts_as_start(parts, tmp_path, capsys):
  seen = []
  with RecordingWatch(parts.run.limits) as watch:

    def draw():
      seen.append((watch.entered[-1], capsys.readouterr().out))
      time.sleep(2)
      return {}

    result = loop.train(parts, tmp_path, watch=watch, draw_pictures=draw)
  ((phase, printed),) = seen
  assert phase == "save" and "compiled, training" in printed
  assert result["goodput"]["training_prep"] > 2


def test_request_to_stop_takes_effect_after_the_first_batch_is_drawn(parts, tmp_path):
  drawn = []

  def draw():
    os.kill(os.getpid(), signal.SIGINT)  # an exception within an import of a library would end the run without a save
    drawn.append(True)
    return {}

  with pytest.raises(runtime.Stop, match="Step 1 is saved") as stopped:
    loop.train(parts, tmp_path, draw_pictures=draw)
  assert drawn and stopped.value.code == runtime.EXIT_INTERRUPTED


@pytest.mark.long
def test_a_thousand_classes_and_images_that_went_are_drawn_within_the_bound(parts, monkeypatch):
  source = catalog.open_split(parts.run.data, "test")
  gone = dataclasses.replace(source, classes=tuple(f"class {i}" for i in range(1000)), read=None)
  generator = np.random.default_rng(0)
  label, best = generator.integers(0, 1000, 300), generator.integers(0, 1000, (300, 5))
  rows = np.arange(300), label, best, *generator.random((2, 300))

  def read(record):
    if record % 2:
      raise FileNotFoundError(errno.ENOENT, "gone")
    return source.read(record)

  details = AccuracyDetails(dataclasses.replace(gone, read=read), metrics.Predictions(*rows))
  drawn = training_log.draw_predictions(details, parts.run.data)
  assert drawn.keys() == {"confusion", "mistakes"}
  assert sum(map(len, drawn.values())) < 2**20
  right = details._replace(predictions=details.predictions._replace(best=label[:, None]))
  assert training_log.draw_predictions(right, parts.run.data).keys() == {"confusion"}
  more = right._replace(source=dataclasses.replace(source, classes=tuple(map(str, range(1001)))))
  assert training_log.draw_predictions(more, parts.run.data) == {}

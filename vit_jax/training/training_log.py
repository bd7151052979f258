"""The training log. Metrics of steps are fetched from the devices with a delay, checked, averaged, and written."""

import collections
import contextlib
import json
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from vit_jax import checkpoints, config, runtime, schema
from vit_jax.data import crops
from vit_jax.data.bound_data import EvalData
from vit_jax.data.images import ImageError
from vit_jax.evals import Outcome, metrics, selection
from vit_jax.evals.accuracy import AccuracyDetails
from vit_jax.parallel import hardware
from vit_jax.runtime import print_line
from vit_jax.training import goodput, time_to_target, writer
from vit_jax.training.experiment import Experiment

# share of the time spent waiting for data that triggers advice, and the required number of consecutive lines
WAITING, WAITS = 0.1, 3
PROBLEMS = 2  # number of consecutive lines with a problem of the task after which a warning is printed
EARLY = 0.1  # share of a run at its start in which no problem of the task is reported
SHORTEST = 0.01  # seconds of steps that a printed throughput requires
DRAWING = 0.01  # maximum share of a run's time for pictures before its end
# maximum number of classes and of mistakes in a picture; size of a tile in pixels
CLASSES, MISTAKES, TILE = 1000, 24, 96
AHEAD = 4  # maximum number of steps by which the devices may lag behind this program


class TrainingLog:
  """The log of a run. It must be closed.

  Args:
    experiment: the run.
    workdir: directory of the log files.
    start: step from which the run continues.
    timer: clock of the attempt.
    phase: context manager that marks a phase of the run by name.
    store: checkpoints of the run.
    about: metadata of the checkpoint that was restored.
  """

  def __init__(
    self,
    experiment: Experiment,
    workdir: pathlib.Path,
    start: int,
    timer: goodput.GoodputTracker,
    phase: Callable[[str], contextlib.AbstractContextManager[None]],
    store: checkpoints.Checkpoints,
    about: dict[str, Any],
  ) -> None:
    self.clock, self._phase = timer, phase
    self._experiment, self._start, self._store = experiment, start, store
    self._writer = writer.Writer(
      workdir, start, jax.process_index() == 0, again=start == experiment.total or not about.get("evaluated", True)
    )
    self._pending = collections.deque()  # (step, metrics on the devices), not fetched yet
    saved = about.get("pending", {"steps": 0, "sums": {}})
    # {metric: sum} over steps that were fetched and not written yet
    self._sums = collections.defaultdict(float, saved["sums"])
    self._summed = saved["steps"]  # number of these steps
    self._lap_start = self._seen = start  # step
    self._skipped = 0
    self._evaluated: int | None = None  # step
    # {evaluation: [number of steps at which it was measured, last of these steps]}
    every = {name: each.every for name, each in experiment.evals.items()}
    self._measured = about.get("measured", selection.count_measurements(every, start))
    self._target = self._start_target(workdir, about.get("target"))
    self._drawing = 0.0  # seconds
    # Steps without warnings of the task. Features of a model that has barely been trained look like collapsed features.
    warmup = experiment.run.optim.args.get("warmup", schema.Duration("0"))
    self._early = max(experiment.count_steps(warmup), math.ceil(EARLY * experiment.total))
    self._problems = 0  # consecutive lines with a problem of the task; negative after the warning was printed
    self._waits = 0  # consecutive lines in which the devices waited for data; negative after the advice was printed

  def _start_target(self, workdir: pathlib.Path, stored: time_to_target.Record | None) -> time_to_target.Record | None:
    """Returns the time to target at the start. A new target may have been reached in an earlier attempt."""
    record = time_to_target.start_record(self._experiment.run.log.target, stored)
    if record is None or not self._start:
      return record
    if jax.process_index() == 0:  # other hosts may not share the workdir
      record = time_to_target.add_logged_evaluations(record, writer.read_rows(workdir))
    record = json.loads(runtime.gather_texts(json.dumps(record), "target")[0])
    if record["step"] is not None and record != stored:
      print_line(time_to_target.format_logged_target(record))
    return record

  def add(self, step: int, metrics: dict[str, jax.Array], skipped: int) -> None:
    """Adds the metrics of a step, which the devices may not have completed.

    Args:
      step: number of the step.
      metrics: scalars on the devices by name.
      skipped: number of images skipped so far.
    """
    self._pending.append((step, metrics))
    self._skipped = skipped
    # The devices must not lag far behind: the watch measures their progress, and a stop must take effect within a few
    # steps.
    if len(self._pending) > AHEAD:
      jax.block_until_ready(self._pending[-1 - AHEAD][1])

  def get_progress(self, step: int) -> dict[str, Any]:
    """Returns the progress to store in a checkpoint.

    The progress contains times, sums for the next line, whether all due evaluations are done, the number of
    measurements, and the time to target.

    Args:
      step: step of the checkpoint.
    """
    pending = {"steps": self._summed, "sums": dict(self._sums)}
    evaluated = self._evaluated == step or not self._experiment.find_due_evals(step)
    counts = self.clock.get_counts() | self.describe_target()
    return counts | {"pending": pending, "evaluated": evaluated, "measured": self._measured}

  def count_measurements(self) -> dict[str, int]:
    """Returns the number of measurements of each evaluation in all attempts of the run."""
    return {name: times for name, (times, _) in self._measured.items()}

  def describe_target(self) -> dict[str, Any]:
    """Returns the entry of result.json with the target, and the step and hours at which the run reached it."""
    return {} if self._target is None else {"target": self._target}

  def write_due(self, step: int) -> None:
    """Writes the means up to `step` if a line is due at this step.

    The first step only starts the clock, because it includes the compilation.

    Args:
      step: number of completed steps.
    """
    if step == self._seen:
      return
    first = step == self._start + 1
    if first:
      self._fetch(step)
      self.clock.measure_lap(0)
      self._lap_start = step
    if step % self._experiment.log_every == 0:
      self.write(step)
    elif first:
      print_line(f"{step:>7}/{self._experiment.total}  loss {self._loss:.4f}; compiled, training")
    self._seen = step

  def write(self, step: int) -> None:
    """Writes and prints throughput, and means over the steps since the last line.

    Args:
      step: number of completed steps.
    """
    self._fetch(step)
    self._seen = step
    if not self._summed:
      return
    means = {name: total / self._summed for name, total in self._sums.items()}
    self._summed = 0
    self._sums.clear()
    experiment, headline = self._experiment, self._experiment.task.headline
    scalars = {f"train/{name}": value for name, value in means.items()} | {
      "train/learning_rate": float(experiment.schedule(step - 1)),
      "skipped_images": self._skipped,
      "train/epoch": step * experiment.run.batch / experiment.epoch_length,
    }
    scalars |= {
      f"train/epoch_{name}": seen for name, seen in experiment.images.epochs(step * experiment.run.batch).items()
    }
    line = f"{step:>7}/{experiment.total}  {step / experiment.total:4.0%}  loss {means['loss']:.4f}"
    if headline in means:
      line += f"  top-1 {means['top1']:6.1%}" if headline == "top1" else f"  {headline} {means[headline]:.4f}"
    images = (step - self._lap_start) * experiment.run.batch
    self._lap_start = step
    # A process that has one step left has no lap.
    if images and (lap := self.clock.measure_lap(images)):
      rates = self._add_chip_rates(lap)
      scalars |= rates
      if images >= SHORTEST * rates["images_per_second"]:
        rate = rates["images_per_second"]
        line += f"  {rate:,.{0 if rate >= 10 else 1}f} images/s  waiting for data {rates['data_wait']:.0%}"
        line += f"  MFU {rates['mfu']:.1%}" if "mfu" in rates else ""
      assert self.clock.rate is not None, "a complete lap has a rate"
      remaining = (experiment.total - step) * experiment.run.batch / self.clock.rate
      line += f"  {int(remaining // 60)}:{int(remaining % 60):02d} left"
    self._writer.write(step, scalars)
    self.clock.write()
    print_line(line)
    self._print_advice(scalars.get("data_wait", 0.0))
    if step > self._early:
      self._print_problem(means)

  @contextlib.contextmanager
  def phase(self, name: str, step: int) -> Iterator[None]:
    """Marks a phase after a step. All steps are completed and checked first.

    Args:
      name: name of the phase.
      step: number of completed steps.
    """
    self._fetch(step)
    with self._phase(name):
      yield

  def write_evaluation(self, step: int, figures: dict[str, float]) -> None:
    """Writes all figures of an evaluation and prints the main ones.

    Args:
      step: number of completed steps.
      figures: values by name.
    """
    self._evaluated = step
    for name in dict.fromkeys(selection.format_name(name).rpartition("/")[0] for name in figures):
      times, last = self._measured.get(name, (0, None))
      self._measured[name] = [times + (step != last), step]
    self._writer.write(step, {selection.format_name(name): value for name, value in figures.items()})
    shown = [name for name in figures if name.endswith(("top1", "loss", "shot", "_all", "entropy"))]
    print_line(
      f"{step:>7}  evaluated: " + "  ".join(f"{selection.format_name(name)} {figures[name]:.4f}" for name in shown)
    )
    if self._target is not None:
      before = self._target
      self._target = time_to_target.update_record(before, step, figures, self.clock.train_seconds)
      if self._target is not before:
        print_line(
          f"{step:>7}  reached {time_to_target.format_target(self._target)} after {self._target['hours']:,.3g} h"
        )

  def write_config(self) -> None:
    """Writes the config to TensorBoard if the run starts at its first step."""
    if self._start == 0:
      self._writer.write_text(0, "config", f"```\n{config.dumps(self._experiment.run)}```")

  def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
    """Writes pictures to TensorBoard.

    Args:
      step: the step at which TensorBoard shows them.
      pictures: PNG files by name.
    """
    for name, png in pictures.items():
      self._writer.write_image(step, name, png)

  def draw(self, step: int, measured: Mapping[str, Outcome]) -> None:
    """Writes pictures of an evaluation to TensorBoard.

    Pictures are omitted if `config.log.images` is false, and before the end of the run also if drawing them has taken
    more than 1 % of the training time.

    Args:
      step: number of completed steps.
      measured: outcomes by prefix.
    """
    if jax.process_index() != 0 or not self._experiment.run.log.images:
      return
    if step < self._experiment.total and self._drawing > DRAWING * self.clock.train_seconds:
      return
    start_time = time.perf_counter()
    for prefix, outcome in measured.items():
      if isinstance(outcome.details, AccuracyDetails) and not prefix.endswith("ema_"):
        run, prefix = self._experiment.run, prefix or "test/"
        data = run.evals[prefix[:-1]].data or run.data
        drawn = draw_predictions(outcome.details, data)
        self.write_pictures(step, {prefix + name: png for name, png in drawn.items()})
    self._drawing += time.perf_counter() - start_time

  def flush(self) -> None:
    """Makes all written data available for a restart."""
    self._writer.flush()

  def _print_advice(self, waited: float) -> None:
    """Prints advice once if waiting for data has taken too large a share of the time in several consecutive lines."""
    self._waits = (self._waits + 1 if waited > WAITING else 0) if self._waits >= 0 else -1
    if self._waits == WAITS:
      self._waits = -1
      remedy = self._experiment.run.data.suggest_settings(self._experiment.images)
      print_line(f"{waited:.0%} of the time is spent waiting for data, with {remedy}")

  def _print_problem(self, means: Mapping[str, float]) -> None:
    """Prints a warning of the task once if its metrics show a problem in several consecutive lines."""
    problem = self._experiment.task.check_metrics(means)
    self._problems = (self._problems + 1 if problem else 0) if self._problems >= 0 else -1
    if self._problems == PROBLEMS:
      self._problems = -1
      print_line(f"warning: {problem}")

  def close(self) -> None:
    """Closes the files."""
    self._writer.close()

  def _add_chip_rates(self, rates: dict[str, float]) -> dict[str, float]:
    """Adds the throughput per chip to the throughput of a lap."""
    devices = self._experiment.mesh.devices
    per_chip, peak = rates["images_per_second"] / devices.size, hardware.get_peak_flops(devices.flat[0])
    utilisation = {"mfu": per_chip * self._experiment.training_flops / peak} if peak else {}
    return rates | {"images_per_second_per_chip": per_chip} | utilisation

  def _fetch(self, step: int) -> None:
    """Fetches the metrics up to `step` from the devices, which complete that step, and checks them."""
    steps = []
    while self._pending and self._pending[0][0] <= step:
      steps.append(self._pending.popleft())
    rows = jax.device_get([metrics for _, metrics in steps])
    for (number, _), row in zip(steps, rows, strict=True):
      check_finite(number, row, self._store)
      for name, value in row.items():
        self._sums[name] += float(value)
      self._summed, self._loss = self._summed + 1, row["loss"]


def draw_predictions(details: AccuracyDetails, data: EvalData) -> dict[str, bytes]:
  """Draws predictions: the confusion matrix, and the worst mistakes.

  Args:
    details: details of an accuracy evaluation.
    data: the data choice of the evaluated images.

  Returns:
    Maps names to bytes of PNG files, together less than 1 MB.
  """
  from vit_jax.evals import plots  # the import takes half a second and is not needed at the start

  source, predictions, _ = details
  drawn, classes = {}, source.classes
  if source.labels == 1 and len(classes) <= CLASSES:
    figure = plots.draw_confusion(metrics.compute_confusion(predictions, len(classes)), classes)
    drawn["confusion"] = plots.render_png(figure, 75 if len(classes) <= 100 else 50)
  if len(rows := metrics.find_mistakes(predictions, MISTAKES)):
    images, tiles, words = data.images(source, "raise"), [], []
    for row in rows:
      record = int(predictions.position[row])
      try:
        made = images.read_prepared(record, lambda image: crops.shrink(np.asarray(image), TILE))
        tile = None if made is None else made[0]
      except ImageError:  # the file was removed after the evaluation
        tile = None
      labels = [classes[label] for label in np.atleast_1d(predictions.label[row]) if label >= 0]
      guess = f"{predictions.confidence[row]:.0%} {classes[predictions.best[row, 0]]}"
      tiles.append(tile)
      words.append((source.display_name(record).rpartition("/")[2], f"is {', '.join(labels)}", guess))
    drawn["mistakes"] = plots.render_png(plots.draw_image_grid(tiles, words), 80)
  return drawn


def check_finite(step: int, metrics: dict[str, np.ndarray], store: checkpoints.Checkpoints) -> None:
  """Ends the run if a metric of a step is NaN or infinite.

  Args:
    step: step of the metrics.
    metrics: scalars by name.
    store: checkpoints. The message names the last valid one.

  Raises:
    runtime.Stop: a metric is not finite. The exit code is 44.
  """
  wrong = {name: float(value) for name, value in metrics.items() if not np.isfinite(value)}
  if wrong:
    raise make_not_finite_error(step, f"not finite: {wrong}", store)


def make_not_finite_error(step: int, problem: str, store: checkpoints.Checkpoints) -> runtime.Stop:
  """Returns the exception that ends a run because of NaN or infinite values, with exit code 44.

  Args:
    step: step of the values.
    problem: description of the values.
    store: checkpoints. The message names the last valid one.
  """
  store.wait()
  saved = store.list_steps()
  return runtime.Stop(
    runtime.EXIT_NOT_FINITE,
    f"step {step}: {problem}; "
    + (f"the last good checkpoint is step {saved[-1]}. " if saved else "no checkpoint was saved yet. ")
    + "A lower config.optim.lr, a longer warmup or config.optim.clip usually helps.",
  )

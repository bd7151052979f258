"""Reading of a workdir's small files: config, metrics, result, and account of the time."""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import checkpoints, models
from vit_jax.checkpoints import forms, provenance
from vit_jax.evals import selection
from vit_jax.inference import stored
from vit_jax.parallel import hardware
from vit_jax.schema import ConfigError
from vit_jax.storage import files
from vit_jax.training import goodput, time_to_target, writer
from vit_jax.training.bound_run import BoundRun

PLAN = "plan.json"


@dataclasses.dataclass(frozen=True)
class RecordedRun:
  """The files of a run, finished or not.

  Attributes:
    name: name in the page.
    workdir: the workdir.
    run: the config.
    rows: lines of metrics.jsonl, by step.
    result: content of result.json, empty before the end.
    attempts: number of attempts.
    seconds: seconds of each phase of `goodput.PHASES`, over all attempts.
    waited: seconds between attempts.
    start_time: start of the first attempt in seconds since the epoch.
    recipe: content of recipe.json: "config", "about" and "changes". It is empty in older workdirs.
    plans: content of plan.json, which the user may write by `vit_jax.plan --json`.
    records: number of training images, if known.
    devices: kind, count and number of processes.
    description: the model, or None before the first checkpoint.
    changed_length: whether the run had another length before a restart.
    progress: time to target in the newest checkpoint, or None.
  """

  name: str
  workdir: pathlib.Path
  run: BoundRun
  rows: Sequence[Mapping[str, float]]
  result: Mapping[str, Any]
  attempts: int
  seconds: Mapping[str, float]
  waited: float
  start_time: float | None
  recipe: Mapping[str, Any]
  plans: Sequence[Mapping[str, Any]]
  records: int | None
  devices: Mapping[str, Any]
  description: models.Description | None
  changed_length: bool = False
  progress: Mapping[str, Any] | None = None

  @property
  def steps(self) -> int:
    """Number of steps that are completed and recorded."""
    return max([int(row["step"]) for row in self.rows] + [int(self.result.get("steps", 0))], default=0)

  @property
  def total(self) -> int | None:
    """Number of steps of the whole run, or None if the number of images is unknown."""
    if self.result:
      return int(self.result["steps"])
    if self.run.total.unit in ("st", "ex") or self.records:
      return self.run.total.count_steps(self.run.batch, self.records or 1)
    return None

  @property
  def core_hours(self) -> float:
    """Hours of all attempts, with start, compilation and evaluations, times `cores`."""
    return sum(self.seconds.values()) / 3600 * self.cores

  @property
  def cores(self) -> int:
    """Number of cores for which core-hours are counted: TensorCores of a TPU, or JAX devices of a GPU or CPU."""
    count = int(self.devices.get("count", 0)) or self._devices_of_rows()
    each = [
      made.cores / made.devices for made in hardware.GENERATIONS.values() if made.kind == self.devices.get("kind")
    ]
    return round(count * each[0]) if each else count

  def _devices_of_rows(self) -> int:
    for row in reversed(self.rows):
      if (each := row.get("images_per_second_per_chip", 0)) > 0 and (rate := row.get("images_per_second", 0)) >= each:
        return round(rate / each)
    return 1

  @property
  def figures(self) -> dict[str, float]:
    """Metrics of the result, or of the last evaluations if the run is not finished. Names of `test` have no prefix."""
    if self.result:
      return {k: v for k, v in self.result.items() if forms.is_number(v) and k not in selection.NOT_FIGURES}
    last = {}
    for row in self.rows:
      last |= {k.removeprefix("test/"): v for k, v in row.items() if _is_evaluation_figure(k)}
    return last

  @functools.cached_property
  def target(self) -> dict[str, Any] | None:
    """The target with the step and hours at which it was reached, or None without a target. See `time_to_target`.

    Before the end of the run, evaluations after the newest checkpoint also count. Their hours are unknown.
    """
    if "target" in self.result:
      return self.result["target"]
    record = time_to_target.start_record(self.run.log.target, self.progress)
    return record and time_to_target.add_logged_evaluations(record, self.rows)

  def series(self, metric: str) -> "Curve":
    """Returns a metric as a curve, which is empty if no line contains the metric."""
    points = [(row["step"], row[metric]) for row in self.rows if metric in row]
    steps, values = np.array(points, np.float64).reshape(-1, 2).T
    at, hours = self._hours()
    return Curve(steps * self.run.batch, np.interp(steps, at, hours), values)

  def _hours(self) -> tuple[list[float], list[float]]:
    """Returns (steps, core-hours of training up to each step). A line without a rate uses the rate of the next line."""
    laps = [(row["step"], row.get("images_per_second")) for row in self.rows if "train/loss" in row]
    steps, hours, rate, cores = [0.0], [0.0], None, self.cores
    rates = []
    for _, measured in reversed(laps):
      rate = measured or rate
      rates.append(rate or self.result.get("images_per_second") or math.inf)
    for (step, _), rate in zip(laps, reversed(rates), strict=True):
      hours.append(hours[-1] + (step - steps[-1]) * self.run.batch / rate / 3600 * cores)
      steps.append(step)
    return steps, hours


@dataclasses.dataclass(frozen=True)
class Curve:
  """A curve of N points.

  Attributes:
    images: images seen (N,).
    hours: core-hours of training (N,).
    values: values of the metric (N,).
  """

  images: np.ndarray
  hours: np.ndarray
  values: np.ndarray

  def thin_out(self, most: int) -> "Curve":
    """Returns at most `most` of the points, evenly distributed, with both ends."""
    count = len(self.values)
    kept = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
    return Curve(self.images[kept], self.hours[kept], self.values[kept])


def read_run(workdir: pathlib.Path, name: str) -> RecordedRun:
  """Reads the files of a run.

  Args:
    workdir: the workdir.
    name: name of the run in the page.

  Raises:
    ConfigError: the workdir does not contain a run, or a file cannot be read.
  """
  run = stored.load_run(workdir)
  if run is None:
    raise ConfigError(f"{workdir} contains no run (no config.json)")
  about = checkpoints.read_description(workdir, forms.check_metadata) or {}
  of_state = about.get("identity", {})
  account = goodput.read_account(workdir / "goodput.json")
  return RecordedRun(
    name=name,
    workdir=workdir,
    run=run,
    rows=writer.read_rows(workdir),
    result=_check_result(files.read_json(workdir / "result.json") or {}),
    attempts=account.attempts,
    seconds=account.seconds,
    waited=account.waited,
    start_time=account.start_time,
    recipe=files.read_json(workdir / provenance.RECIPE) or {},
    plans=_read_plans(workdir / PLAN),
    records=of_state.get("data", {}).get("records"),
    devices=of_state.get("devices", {}),
    description=models.Description.from_json(about["model"]) if "model" in about else None,
    changed_length=about.get("changed_length", False),
    progress=about.get("target"),
  )


def _check_result(values: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the valid values of a result, or {} if the file has another content."""
  if not all(forms.is_number(values.get(key)) for key in ("steps", "train_seconds")):
    return {}
  goodput, packages = (values[key] if isinstance(values.get(key), dict) else {} for key in ("goodput", "packages"))
  return {key: value for key, value in values.items() if forms.is_number(value)} | {
    "goodput": {key: value for key, value in goodput.items() if forms.is_number(value)},
    "packages": {key: value for key, value in packages.items() if isinstance(value, str)},
    **({"target": values["target"]} if forms.is_target_record(values.get("target")) else {}),
  }


def _read_plans(path: pathlib.Path) -> list[dict[str, Any]]:
  """Returns the successful plans in a file of `vit_jax.plan --json`."""
  content = files.read_if_exists(path)
  if content is None:
    return []
  try:
    plans = files.parse_json(content)
    made = [each for each in plans if each["problem"] is None]
    if not all(forms.is_number(each[key]) for each in made for key in ("hours", "core_days")):
      raise ValueError("hours or core_days is not a number")
    return [each for each in made if each["rented"]]
  except (ValueError, LookupError, TypeError) as error:
    raise ConfigError(f"{path} was not written by vit_jax.plan ({error}). Fix or remove it") from error


def _is_evaluation_figure(key: str) -> bool:
  return "/" in key and not key.startswith("train/")

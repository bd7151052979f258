"""What the small files of a workdir say of a run: its config, its lines, its result and where its time went."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import checkpoints, clock, config, files, hardware, identity, models
from vit_jax.inference import stored
from vit_jax.schema import ConfigError

PLAN = "plan.json"
LARGEST = 1e30


@dataclasses.dataclass(frozen=True)
class Recorded:
  """A run, finished or not."""

  name: str  # in the page
  workdir: pathlib.Path
  run: config.Run
  rows: Sequence[Mapping[str, float]]  # lines of metrics.jsonl, by step
  result: Mapping[str, Any]  # of result.json; nothing before the end
  attempts: int
  seconds: Mapping[str, float]  # by phase, of `clock.PHASES`, over all attempts
  waited: float  # seconds between attempts
  began: float | None  # when the first attempt began, in seconds since the epoch
  recipe: Mapping[str, Any]  # "config", "about" and "changes", as `train` wrote them; nothing in older workdirs
  plans: Sequence[Mapping[str, Any]]  # of plan.json, which `vit_jax.plan --json` may have put there
  records: int | None  # images to train on
  devices: Mapping[str, Any]  # kind, count, processes
  description: models.Description | None  # of its model; None before the first checkpoint

  @property
  def steps(self) -> int:
    """That are done and written down."""
    return max([int(row["step"]) for row in self.rows] + [int(self.result.get("steps", 0))], default=0)

  @property
  def total(self) -> int | None:
    """Steps of the whole run; None where nobody says how many images there are."""
    if self.result:
      return int(self.result["steps"])
    if self.run.total.unit in ("st", "ex") or self.records:
      return self.run.total.steps(self.run.batch, self.records or 1)
    return None

  @property
  def core_hours(self) -> float:
    """Hours of all attempts, with start, compilation and evaluations, times cores; see `cores`."""
    return sum(self.seconds.values()) / 3600 * self.cores

  @property
  def cores(self) -> int:
    """Cores that a run is paid by: of a TPU its TensorCores, of a GPU and a CPU the devices of JAX."""
    count = int(self.devices.get("count", 0)) or self._devices_of_rows()
    each = [
      made.cores / made.devices for made in hardware.GENERATIONS.values() if made.kind == self.devices.get("kind")
    ]
    return round(count * each[0]) if each else count

  def _devices_of_rows(self):
    for row in reversed(self.rows):
      if (each := row.get("images_per_second_per_chip", 0)) > 0 and (rate := row.get("images_per_second", 0)) >= each:
        return round(rate / each)
    return 1

  @property
  def figures(self) -> dict[str, float]:
    """Metrics of the result, before it is there of the last evaluations; those on test by their name alone."""
    if self.result:
      beside = {"seed", "steps", "train_seconds", "images_per_second", "skipped_images"}
      return {k: v for k, v in self.result.items() if _is_number(v) and k not in beside}
    last = {}
    for row in self.rows:
      last |= {k.removeprefix("test/"): v for k, v in row.items() if _of_evaluation(k)}
    return last

  def series(self, metric: str) -> "Series":
    """A metric over the run; without points where no line has it."""
    points = [(row["step"], row[metric]) for row in self.rows if metric in row]
    steps, values = (np.array(column, np.float64) for column in zip(*points, strict=True)) if points else ([], [])
    at, hours = self._hours()
    return Series(np.asarray(steps) * self.run.batch, np.interp(steps, at, hours), np.asarray(values))

  def _hours(self):
    """(steps, core-hours of training up to them) from the rates of the lines; one without a rate has the next one's."""
    laps = [(row["step"], row.get("images_per_second")) for row in self.rows if "train/loss" in row]
    steps, hours, rate = [0.0], [0.0], None
    rates = []
    for _, measured in reversed(laps):
      rate = measured or rate
      rates.append(rate or self.result.get("images_per_second") or math.inf)
    for (step, _), rate in zip(laps, reversed(rates), strict=True):
      hours.append(hours[-1] + (step - steps[-1]) * self.run.batch / rate / 3600 * self.cores)
      steps.append(step)
    return steps, hours


@dataclasses.dataclass(frozen=True)
class Series:
  """A curve: values [N] at so many images seen [N] and core-hours of training [N]."""

  images: np.ndarray
  hours: np.ndarray
  values: np.ndarray

  def thinned(self, most: int) -> "Series":
    """So many of the points at most, evenly over them and with both ends."""
    count = len(self.values)
    kept = np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))
    return Series(self.images[kept], self.hours[kept], self.values[kept])


def read(workdir: pathlib.Path, name: str) -> Recorded:
  """What is known of the run in a workdir; ConfigError where there is none, or a file of it cannot be read."""
  run = stored.run_of(workdir)
  if run is None:
    raise ConfigError(f"{workdir} holds no run (no config.json)")
  about = checkpoints.about(workdir, identity.check) or {}
  of_state = about.get("identity", {})
  attempts, seconds, waited = clock.spent(workdir / "goodput.json")
  return Recorded(
    name=name,
    workdir=workdir,
    run=run,
    rows=_rows(workdir / "metrics.jsonl"),
    result=_result(files.read_json(workdir / "result.json") or {}),
    attempts=attempts,
    seconds=seconds,
    waited=waited,
    began=clock.began(workdir / "goodput.json"),
    recipe=files.read_json(workdir / identity.RECIPE) or {},
    plans=_plans(workdir / PLAN),
    records=of_state.get("data", {}).get("records"),
    devices=of_state.get("devices", {}),
    description=models.Description.from_json(about["model"]) if "model" in about else None,
  )


def _rows(path) -> list[dict[str, float]]:
  """The whole lines of metrics.jsonl, their numbers alone; a kill may have left half a line."""
  rows = []
  for line in (files.content(path) or b"").splitlines():
    try:
      values = files.parse_json(line)
    except ValueError:
      continue
    if isinstance(values, dict) and _is_number(values.get("step")):
      rows.append({key: value for key, value in values.items() if _is_number(value)})
  return sorted(rows, key=lambda row: row["step"])


def _result(values):
  """The numbers of a result, and of its groups those values that are what they should be; nothing of another file."""
  if not all(_is_number(values.get(key)) for key in ("steps", "train_seconds")):
    return {}
  goodput, packages = (values[key] if isinstance(values.get(key), dict) else {} for key in ("goodput", "packages"))
  return {key: value for key, value in values.items() if _is_number(value)} | {
    "goodput": {key: value for key, value in goodput.items() if _is_number(value)},
    "packages": {key: value for key, value in packages.items() if isinstance(value, str)},
  }


def _plans(path) -> list[dict[str, Any]]:
  """Plans that could be made, of a file of `vit_jax.plan --json`."""
  content = files.content(path)
  if content is None:
    return []
  try:
    plans = files.parse_json(content)
    made = [each for each in plans if each["problem"] is None]
    if not all(_is_number(each[key]) for each in made for key in ("hours", "core_days")):
      raise ValueError("hours or core_days is no number")
    return [each for each in made if each["rented"]]
  except (ValueError, LookupError, TypeError) as error:
    raise ConfigError(f"{path} is none of vit_jax.plan's ({error}); mend or remove it") from error


def _is_number(value):
  # No figure of a run is larger, and what is may be too large to calculate with or to draw.
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST


def _of_evaluation(key):
  return "/" in key and not key.startswith("train/")

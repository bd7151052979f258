"""What a config file returns: a run, a measurement of weights, a sweep; editable as ConfigDicts, frozen when checked.

A config file defines `get_config(argument)` and returns `recipe(...)`. Flags edit that ConfigDict, `resolve` checks it.
A `sweep()` beside it returns a `Sweep`, or a list of changes: {"optim.lr": 0.01, "seed": 1}, dotted keys of the config
and their values, which may be choices, dict(name="cosine", end=0.0).
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import ml_collections
import numpy as np

from vit_jax import schema
from vit_jax.schema import Choice, ConfigError, Count, Duration, Range, partial, places, plain, required, show

__all__ = ["required"]

# The run.


@dataclasses.dataclass(frozen=True)
class Mesh:
  """Sizes of the device mesh; -1 takes the rest.

  The batch is split over `replica`, `data` and `fsdp`, parameters over `fsdp` and `tensor`; `replica` counts slices.
  """

  replica: Annotated[int, Range(-1, 2**20)] = 1
  data: Annotated[int, Range(-1, 2**20)] = -1
  fsdp: Annotated[int, Range(-1, 2**20)] = 1
  tensor: Annotated[int, Range(-1, 2**20)] = 1


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """Save `every` so often and at the end; keep the newest `keep`, and those at about every `keep_every`."""

  every: Duration = Duration("10%")
  keep: Count = 2
  keep_every: Duration | None = None


@dataclasses.dataclass(frozen=True)
class Log:
  """Write training metrics `every` so often."""

  every: Duration = Duration("2%")


Seconds = Annotated[float, Range(0.1, 1e7)]


@dataclasses.dataclass(frozen=True)
class Limits:
  """Seconds that a run may take for something before it ends, with exit code 43 or as said; see `runtime.EXITS`.

  Args:
    start: until all processes have joined, and until everything is built.
    compile: of the train step.
    restore: of a checkpoint, or of weights to begin with.
    step: between two steps, a batch of images included; at least ten times the median.
    evaluation: of a batch, and what follows the last one.
    save: of a checkpoint, and of closing all files.
    stop: after a request to stop, until the state is saved; the code is that of the request, 42, 130 or 2.
    peer: of silence of another process; the code is 134.
  """

  start: Seconds = 900.0
  compile: Seconds = 1800.0
  restore: Seconds = 1800.0
  step: Seconds = 300.0
  evaluation: Seconds = 1800.0
  save: Seconds = 900.0
  stop: Seconds = 25.0
  peer: Seconds = 60.0


@dataclasses.dataclass(frozen=True)
class Init:
  """The weights a run starts from.

  Args:
    from_: a file of weights or a workdir.
    head: `auto` keeps a head with the same number of classes, `keep` requires it, `new` starts a new one.
    ema: true takes averaged weights, false raw ones. By default averaged ones of a file that has them, and raw ones of
      a workdir.
    prefix: the beginning of the names to read, of a file with several models.
  """

  from_: str | None = None
  head: Literal["auto", "keep", "new"] = "auto"
  ema: bool | None = None
  prefix: str | None = None


@dataclasses.dataclass(frozen=True)
class Run:
  """Everything that decides a training run. With the code and the devices it determines every bit of the result."""

  model: Choice
  data: Choice
  optim: Choice
  total: Duration
  batch: Count
  seed: Annotated[int, Range(0, 2**31 - 1)] = 0
  init: Init = Init()
  task: Choice = Choice("classify")
  evals: Mapping[str, Choice] = dataclasses.field(default_factory=lambda: {"test": Choice("accuracy")})
  mesh: Mesh = Mesh()
  checkpoint: Checkpoint = Checkpoint()
  log: Log = Log()
  limits: Limits = Limits()


@dataclasses.dataclass(frozen=True)
class Measurement:
  """What is measured of given weights: evaluations with data of their own, at `image_size` or that of the weights.

  `ema` and `prefix` select the weights of a file or workdir, as those of `Init`.
  """

  evals: Mapping[str, Choice]
  batch: Annotated[int, Range(1, 2**16)] = 128
  image_size: Count | None = None
  ema: bool | None = None
  prefix: str | None = None
  mesh: Mesh = Mesh()
  limits: Limits = Limits()


def recipe(**fields) -> ml_collections.ConfigDict:
  """The editable view of a run: what a config file returns. Nothing is checked before `resolve`."""
  return _editable(Run, fields)


def measurement(**fields) -> ml_collections.ConfigDict:
  """The editable view of a measurement of weights, for `vit_jax.fewshot`."""
  return _editable(Measurement, fields)


def _editable(kind, fields):
  config = ml_collections.ConfigDict(type_safe=False, convert_dict=True)
  defaults = {
    f.name: plain(schema.default_of(f))
    for f in dataclasses.fields(kind)
    if schema.default_of(f) is not dataclasses.MISSING
  }
  for name, value in (defaults | fields).items():
    group = name in ("init", "mesh", "checkpoint", "log", "limits") and isinstance(value, dict)
    config[name] = {**defaults.get(name, {}), **value} if group else value
  return config


def resolve(config: Mapping, kind: type = Run):
  """Checked, frozen Run (or Measurement) of an editable config; ConfigError for unknown keys, types and ranges."""
  _check_kind(config, kind)
  with schema.at("config"):
    try:
      return schema.convert(partial.with_names(config) if kind is Run else config, kind)
    except schema.UnknownKeyError as error:
      key = error.place.removeprefix("config").removeprefix(".")  # which may be empty
      elsewhere = places.advice(config, key)
      message = error.bare + elsewhere if elsewhere else error.message
      raise schema.UnknownKeyError(message, key) from None
    except ml_collections.config_dict.RequiredValueError as error:
      raise ConfigError(f"a placeholder has no value: {error}") from error
    except RecursionError:
      raise ConfigError("a value contains itself, or is nested deeper than any that there is") from None


def _check_kind(config, kind):
  """ConfigError that names the right command, if the config is for another one."""
  if kind is Run and is_measurement(config):
    raise ConfigError(places.MEASURES)
  if kind is Measurement and {"checkpoint", "task"} <= set(config):
    raise ConfigError(places.TRAINS)


def is_measurement(config: Mapping) -> bool:
  """Returns whether an editable config is one of `measurement`, and not one of `recipe`."""
  return places.is_measurement(config)


def dumps(run: Run) -> str:
  """The resolved config as JSON text with sorted keys; its hash names the run."""
  return json.dumps(plain(run), indent=2, sort_keys=True) + "\n"


# Sweeps.

Changes = Mapping[str, Any]
TRIALS = 100_000  # of a sweep, at most


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Trials of a config, and what becomes of them.

  Args:
    trials: changes of the config, one for each trial. Trials that differ in their seed alone are one setting.
    decide: the figure, of a split that is not the test split, whose mean over seeds is highest for the best setting.
      None compares the settings and chooses none; then each trial is measured by all evaluations of the config.
    final: changes, on top of the best setting's, of runs that are trained again and measured on test, such as
      {"data.train": "train", "seed": 1} where the protocol ends with all training images. None: the best setting's
      own trials are measured on test.
    over: a key whose values are the tasks of a suite, as "data.name": one setting for all, by the mean of `decide`.
  """

  trials: Sequence[Changes]
  decide: str | None = "val/top1"
  final: Sequence[Changes] = ()
  over: str | None = None

  def __post_init__(self):
    for name in ("trials", "final"):
      rows = getattr(self, name)
      if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(f"sweep: {name} is {show(rows)}; allowed: a list of changes such as {{'optim.lr': 0.01}}")
      if odd := [key for row in rows for key in row if not isinstance(key, str)]:
        raise ConfigError(f"sweep: {name} has the key {show(odd[0])}; allowed: keys of the config such as 'optim.lr'")
      _check_count(len(rows))
    if not isinstance(self.decide, str | None):
      raise ConfigError(f"sweep: decide is {show(self.decide)}; allowed: a figure such as 'val/top1', or None")
    if not self.trials:
      raise ConfigError("sweep: there are no trials")
    if self.over is not None and not all(self.over in row for row in [*self.trials, *self.final]):
      raise ConfigError(f"sweep: over is {show(self.over)}; allowed: a key that all of `trials` and `final` change")
    if self.final and not self.decide:
      raise ConfigError("sweep: `final` trains the best again, and nothing decides which that is: give `decide`")


def product(values: Mapping[str, Iterable]) -> list[Changes]:
  """Every combination: product({"optim.lr": (0.01, 0.03), "seed": range(3)}) are six trials, seeds moving first."""
  columns = [_column(key, column) for key, column in values.items()]
  _check_count(math.prod(map(len, columns)))
  return [dict(zip(values, row, strict=True)) for row in itertools.product(*columns)]


def zipped(values: Mapping[str, Iterable]) -> list[Changes]:
  """The first of each, the second of each, ...: all keys have equally many values."""
  columns = {key: _column(key, column) for key, column in values.items()}
  lengths = {key: len(column) for key, column in columns.items()}
  if len(set(lengths.values())) > 1:
    raise ConfigError(f"sweep: zipped keys need equally many values; they have {lengths}")
  return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _column(key, values):
  if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
    raise ConfigError(f"sweep: {key} is {show(values)}; allowed: a list of values to try")
  column = tuple(itertools.islice(values, TRIALS + 1))
  _check_count(len(column))
  return column


def _check_count(trials):
  if trials > TRIALS:
    raise ConfigError(f"sweep: more than {TRIALS:,} trials; try fewer values")


def sample(count: int, values: Mapping[str, Any], seed: int = 0) -> list[Changes]:
  """So many random trials; a value is a sequence to choose from, or a range of numbers: `uniform`, `log_uniform`.

  They follow from the seed; of a larger count the first are the same.
  """
  _check_count(count)
  generator = np.random.default_rng(seed)
  return [{key: _drawn(generator, key, value) for key, value in values.items()} for _ in range(count)]


@dataclasses.dataclass(frozen=True)
class _Interval:
  low: float
  high: float
  logarithmic: bool


def uniform(low: float, high: float) -> _Interval:
  """Numbers between low and high, for `sample`."""
  return _interval(low, high, False)


def log_uniform(low: float, high: float) -> _Interval:
  """Numbers between low and high whose logarithm is uniform, for `sample`: rates, penalties."""
  return _interval(low, high, True)


def _interval(low, high, logarithmic):
  if not (0 if logarithmic else -np.inf) < low < high < np.inf:
    raise ConfigError(f"sweep: {low} to {high} is no range to draw from" + (" by logarithm" if logarithmic else ""))
  return _Interval(low, high, logarithmic)


def _drawn(generator, key, value):
  share = generator.random()
  if isinstance(value, _Interval):
    ends = np.log([value.low, value.high]) if value.logarithmic else np.array([value.low, value.high])
    drawn = ends[0] + share * (ends[1] - ends[0])
    # Four digits: settings that are read, typed and compared.
    return float(f"{np.exp(drawn) if value.logarithmic else drawn:.4g}")
  if not isinstance(value, Sequence) or isinstance(value, str) or not value:
    raise ConfigError(
      f"sweep: {key} is {show(value)}; allowed: a list to choose from, uniform(...) or log_uniform(...)"
    )
  return value[int(share * len(value))]

"""Schemas of config files for training runs, measurements of weights, and sweeps.

A config file defines `get_config(argument)` and returns `recipe(...)`, an editable ConfigDict. Flags edit the
ConfigDict. `resolve` checks it and returns a frozen value. A config file may also define `sweep()`, which returns a
`Sweep` or a list of changes such as {"optim.lr": 0.01, "seed": 1}. The keys are dotted keys of the config. The values
may be choices such as dict(name="cosine", end=0.0).
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
  """Sizes of the axes of the device mesh. An axis of size -1 takes the remaining devices.

  The batch is split over `replica`, `data` and `fsdp`. Parameters are split over `fsdp` and `tensor`.

  Args:
    replica: number of slices.
    data: number of shards of the batch. Each shard has all parameters.
    fsdp: number of shards of both the batch and the parameters.
    tensor: number of shards of each layer.
  """

  replica: Annotated[int, Range(-1, 2**20)] = 1
  data: Annotated[int, Range(-1, 2**20)] = -1
  fsdp: Annotated[int, Range(-1, 2**20)] = 1
  tensor: Annotated[int, Range(-1, 2**20)] = 1


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """Intervals of checkpoints. The last step is always saved.

  Args:
    every: interval between two checkpoints.
    keep: number of the newest checkpoints to keep.
    keep_every: approximate interval between additional checkpoints to keep.
  """

  every: Duration = Duration("10%")
  keep: Count = 2
  keep_every: Duration | None = None


@dataclasses.dataclass(frozen=True)
class Log:
  """Interval of the training log.

  Args:
    every: interval between two records of the training metrics.
  """

  every: Duration = Duration("2%")


Seconds = Annotated[float, Range(0.1, 1e7)]


@dataclasses.dataclass(frozen=True)
class Limits:
  """Time limits of a run in seconds.

  A run that exceeds a limit ends with exit code 43 unless noted otherwise; see `runtime.EXITS`.

  Args:
    start: time until all processes have joined, and time until all components are built.
    compile: time of the compilation of the train step.
    restore: time to read a checkpoint or initial weights.
    step: time between two steps, including loading of the batch. Use at least ten times the median.
    evaluation: time of one batch of an evaluation, and of the computation after the last batch.
    save: time to save a checkpoint, and to close all files.
    stop: time from a stop request until the state is saved. The exit code is that of the request: 42, 130 or 2.
    peer: time without a sign of life from another process. The exit code is 134.
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
  """The weights from which a run starts.

  Args:
    from_: a weight file or a workdir.
    head: `auto` keeps a head with the same number of classes, `keep` requires it, `new` initializes a new head.
    ema: true reads averaged weights, false reads raw weights. The default is averaged weights of a file that contains
      them, and raw weights of a workdir.
    prefix: common prefix of the array names of one model, for a file that contains several models.
  """

  from_: str | None = None
  head: Literal["auto", "keep", "new"] = "auto"
  ema: bool | None = None
  prefix: str | None = None


@dataclasses.dataclass(frozen=True)
class Run:
  """A training run. Together with the code and the devices, it determines every bit of the result.

  Args:
    model: the model and its arguments.
    data: the dataset, its splits, and the preparation of images.
    optim: the optimizer and its schedule.
    total: length of the training.
    batch: images per step, over all devices.
    seed: seed of all random numbers.
    init: weights to start from.
    task: the training objective.
    evals: evaluations by name.
    mesh: sizes of the device mesh.
    checkpoint: intervals of checkpoints.
    log: interval of the training log.
    limits: time limits.
  """

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
  """Evaluations of given weights, each with its own data.

  Args:
    evals: evaluations by name.
    batch: images per batch.
    image_size: image size in pixels. The default is the image size of the weights.
    ema: selects averaged or raw weights, see `Init`.
    prefix: selects one of several models in a file, see `Init`.
    mesh: sizes of the device mesh.
    limits: time limits.
  """

  evals: Mapping[str, Choice]
  batch: Annotated[int, Range(1, 2**16)] = 128
  image_size: Count | None = None
  ema: bool | None = None
  prefix: str | None = None
  mesh: Mesh = Mesh()
  limits: Limits = Limits()


def recipe(**fields) -> ml_collections.ConfigDict:
  """Returns the editable form of a `Run`, which a config file must return.

  Values are not checked before `resolve`.

  Args:
    **fields: fields of `Run`. Groups such as `mesh` may be dicts with some of their keys.

  Example:
    def get_config(argument=None):
      return recipe(
        model=dict(name="ViT-S/16"),
        data=dict(name="folder", path="photos", image_size=224),
        optim=dict(name="adamw", lr=1e-3),
        total="90ep",
        batch=1024,
      )
  """
  return _editable(Run, fields)


def measurement(**fields) -> ml_collections.ConfigDict:
  """Returns the editable form of a `Measurement`, for `vit_jax.fewshot`.

  Args:
    **fields: fields of `Measurement`.
  """
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
  """Checks an editable config and returns a frozen value.

  Args:
    config: result of `recipe` or `measurement`.
    kind: `Run` or `Measurement`.

  Returns:
    An instance of `kind`.

  Raises:
    ConfigError: a key is unknown, or a value has the wrong type, is out of range or is missing.
  """
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
      raise ConfigError("a value contains itself or is nested too deeply") from None


def _check_kind(config, kind):
  """Raises ConfigError with the right command if the config is for another command."""
  if kind is Run and is_measurement(config):
    raise ConfigError(places.MEASURES)
  if kind is Measurement and {"checkpoint", "task"} <= set(config):
    raise ConfigError(places.TRAINS)


def is_measurement(config: Mapping) -> bool:
  """Returns whether an editable config was made by `measurement` rather than `recipe`."""
  return places.is_measurement(config)


def dumps(run: Run) -> str:
  """Returns the resolved config as JSON text with sorted keys. The hash of this text identifies the run."""
  return json.dumps(plain(run), indent=2, sort_keys=True) + "\n"


# Sweeps.

Changes = Mapping[str, Any]
TRIALS = 100_000  # maximum number of trials of a sweep


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Trials of a config, and the selection of the best setting.

  Args:
    trials: changes of the config, one for each trial. Trials that differ only in their seed belong to one setting.
    decide: figure that selects the best setting, which has the highest mean over seeds. The figure must not belong to
      the test split. If None, the settings are compared without a selection, and all evaluations of the config measure
      each trial.
    final: changes of the final runs, which are applied after the changes of the best setting. Final runs are trained
      and measured on test. An example is {"data.train": "train", "seed": 1}, if the protocol ends with training on all
      images. If empty, the trials of the best setting are measured on test.
    over: a key that enumerates the tasks of a suite, such as "data.name". One setting is selected for all tasks, by the
      mean of `decide`.

  Raises:
    ConfigError: a field has the wrong type, or the fields contradict each other.
  """

  trials: Sequence[Changes]
  decide: str | None = "val/top1"
  final: Sequence[Changes] = ()
  over: str | None = None

  def __post_init__(self):
    for name in ("trials", "final"):
      rows = getattr(self, name)
      if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(f"sweep: {name} is {show(rows)}. Allowed: a list of changes such as {{'optim.lr': 0.01}}")
      if odd := [key for row in rows for key in row if not isinstance(key, str)]:
        raise ConfigError(f"sweep: {name} has the key {show(odd[0])}. Allowed: keys of the config such as 'optim.lr'")
      _check_count(len(rows))
    if not isinstance(self.decide, str | None):
      raise ConfigError(f"sweep: decide is {show(self.decide)}. Allowed: a figure such as 'val/top1', or None")
    if not self.trials:
      raise ConfigError("sweep: the list of trials is empty. Add at least one trial")
    if self.over is not None and not all(self.over in row for row in [*self.trials, *self.final]):
      raise ConfigError(f"sweep: over is {show(self.over)}. Allowed: a key that all of `trials` and `final` change")
    if self.final and not self.decide:
      raise ConfigError("sweep: `final` trains the best setting again, but no metric selects it. Set `decide`")


def product(values: Mapping[str, Iterable]) -> list[Changes]:
  """Returns all combinations of values. The last key changes fastest.

  Args:
    values: maps keys of the config to their values.

  Raises:
    ConfigError: a value is not a list, or there are more than `TRIALS` combinations.

  Example:
    trials = product({"optim.lr": (0.01, 0.03), "seed": range(3)})
    assert len(trials) == 6
  """
  columns = [_column(key, column) for key, column in values.items()]
  _check_count(math.prod(map(len, columns)))
  return [dict(zip(values, row, strict=True)) for row in itertools.product(*columns)]


def zipped(values: Mapping[str, Iterable]) -> list[Changes]:
  """Returns one trial for each position in the lists of values.

  Args:
    values: maps keys of the config to lists of equal length.

  Raises:
    ConfigError: a value is not a list, or the lengths differ.
  """
  columns = {key: _column(key, column) for key, column in values.items()}
  lengths = {key: len(column) for key, column in columns.items()}
  if len(set(lengths.values())) > 1:
    raise ConfigError(f"sweep: zipped keys need the same number of values, got {lengths}")
  return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _column(key, values):
  if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
    raise ConfigError(f"sweep: {key} is {show(values)}. Allowed: a list of values to try")
  column = tuple(itertools.islice(values, TRIALS + 1))
  _check_count(len(column))
  return column


def _check_count(trials):
  if trials > TRIALS:
    raise ConfigError(f"sweep: more than {TRIALS:,} trials. Try fewer values")


def sample(count: int, values: Mapping[str, Any], seed: int = 0) -> list[Changes]:
  """Returns random trials. With the same seed, a larger count returns the same first trials as a smaller count.

  Args:
    count: number of trials.
    values: maps keys of the config to a sequence to choose from, or to `uniform(...)` or `log_uniform(...)`.
    seed: seed of the random numbers.

  Raises:
    ConfigError: a value is neither a sequence nor a range, or `count` exceeds `TRIALS`.
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
  """Returns a range for `sample` with uniformly distributed numbers.

  Args:
    low: lower limit.
    high: upper limit.

  Raises:
    ConfigError: `low` is not below `high`, or a limit is infinite.
  """
  return _interval(low, high, False)


def log_uniform(low: float, high: float) -> _Interval:
  """Returns a range for `sample` with log-uniformly distributed numbers, such as learning rates and weight decays.

  Args:
    low: lower limit, above 0.
    high: upper limit.

  Raises:
    ConfigError: `low` is not positive or not below `high`.
  """
  return _interval(low, high, True)


def _interval(low, high, logarithmic):
  if not (0 if logarithmic else -np.inf) < low < high < np.inf:
    raise ConfigError(f"sweep: {low} to {high} is not a range to draw from" + (" by logarithm" if logarithmic else ""))
  return _Interval(low, high, logarithmic)


def _drawn(generator, key, value):
  share = generator.random()
  if isinstance(value, _Interval):
    ends = np.log([value.low, value.high]) if value.logarithmic else np.array([value.low, value.high])
    drawn = ends[0] + share * (ends[1] - ends[0])
    # Four significant digits are easy to read, type and compare.
    return float(f"{np.exp(drawn) if value.logarithmic else drawn:.4g}")
  if not isinstance(value, Sequence) or isinstance(value, str) or not value:
    raise ConfigError(
      f"sweep: {key} is {show(value)}. Allowed: a list to choose from, uniform(...) or log_uniform(...)"
    )
  return value[int(share * len(value))]

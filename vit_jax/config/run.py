"""Schemas of config files for training runs and for measurements of weights.

A config file defines `get_config(argument)` and returns `recipe(...)`, an editable ConfigDict. Flags edit the
ConfigDict. `resolve` checks it and returns a frozen value.
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, overload

import ml_collections

from vit_jax import schema
from vit_jax.schema import Choice, ConfigError, Count, Duration, Range, misplaced, partial, to_plain


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
class Target:
  """A value of a metric. The run records the step and the training hours at which an evaluation first reaches it.

  Args:
    metric: name of a figure of an evaluation, as in `validation/top1`. `top1` is short for `test/top1`.
    value: value of the figure. Shares are between 0 and 1. Losses and errors must fall to this value.
  """

  metric: str | None = None
  value: float | None = None


@dataclasses.dataclass(frozen=True)
class Log:
  """The training log.

  Args:
    every: interval between two records of the training metrics.
    images: draw the first batch, the confusion matrix and the worst mistakes for TensorBoard.
    tracker: experiment tracker that receives the metrics during the run. It requires the extra of the same name.
    target: figure and value. The run records the first evaluation that reaches the value.
    certificate: comparison of the evaluations with a published training curve of the same recipe. "report" prints and
      stores the verdicts. "stop" also ends a run that is below the published range twice in a row, with exit code 46.
      "off" makes no comparison.
  """

  every: Duration = Duration("2%")
  images: bool = True
  tracker: Literal["wandb", "mlflow", "trackio"] | None = None
  target: Target = Target()
  certificate: Literal["report", "stop", "off"] = "report"


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
    save: time to save a checkpoint, to close all files, and to draw the first batch of the run.
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
    head: `auto` keeps a head with the same number of classes, `keep` requires it, `new` initializes a new head and
      new parameters of the task.
    ema: true reads averaged weights, false reads raw weights. The default is averaged weights of a file that contains
      them, and of a workdir with the average as teacher. Otherwise, the default is raw weights.
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


def recipe(**fields: object) -> ml_collections.ConfigDict:
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
  return _make_editable(Run, fields)


def measurement(**fields: object) -> ml_collections.ConfigDict:
  """Returns the editable form of a `Measurement`, for `vit_jax.fewshot`.

  Args:
    **fields: fields of `Measurement`.
  """
  return _make_editable(Measurement, fields)


def _make_editable(kind: type, fields: Mapping[str, object]) -> ml_collections.ConfigDict:
  config = ml_collections.ConfigDict(type_safe=False, convert_dict=True)
  defaults = {
    f.name: to_plain(schema.get_field_default(f))
    for f in dataclasses.fields(kind)
    if schema.get_field_default(f) is not dataclasses.MISSING
  }
  for name, value in {**defaults, **fields}.items():
    group = name in ("init", "mesh", "checkpoint", "log", "limits") and isinstance(value, dict)
    config[name] = {**defaults.get(name, {}), **value} if group else value
  return config


@overload
def resolve(config: Mapping[str, object], kind: type[Run] = Run) -> Run: ...
@overload
def resolve(config: Mapping[str, object], kind: type[Measurement]) -> Measurement: ...
def resolve(config: Mapping[str, object], kind: type[Run] | type[Measurement] = Run) -> Run | Measurement:
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
  with schema.enter_key("config"):
    try:
      result = schema.convert(partial.add_names(config) if kind is Run else config, kind)
      _check_evaluation_names(result.evals)
      return result
    except schema.UnknownKeyError as error:
      key = error.place.removeprefix("config").removeprefix(".")  # which may be empty
      elsewhere = misplaced.suggest_places(config, key)
      message = error.bare + elsewhere if elsewhere else error.message
      raise schema.UnknownKeyError(message, key) from None
    except ml_collections.config_dict.RequiredValueError as error:
      raise ConfigError(f"a placeholder has no value: {error}") from error
    except RecursionError:
      raise ConfigError("a value contains itself or is nested too deeply") from None


def _check_evaluation_names(names: Iterable[str]) -> None:
  """Raises ConfigError for a name of an evaluation that would be ambiguous in names of figures, files and tables."""
  for name in names:
    if not re.fullmatch(r"[\w-]+", name):
      raise ConfigError(f"the name {schema.show(name)} is invalid. Use letters, digits, '_' and '-'", "evals")


def _check_kind(config: Mapping[str, object], kind: type) -> None:
  """Raises ConfigError with the right command if the config is for another command."""
  if kind is Run and is_measurement(config):
    raise ConfigError(misplaced.MEASURES)
  if kind is Measurement and {"checkpoint", "task"} <= set(config):
    raise ConfigError(misplaced.TRAINS)


def is_measurement(config: Mapping[str, object]) -> bool:
  """Returns whether an editable config was made by `measurement` rather than `recipe`."""
  return misplaced.is_measurement(config)


def dumps(run: Run) -> str:
  """Returns the resolved config as JSON text with sorted keys. The hash of this text identifies the run."""
  return json.dumps(to_plain(run), indent=2, sort_keys=True) + "\n"

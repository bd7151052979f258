"""Schemas of sweeps: the trials of a config file, and how they are generated.

A config file may define `sweep()`, which returns a `Sweep` or a list of changes such as {"optim.lr": 0.01, "seed": 1}.
The keys are dotted keys of the config. The values may be choices such as dict(name="cosine", end=0.0).
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.schema import ConfigError, show

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

  def __post_init__(self) -> None:
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


def product(values: Mapping[str, Iterable[object]]) -> list[Changes]:
  """Returns all combinations of values. The last key changes fastest.

  Args:
    values: maps keys of the config to their values.

  Raises:
    ConfigError: a value is not a list, or there are more than `TRIALS` combinations.

  Example:
    trials = product({"optim.lr": (0.01, 0.03), "seed": range(3)})
    assert len(trials) == 6
  """
  columns = [_check_column(key, column) for key, column in values.items()]
  _check_count(math.prod(len(column) for column in columns))
  return [dict(zip(values, row, strict=True)) for row in itertools.product(*columns)]


def zipped(values: Mapping[str, Iterable[object]]) -> list[Changes]:
  """Returns one trial for each position in the lists of values.

  Args:
    values: maps keys of the config to lists of equal length.

  Raises:
    ConfigError: a value is not a list, or the lengths differ.
  """
  columns = {key: _check_column(key, column) for key, column in values.items()}
  lengths = {key: len(column) for key, column in columns.items()}
  if len(set(lengths.values())) > 1:
    raise ConfigError(f"sweep: zipped keys need the same number of values, got {lengths}")
  return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _check_column(key: str, values: Iterable[object]) -> tuple[Any, ...]:
  if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
    raise ConfigError(f"sweep: {key} is {show(values)}. Allowed: a list of values to try")
  column = tuple(itertools.islice(values, TRIALS + 1))
  _check_count(len(column))
  return column


def _check_count(trials: int) -> None:
  if trials > TRIALS:
    raise ConfigError(f"sweep: more than {TRIALS:,} trials. Try fewer values")


def sample(count: int, values: Mapping[str, object], seed: int = 0) -> list[Changes]:
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
  return [{key: _draw_value(generator, key, value) for key, value in values.items()} for _ in range(count)]


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
  return _make_interval(low, high, False)


def log_uniform(low: float, high: float) -> _Interval:
  """Returns a range for `sample` with log-uniformly distributed numbers, such as learning rates and weight decays.

  Args:
    low: lower limit, above 0.
    high: upper limit.

  Raises:
    ConfigError: `low` is not positive or not below `high`.
  """
  return _make_interval(low, high, True)


def _make_interval(low: float, high: float, logarithmic: bool) -> Any:
  if not (0 if logarithmic else -np.inf) < low < high < np.inf:
    raise ConfigError(f"sweep: {low} to {high} is not a range to draw from" + (" by logarithm" if logarithmic else ""))
  return _Interval(low, high, logarithmic)


def _draw_value(generator: Any, key: str, value: object) -> Any:
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

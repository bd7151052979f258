"""Trials of a sweep: which values of a config are tried, what decides between them, what is trained again.

A config file's `sweep()` returns a `Sweep`, or a list of changes. A change is {"optim.lr": 0.01, "seed": 1}: dotted
keys of the config and their values, which may be choices, dict(name="cosine", end=0.0).
"""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.config import ConfigError

Changes = Mapping[str, Any]


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
  """

  trials: Sequence[Changes]
  decide: str | None = "val/top1"
  final: Sequence[Changes] = ()

  def __post_init__(self):
    for name in ("trials", "final"):
      rows = getattr(self, name)
      if isinstance(rows, str | Mapping) or not all(isinstance(row, Mapping) for row in rows):
        raise ConfigError(f"sweep: {name} is {rows!r}; allowed: a list of changes such as {{'optim.lr': 0.01}}")
      if odd := [key for row in rows for key in row if not isinstance(key, str)]:
        raise ConfigError(f"sweep: {name} has the key {odd[0]!r}; allowed: keys of the config such as 'optim.lr'")
    if not isinstance(self.decide, str | None):
      raise ConfigError(f"sweep: decide is {self.decide!r}; allowed: a figure such as 'val/top1', or None")
    if not self.trials:
      raise ConfigError("sweep: there are no trials")
    if self.final and not self.decide:
      raise ConfigError(
        "sweep: `final` trains the best setting again, and nothing decides which that is: give `decide`"
      )


def product(values: Mapping[str, Iterable]) -> list[Changes]:
  """Every combination: product({"optim.lr": (0.01, 0.03), "seed": range(3)}) are six trials, seeds moving first."""
  columns = [_column(key, column) for key, column in values.items()]
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
    raise ConfigError(f"sweep: {key} is {values!r}; allowed: a list of values to try")
  return tuple(values)


def sample(count: int, values: Mapping[str, Any], seed: int = 0) -> list[Changes]:
  """So many random trials; a value is a sequence to choose from, or a range of numbers: `uniform`, `log_uniform`.

  They follow from the seed; of a larger count the first are the same.
  """
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
    raise ConfigError(f"sweep: {key} is {value!r}; allowed: a list to choose from, uniform(...) or log_uniform(...)")
  return value[int(share * len(value))]


def flags(changes: Changes, base: Mapping) -> dict[str, str]:
  """Changes as `--config.KEY=VALUE` has them, {key: text}, for a config whose own values are `base`.

  A choice replaces the one of the config: of that, keys which the new one does not give return to their defaults.
  """
  result = {}
  for key, value in changes.items():
    if not isinstance(value, Mapping):
      result[key] = _text(value)
      continue
    old = base
    for name in key.split("."):
      old = old.get(name, {}) if isinstance(old, Mapping) else {}
    old = old if isinstance(old, Mapping) else {}
    result |= {f"{key}.{name}": "default" for name in old if name not in value}
    result |= flags({f"{key}.{name}": part for name, part in value.items()}, base)
  return result


def _text(value):
  if value is None:
    return "none"
  return repr(tuple(value)) if isinstance(value, list | tuple | range) else str(value)


def of(found: Any, file: str) -> Sweep:
  """The sweep that a config file's `sweep()` returned; a list of changes is compared, and nothing chosen."""
  if isinstance(found, Sweep):
    return found
  if isinstance(found, list | tuple):
    return Sweep(found, decide=None)
  raise ConfigError(
    f"--config: sweep() of {file} returned {found!r}; allowed: a Sweep or a list of changes, see vit_jax/trials.py"
  )

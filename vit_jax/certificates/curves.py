"""Published training curves, and the range in which another run of the same recipe is expected."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

FILES = ("algoperf", "deit3", "big_vision", "digits")
LEVEL = 0.99  # probability that the value of a run with the same recipe is inside its band
WIDENING = 2.0  # factor of the band's width for runs with other floating-point types; an estimate
# The spread at a fraction of the schedule is the mean variance between these multiples of the fraction.
WINDOW = (0.8, 1.25)


class Band(NamedTuple):
  """The expected range of a figure at a fraction of the schedule, as shares from 0 to 1.

  Attributes:
    mean: mean of the published seeds.
    half_width: half of the width of the range.
  """

  mean: float
  half_width: float

  @property
  def low(self) -> float:
    """Lower end of the range."""
    return max(0.0, self.mean - self.half_width)

  @property
  def high(self) -> float:
    """Upper end of the range."""
    return min(1.0, self.mean + self.half_width)


@dataclasses.dataclass(frozen=True)
class Spread:
  """The spread between the seeds of several settings.

  A few seeds underestimate or overestimate the spread of a setting. Therefore its variance is averaged with the median
  variance of all settings. The weights are the degrees of freedom. The median ignores a setting with unstable training.

  Attributes:
    fractions: fractions of the schedule (F,).
    variances: variances between the seeds of K settings (K, F).
    degrees: degrees of freedom of each setting (K,).
  """

  fractions: np.ndarray
  variances: np.ndarray
  degrees: np.ndarray

  @property
  def total_degrees(self) -> int:
    """Degrees of freedom of all settings."""
    return int(self.degrees.sum())

  def compute_std(self, fraction: float, setting: int | None) -> float:
    """Returns the standard deviation at a fraction of the schedule. Outside of the data, the nearest value is used.

    Args:
      fraction: fraction of the schedule.
      setting: index of the setting, or None for a setting that is not among them.
    """
    at = min(max(fraction, self.fractions[0]), self.fractions[-1])
    inside = (self.fractions >= WINDOW[0] * at) & (self.fractions <= WINDOW[1] * at)
    chosen = inside if inside.any() else np.abs(self.fractions - at) == np.abs(self.fractions - at).min()
    each = self.variances[:, chosen].mean(1)
    variance = np.median(each)
    if setting is not None:
      own = self.degrees[setting] / self.total_degrees
      variance = (1 - own) * variance + own * each[setting]
    return float(np.sqrt(variance))


@dataclasses.dataclass(frozen=True)
class Curve:
  """A published curve.

  Attributes:
    name: the recipe that reproduces the published run, such as "configs/digits.py".
    source: address of the published data.
    published: description of the published runs, such as "8 V100, float32".
    config: the groups of the recipe that determine its curve, as a plain config.
    split: split of the evaluated images.
    fine_tuned: whether the published run started from weights.
    fractions: fractions of the schedule (F,), ascending.
    seeds: top-1 as shares from 0 to 1, for S seeds (S, F).
    spread: spread between seeds in the settings of the same source. For single runs, it is the spread of another source
      ("borrowed").
    setting: index of this curve's setting in the spread, or None if the spread is borrowed.
    factor: factor of the standard deviation. It is larger than 1 for a borrowed spread.
    reading_error: largest error of values that were read from a plot, as a share.
    note: origin of a borrowed spread, or "".
  """

  name: str
  source: str
  published: str
  config: Mapping[str, Any]
  split: str
  fine_tuned: bool
  fractions: np.ndarray
  seeds: np.ndarray
  spread: Spread
  setting: int | None = None
  factor: float = 1.0
  reading_error: float = 0.0
  note: str = ""

  def compute_band(self, fraction: float, widened: bool = False) -> Band | None:
    """Returns the range that contains the value of a further run with a probability of 99 %.

    The range is a prediction interval with a quantile of Student's t distribution.

    Args:
      fraction: fraction of the schedule. Values between two published points are interpolated linearly.
      widened: whether the run differs in floating-point types.

    Returns:
      The range, or None outside of the published fractions.
    """
    from scipy import stats  # slow to import, and programs without a curve do not need it

    if not self.fractions[0] <= fraction <= self.fractions[-1]:
      return None
    mean = float(np.mean([np.interp(fraction, self.fractions, seed) for seed in self.seeds]))
    quantile = stats.t.ppf((1 + LEVEL) / 2, self.spread.total_degrees)
    std = self.factor * self.spread.compute_std(fraction, self.setting) * (1 + 1 / len(self.seeds)) ** 0.5
    return Band(mean, float((quantile * std + self.reading_error) * (WIDENING if widened else 1.0)))


@functools.cache
def list_curves() -> tuple[Curve, ...]:
  """Returns all published curves."""
  files = {name: _read_file(name) for name in FILES}
  spreads = {name: _compute_spread(content["curves"]) for name, content in files.items()}
  return tuple(
    _make_curve(content, curve, index, spreads.get(curve.get("spread", {}).get("of", name)))
    for name, content in files.items()
    for index, curve in enumerate(content["curves"])
  )


def _compute_spread(curves: Sequence[Mapping[str, Any]]) -> Spread | None:
  """Returns the spread of the curves in a file, or None if they are single runs."""
  if any("spread" in curve for curve in curves):
    return None
  seeds = [np.array(curve["seeds"]) for curve in curves]
  variances = np.array([each.var(0, ddof=1) for each in seeds])
  return Spread(np.array(curves[0]["fractions"]), variances, np.array([len(each) - 1 for each in seeds]))


def _make_curve(content: Mapping[str, Any], curve: Mapping[str, Any], index: int, spread: Spread | None) -> Curve:
  borrowed = curve.get("spread")
  if borrowed and "std" in borrowed:
    variances = np.full((1, 2), borrowed["std"] ** 2)
    spread = Spread(np.array([0.0, 1.0]), variances, np.array([borrowed["degrees"]]))
  assert spread is not None, "a file of single runs must name the source of its spread"
  return Curve(
    name=curve["name"],
    source=content["source"],
    published=content["published"],
    config=curve["config"],
    split=curve["split"],
    fine_tuned=curve["fine_tuned"],
    fractions=np.array(curve["fractions"]),
    seeds=np.array(curve["seeds"]),
    spread=spread,
    setting=None if borrowed else index,
    factor=borrowed["factor"] if borrowed else 1.0,
    reading_error=curve.get("reading_error", 0.0),
    note=borrowed["note"] if borrowed else "",
  )


def _read_file(name: str) -> dict[str, Any]:
  return json.loads((pathlib.Path(__file__).parent / f"{name}.json").read_text())

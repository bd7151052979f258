"""Confidence intervals at 95 % for proportions and differences, and bootstrap intervals for all other figures.

A proportion is a share of images that are classified correctly, such as top1. Its interval is Wilson's, which is valid
at 0 and at 1. Other figures (means over classes, calibration error, loss) use the percentile bootstrap over images.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

Interval = tuple[float, float]
WILSON, BOOTSTRAP = "Wilson", "bootstrap"
METHODS = f"95 % intervals: {WILSON} score for shares of images, percentile {BOOTSTRAP} over images for other figures."
NONE = "all resamples give the same value, because there are too few images or the images are too similar"
RESAMPLES = 1000
_Z = statistics.NormalDist().inv_cdf(0.975)
_SAME = 1e-9  # resamples agree if their interval is narrower than this
_PROPORTION = re.compile(r"(?:.*[/_])?(?:top1|top5)|(?:.*/)?.+_(?:[1-9]\d*shot|all)")


def compute_wilson_interval(share: float, count: int) -> Interval:
  """Computes the score interval of a proportion (Wilson 1927, JASA 22, 209-212).

  Args:
    share: observed proportion, between 0 and 1.
    count: number of images, at least 1.

  Returns:
    (low, high), within [0, 1]. At a share of 1 the upper end is 1 and the lower end is below 1.

  Example:
    from vit_jax.evals import intervals

    intervals.compute_wilson_interval(0.9, 100)  # (0.826, 0.945)
  """
  middle = (share + _Z * _Z / (2 * count)) / (1 + _Z * _Z / count)
  half = _Z / (1 + _Z * _Z / count) * math.sqrt(share * (1 - share) / count + _Z * _Z / (4 * count * count))
  return max(0.0, middle - half), min(1.0, middle + half)


def compute_difference_interval(one: float, ones: int, other: float, others: int) -> Interval:
  """Computes the interval of the difference of two proportions.

  This is method 10 of Newcombe 1998 (Statistics in Medicine 17, 873-890), for independent samples. If both models are
  measured on the same images, the interval is wider than necessary.

  Args:
    one: first proportion, between 0 and 1.
    ones: number of images of the first proportion.
    other: second proportion, between 0 and 1.
    others: number of images of the second proportion.

  Returns:
    (low, high) of `one - other`, within [-1, 1].
  """
  (low, high), (other_low, other_high) = compute_wilson_interval(one, ones), compute_wilson_interval(other, others)
  gap = one - other
  return gap - math.hypot(one - low, other_high - other), gap + math.hypot(high - one, other - other_low)


class Summary(NamedTuple):
  """Statistics of the runs of one group.

  Attributes:
    mean: mean of a figure over the runs.
    deviation: standard deviation with the divisor n - 1.
    runs: number of runs, at least two.
  """

  mean: float
  deviation: float
  runs: int


def summarize_runs(values: Sequence[float]) -> Summary:
  """Returns the statistics of the figures of at least two runs."""
  return Summary(statistics.mean(values), statistics.stdev(values), len(values))


def compute_combination_interval(terms: Sequence[tuple[float, Summary]]) -> Interval:
  """Computes the interval of a weighted sum of means of groups of runs, by Student's t (Welch 1947, Biometrika 34).

  The variances of the groups may differ. The degrees of freedom follow Satterthwaite. With one term, this is the
  interval of a mean. With the weights 1 and -1, it is Welch's interval of a difference.

  Args:
    terms: weight and statistics of each group.

  Returns:
    (low, high). Both ends are infinite if all deviations are 0, because the noise cannot be estimated then.

  Example:
    from vit_jax.evals import intervals

    intervals.compute_combination_interval([(1.0, intervals.Summary(95.0, 1.0, 3))])  # (92.52, 97.48)
  """
  from scipy import stats

  errors = [(weight * group.deviation) ** 2 / group.runs for weight, group in terms]
  total = sum(errors)
  if not total:
    return -math.inf, math.inf
  freedom = total**2 / sum(error**2 / (group.runs - 1) for error, (_, group) in zip(errors, terms, strict=True))
  middle = sum(weight * group.mean for weight, group in terms)
  half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)
  return middle - half, middle + half


def compute_welch_interval(one: Sequence[float], other: Sequence[float]) -> Interval:
  """Computes the interval of the difference of the means of two groups of runs, see `compute_combination_interval`.

  The interval covers the noise between runs (seeds). It does not cover the choice of the test images.

  Args:
    one: the figure of each run of the first group, at least two.
    other: the figure of each run of the second group, at least two.

  Returns:
    (low, high) of mean(one) - mean(other).
  """
  return compute_combination_interval([(1.0, summarize_runs(one)), (-1.0, summarize_runs(other))])


def bootstrap(
  measure: Callable[[np.ndarray], Mapping[str, float]], count: int, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Interval]:
  """Computes percentile bootstrap intervals over images (Efron and Tibshirani 1993, chapter 13).

  A figure has no interval if all resamples give the same value. For example, mean_per_class of 20 correctly classified
  images would have the interval 100 % to 100 %, which suggests certainty.

  If classes have few images, a resample repeats some images and omits others. This shifts means over classes. With
  1,000 classes of 5 images, a precision_weighted of 0.792 had the interval 0.801 to 0.823.

  Args:
    measure: function from weights, float64 [count], to figures by name. Each image counts as often as its weight.
    count: number of images.
    resamples: number of times that `count` images are drawn with replacement, at least 1.
    seed: seed of the draws.

  Returns:
    {figure: (low, high)}, without the figures for which all resamples give the same value.
  """
  assert resamples > 0, resamples
  draw, resampled = np.random.default_rng(seed), {}
  # The interval of an infinite loss is NaN, which needs no NumPy warning.
  with np.errstate(invalid="ignore"):
    for _ in range(resamples if count else 0):
      # These counts have a multinomial distribution. Counting draws takes a quarter of the time of N binomials.
      weights = np.bincount(draw.integers(0, count, count), minlength=count).astype(np.float64)
      for name, value in measure(weights).items():
        resampled.setdefault(name, []).append(value)
    ends = {name: tuple(np.percentile(values, [2.5, 97.5]).tolist()) for name, values in resampled.items()}
  return {name: (low, high) for name, (low, high) in ends.items() if not high - low < _SAME}


def is_proportion(name: str) -> bool:
  """Returns whether a figure with this name is a share of images, such as top1, val/ema_top5 or digits/knn_all."""
  return bool(_PROPORTION.fullmatch(name))


def compute_figure_intervals(figures: Mapping[str, float]) -> dict[str, Interval]:
  """Computes the intervals of all proportions among the figures of a result.

  Args:
    figures: {name: value} as in result.json. "val/images" is the number of images of "val/top1".

  Returns:
    {figure: (low, high)}. A mean over several draws has no interval here. It has a figure `<name>_std`.
  """
  result = {}
  for name, value in figures.items():
    if not is_proportion(name) or f"{name}_std" in figures or not isinstance(value, int | float):
      continue
    count = figures.get(f"{name.rpartition('/')[0]}/images".lstrip("/"), 0)
    if count >= 1 and 0 <= value <= 1:
      result[name] = compute_wilson_interval(value, int(count))
  return result

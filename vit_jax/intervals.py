"""Confidence intervals at 95 %: one for proportions, one for their differences, one bootstrap for everything else.

A proportion is a share of images that are right, such as top1. Its interval is Wilson's, which is valid at 0 and at 1.
Other figures (means over classes, calibration error, loss) have the percentile bootstrap over images.
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping

import numpy as np

Interval = tuple[float, float]
WILSON, BOOTSTRAP = "Wilson", "bootstrap"
METHODS = f"95 % intervals: {WILSON} score for shares of images, percentile {BOOTSTRAP} over images for other figures."
NONE = "all resamples give the same value, so these images are too few or too alike"
RESAMPLES = 1000
_Z = statistics.NormalDist().inv_cdf(0.975)
_SAME = 1e-9  # width below which the resamples agree
_PROPORTION = re.compile(r"(?:.*[/_])?(?:top1|top5)|(?:.*/)?.+_(?:[1-9]\d*shot|all)")


def wilson(share: float, count: int) -> Interval:
  """Computes the score interval of a proportion (Wilson 1927, JASA 22, 209-212).

  Args:
    share: observed proportion, between 0 and 1.
    count: number of images, at least 1.

  Returns:
    (low, high), inside of [0, 1]; at a share of 1 the upper end is 1 and the lower end is below 1.
  """
  middle = (share + _Z * _Z / (2 * count)) / (1 + _Z * _Z / count)
  half = _Z / (1 + _Z * _Z / count) * math.sqrt(share * (1 - share) / count + _Z * _Z / (4 * count * count))
  return max(0.0, middle - half), min(1.0, middle + half)


def difference(one: float, ones: int, other: float, others: int) -> Interval:
  """Computes the interval of `one - other`, two proportions of `ones` and `others` images.

  This is method 10 of Newcombe 1998 (Statistics in Medicine 17, 873-890), for independent samples. For two models that
  are measured on the same images it is wider than necessary.

  Returns:
    (low, high), inside of [-1, 1].
  """
  (low, high), (other_low, other_high) = wilson(one, ones), wilson(other, others)
  gap = one - other
  return gap - math.hypot(one - low, other_high - other), gap + math.hypot(high - one, other - other_low)


def welch(one: list[float], other: list[float]) -> Interval:
  """Computes the interval of the difference of two means of at least two runs each (Welch 1947, Biometrika 34).

  It covers the noise between runs (seeds), not the choice of the test images.

  Returns:
    (low, high) of mean(one) - mean(other); infinite if no run differs from another, which leaves no estimate.
  """
  from scipy import stats

  errors = [statistics.variance(values) / len(values) for values in (one, other)]
  gap, total = statistics.mean(one) - statistics.mean(other), sum(errors)
  if not total:
    return -math.inf, math.inf
  freedom = total**2 / sum(error**2 / (len(values) - 1) for error, values in zip(errors, (one, other), strict=True))
  half = float(stats.t.ppf(0.975, freedom)) * math.sqrt(total)
  return gap - half, gap + half


def bootstrap(
  measure: Callable[[np.ndarray], Mapping[str, float]], count: int, resamples: int = RESAMPLES, seed: int = 0
) -> dict[str, Interval]:
  """Computes percentile bootstrap intervals over images (Efron and Tibshirani 1993, chapter 13).

  A figure has no interval if all resamples agree: mean_per_class of 20 images that are all right would otherwise have
  the interval 100 % to 100 %, which claims certainty. If classes have few images, a resample repeats some images and
  misses others, which shifts means over classes: at 1,000 classes of 5 images a precision_weighted of 0.792 had the
  interval 0.801 to 0.823.

  Args:
    measure: figures by name, of images that count `weights` float64 [count] times each.
    count: number of images.
    resamples: how often `count` images are drawn with replacement; 1 or more.
    seed: of the draws.

  Returns:
    {figure: (low, high)}, without the figures whose resamples agree.
  """
  assert resamples > 0, resamples
  draw, resampled = np.random.default_rng(seed), {}
  # An infinite loss has no interval of its loss (NaN), and is no reason for a warning.
  with np.errstate(invalid="ignore"):
    for _ in range(resamples if count else 0):
      # How often each image is drawn is multinomial; counting draws takes a quarter of N binomials' time.
      weights = np.bincount(draw.integers(0, count, count), minlength=count).astype(np.float64)
      for name, value in measure(weights).items():
        resampled.setdefault(name, []).append(value)
    ends = {name: tuple(np.percentile(values, [2.5, 97.5]).tolist()) for name, values in resampled.items()}
  return {name: (low, high) for name, (low, high) in ends.items() if not high - low < _SAME}


def is_proportion(name: str) -> bool:
  """Returns whether a figure of this name is a share of images: top1, val/ema_top5, digits/knn_all."""
  return bool(_PROPORTION.fullmatch(name))


def of_figures(figures: Mapping[str, float]) -> dict[str, Interval]:
  """Computes the intervals of all proportions among the figures of a result.

  Args:
    figures: by name as result.json has them; "val/images" is the number of images of "val/top1".

  Returns:
    {figure: (low, high)}. A mean over several draws, which has a figure `<name>_std`, is no proportion of images.
  """
  result = {}
  for name, value in figures.items():
    if not is_proportion(name) or f"{name}_std" in figures or not isinstance(value, int | float):
      continue
    count = figures.get(f"{name.rpartition('/')[0]}/images".lstrip("/"), 0)
    if count >= 1 and 0 <= value <= 1:
      result[name] = wilson(value, int(count))
  return result

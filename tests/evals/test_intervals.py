"""Tests of intervals against SciPy, a published example and plain loops."""

import math

import numpy as np
import pytest
from scipy import stats

from tests import predictions as made
from vit_jax.evals import intervals, metrics


@pytest.mark.parametrize(("right", "count"), [(358, 360), (0, 5), (5, 5), (1, 1), (67, 67), (31_415, 50_000)])
def test_intervals_of_proportions_match_scipy(right, count):
  expected = stats.binomtest(right, count).proportion_ci(0.95, method="wilson")
  assert intervals.compute_wilson_interval(right / count, count) == pytest.approx(
    (expected.low, expected.high), abs=1e-12
  )


def test_difference_of_proportions_matches_newcombe_s_example():
  # Newcombe 1998, table II, contrast (a), method 10: 56/70 - 48/80.
  assert intervals.compute_difference_interval(56 / 70, 70, 48 / 80, 80) == pytest.approx((0.0524, 0.3339), abs=5e-5)
  low, high = intervals.compute_difference_interval(1.0, 10, 0.0, 20)  # contrast (g)
  assert (low, high) == pytest.approx((0.6791, 1.0), abs=5e-5)


def test_difference_of_means_matches_welch():
  one, other = [0.91, 0.93, 0.90], [0.85, 0.89, 0.84, 0.88]
  expected = stats.ttest_ind(one, other, equal_var=False).confidence_interval(0.95)
  assert intervals.compute_welch_interval(one, other) == pytest.approx((expected.low, expected.high), abs=1e-12)
  assert intervals.compute_welch_interval([0.5, 0.5], [0.4, 0.4]) == (-math.inf, math.inf)


def test_combination_of_means_matches_its_special_cases():
  groups = [[0.91, 0.93, 0.90], [0.85, 0.89, 0.84, 0.88]]
  one, other = map(intervals.summarize_runs, groups)
  assert one == pytest.approx((np.mean(groups[0]), np.std(groups[0], ddof=1), 3))
  expected = stats.ttest_1samp(groups[0], 0).confidence_interval(0.95)
  assert intervals.compute_combination_interval([(1.0, one)]) == pytest.approx((expected.low, expected.high), abs=1e-12)
  expected = stats.ttest_ind(groups[0], 2 * np.array(groups[1]), equal_var=False).confidence_interval(0.95)
  found = intervals.compute_combination_interval([(1.0, one), (-2.0, other)])
  assert found == pytest.approx((expected.low, expected.high), abs=1e-12)
  # Four equal deviations of three runs each have 8 degrees of freedom.
  four = [(weight, intervals.Summary(mean, 2.0, 3)) for weight, mean in ((1, 9.0), (1, 8.0), (-1, 5.0), (-1, 4.0))]
  half = stats.t.ppf(0.975, 8) * math.sqrt(4 * 2.0**2 / 3)
  assert intervals.compute_combination_interval(four) == pytest.approx((8 - half, 8 + half))


def all_right(images=67, classes=4):
  """Returns predictions that are all correct."""
  predictions = made.drawn(0, images, classes, classes)
  return predictions._replace(label=predictions.best[:, 0])


def test_interval_has_positive_width_if_all_images_are_correct():
  bounds = metrics.compute_intervals(all_right(), 4, resamples=50)
  for name in ("top1", "top5", "recall_weighted"):
    expected = stats.binomtest(67, 67).proportion_ci(0.95, method="wilson")
    assert bounds[name] == pytest.approx((expected.low, 1.0), abs=1e-12)
  assert not {"mean_per_class", "f1_macro", "precision_macro", "f1_weighted"} & set(bounds)
  assert all(low < high for low, high in bounds.values())


def test_interval_has_positive_width_if_all_images_are_incorrect():
  predictions = made.drawn(0, 40, 8, 8)
  wrong = predictions._replace(label=np.array([(set(range(8)) - set(row)).pop() for row in predictions.best.tolist()]))
  bounds = metrics.compute_intervals(wrong, 8, resamples=50)
  expected = stats.binomtest(0, 40).proportion_ci(0.95, method="wilson")
  assert bounds["top1"] == bounds["top5"] == pytest.approx((0.0, expected.high), abs=1e-12)


def test_bootstrap_without_variation_has_no_interval():
  def measure(weights):
    return {"same": 1.0, "mean": float(np.average([0.0, 1.0, 0.0], weights=weights)), "infinite": math.inf}

  found = intervals.bootstrap(measure, 3, resamples=30)
  assert set(found) == {"mean", "infinite"} and math.isnan(found["infinite"][0])
  assert intervals.bootstrap(measure, 0) == {}


def test_every_proportion_uses_the_number_of_its_own_images():
  figures = {
    "top1": 1.0, "loss": 0.2, "images": 67, "val/top1": 0.5, "val/ema_top5": 0.75, "val/images": 20,
    "mean_per_class": 1.0, "digits/knn_all": 0.9, "digits/ridge_5shot": 0.8, "digits/ridge_5shot_std": 0.01,
    "digits/images": 10, "x/top1": 0.5, "1000_way_top1": 0.5,
  }  # fmt: skip
  found = intervals.compute_figure_intervals(figures)
  counts = {"top1": 67, "val/top1": 20, "val/ema_top5": 20, "digits/knn_all": 10, "1000_way_top1": 67}
  assert found == {name: intervals.compute_wilson_interval(figures[name], count) for name, count in counts.items()}

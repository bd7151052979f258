"""Tests of the reliability diagram: its bins match a loop, and its error matches the metrics."""

import numpy as np
import pytest
from scipy import stats

from tests import predictions as made
from tests.reports import reading
from vit_jax.evals import metrics
from vit_jax.reports import page, reliability


def parts_of(predictions, classes):
  right = predictions.label == predictions.best[:, 0]
  return page.Chapter(
    "", reliability.make_parts(metrics.bin_by_confidence(predictions, classes), predictions.confidence, right)
  )


@pytest.mark.parametrize("images", [1, 40, 3000])
def test_bins_match_a_loop(images):
  predictions = made.drawn(1, images, 10, 10)
  chapter = parts_of(predictions, 10)
  right = predictions.label == predictions.best[:, 0]
  expected, error = [], 0.0
  for low in range(15):
    held = [i for i in range(images) if low / 15 < predictions.confidence[i] <= (low + 1) / 15]
    if held:
      output, true = np.mean(predictions.confidence[held], dtype=np.float64), np.mean(right[held])
      error += len(held) / images * abs(output - true)
      expected.append([f"{len(held):,}", f"{100 * output:.2f} %", f"{100 * true:.2f} %"])
  rows = reading.table(chapter, "Bins of confidence")
  assert [[row[key] for key in ("images", "mean", "right")] for row in rows] == expected
  about = reading.named(chapter, "Calibration").about
  assert f"The expected calibration error is {100 * error:.2f} %" in about
  assert f"error is {100 * metrics.compute_metrics(predictions, 10)['calibration_error']:.2f} %" in about
  assert f"The mean probability is {100 * predictions.confidence.mean(dtype=np.float64):.2f} %" in about


def drawn(confidence, right):
  """Returns (description, texts of the chart) of predictions with these confidences, some of them correct."""
  bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
  sums = (np.bincount(bins, weights, 15) for weights in (right, confidence))
  chart, _ = reliability.make_parts(metrics.Bins(np.bincount(bins, minlength=15), *sums), confidence, right)
  return chart.about, reading.words(chart.svg)


@pytest.mark.parametrize(("hits", "word"), [(np.ones(50), "under"), (np.zeros(50), "over")])
def test_direction_of_miscalibration_is_reported_and_drawn(hits, word):
  about, texts = drawn(np.linspace(0.3, 0.9, 50), hits)
  assert f"{word}-confident on average (exact test of the means, p < 0.001)" in about
  assert "the model is miscalibrated" in about and "not enough" not in about
  side = {"under": "probability below the share", "over": "probability above the share"}[word]
  assert [text for text in texts if text.startswith("probability ") and "share" in text] == [side]


def test_67_correct_images_are_too_few_to_decide():
  # A reported case: 67 of 67 images were correct, and the page called the model "too unsure".
  about, _ = drawn(np.full(67, 0.97), np.ones(67))
  assert "not enough images to decide whether it is over- or under-confident" in about
  assert "not enough images to decide whether the model is miscalibrated" in about


@pytest.mark.parametrize("count", [1, 2, 7, 64, 300])
def test_number_of_correct_images_has_its_exact_distribution(count):
  probability = np.random.default_rng(count).uniform(size=count)
  mass = np.ones(1)  # image by image
  for p in probability:
    mass = np.convolve(mass, [1 - p, p])
  np.testing.assert_allclose(reliability.compute_count_distribution(probability), mass, atol=1e-12)
  same = stats.binom.pmf(np.arange(count + 1), count, 0.3)
  np.testing.assert_allclose(reliability.compute_count_distribution(np.full(count, 0.3)), same, atol=1e-12)


@pytest.mark.parametrize("images", [20, 67, 400])
@pytest.mark.parametrize(("shift", "alarms"), [(0.0, (0.0, 0.10)), (0.15, (0.3, 1.0)), (-0.15, (0.3, 1.0))])
def test_false_alarm_rates_match_the_tests(images, shift, alarms, monkeypatch):
  monkeypatch.setattr(reliability, "SIMULATIONS", 100)
  draw, tries, leaning, error = np.random.default_rng(images), 200, 0, 0
  for seed in range(tries):
    truth = draw.uniform(0.55, 0.85, images)
    confidence, right = truth + shift, draw.uniform(size=images) < truth
    found = reliability.examine_calibration(confidence, right, seed)
    leaning += found.leaning < reliability.ALPHA
    error += found.error < reliability.ALPHA
  low, high = alarms
  if shift == 0:  # nominal 0.05; three standard deviations of 200 tries are 0.046
    assert leaning / tries <= high and error / tries <= high
  elif images >= 67:
    assert leaning / tries >= low
  if shift and images == 400:
    assert leaning / tries > 0.99 and error / tries > 0.95


def test_nan_predictions_are_excluded_from_the_tests():
  confidence, right = np.full(60, 0.9), np.arange(60) % 10 > 0
  bins = metrics.Bins(np.bincount([13], [60], 15).astype(int), np.bincount([13], [54], 15), np.bincount([13], [54], 15))
  with_nan = np.append(confidence, np.nan), np.append(right, False)
  assert reliability.make_parts(bins, *with_nan)[0].about == reliability.make_parts(bins, confidence, right)[0].about
  assert reliability.examine_calibration(np.zeros(0), np.zeros(0)) == (1.0, 1.0, 0.0)


def test_legend_has_only_entries_with_a_mark():
  _, texts = drawn(np.full(100, 0.9), np.arange(100) < 90)
  assert not [text for text in texts if "the share" in text]


def test_bins_with_few_images_stay_visible():
  images = np.array([1] * 14 + [100_000])
  chart, _ = reliability.make_parts(
    metrics.Bins(images, images * 0.5, images * (np.arange(15) + 0.5) / 15), np.full(10, 0.5), np.arange(10) % 2
  )
  assert {"1", "10,000"} <= set(reading.words(chart.svg)), "powers of ten as numbers"

"""The diagram's bins are those of a loop, and their error is the metrics' own."""

import numpy as np
import pytest

from tests import predictions as made
from tests.reports import reading
from vit_jax import metrics
from vit_jax.reports import page, reliability


def parts_of(predictions, classes):
  return page.Chapter("", reliability.parts(metrics.calibration(predictions, classes)))


@pytest.mark.parametrize("images", [1, 40, 3000])
def test_bins_are_those_of_a_loop(images):
  predictions = made.drawn(1, images, 10, 10)
  chapter = parts_of(predictions, 10)
  right = predictions.label == predictions.best[:, 0]
  expected, error = [], 0.0
  for low in range(15):
    held = [i for i in range(images) if low / 15 < predictions.confidence[i] <= (low + 1) / 15]
    if held:
      said, true = np.mean(predictions.confidence[held], dtype=np.float64), np.mean(right[held])
      error += len(held) / images * abs(said - true)
      expected.append([f"{len(held):,}", f"{100 * said:.2f} %", f"{100 * true:.2f} %"])
  rows = reading.table(chapter, "Bins of confidence")
  assert [[row[key] for key in ("images", "mean", "right")] for row in rows] == expected
  about = reading.named(chapter, "Calibration").about
  assert f"Expected calibration error {100 * error:.2f} %" in about
  assert f"error {100 * metrics.measure(predictions, 10)['calibration_error']:.2f} %" in about
  assert f"says {100 * predictions.confidence.mean(dtype=np.float64):.2f} % and is right in" in about


@pytest.mark.parametrize(("hits", "word"), [(np.ones(50), "too unsure"), (np.zeros(50), "too sure")])
def test_which_way_it_leans_is_said_and_drawn(hits, word):
  confidence = np.linspace(0.3, 0.9, 50)
  bin_ = np.ceil(confidence * 15).astype(int) - 1
  sums = (np.bincount(bin_, weights, 15) for weights in (hits, confidence))
  chart, _ = reliability.parts(metrics.Bins(np.bincount(bin_, minlength=15), *sums))
  assert chart.about.endswith(f": {word}.")
  assert [text for text in reading.words(chart.svg) if text.startswith("too")] == [word]


def test_a_bin_that_has_nearly_all_images_leaves_the_others_to_be_seen():
  images = np.array([1] * 14 + [100_000])
  chart, _ = reliability.parts(metrics.Bins(images, images * 0.5, images * (np.arange(15) + 0.5) / 15))
  assert {"1", "10,000"} <= set(reading.words(chart.svg)), "powers of ten as numbers"

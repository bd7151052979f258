"""Tests of figures against scikit-learn and plain loops, and of intervals against a slow bootstrap."""

import math

import numpy as np
import pytest
import sklearn.metrics

from tests.predictions import drawn, rows
from vit_jax.evals import metrics
from vit_jax.schema import ConfigError

SHAPES = [(1000, 10, 10), (800, 12, 7), (5, 100, 100), (37, 3, 2), (1, 7, 7)]  # images, classes, classes that occur
CLOSE = dict(rel=0, abs=1e-12)


def classification(true, guess):
  """Returns precision, recall and F1 in the averages of scikit-learn."""
  averages = {}
  for average in ("weighted", "macro"):
    values = sklearn.metrics.precision_recall_fscore_support(true, guess, average=average, zero_division=0)
    averages |= {f"{name}_{average}": value for name, value in zip(("precision", "recall", "f1"), values, strict=False)}
  return averages


def indicators(sets, classes):
  """Returns an indicator matrix [N, V] from the classes of each image."""
  matrix = np.zeros((len(sets), classes), int)
  for row, members in zip(matrix, sets, strict=True):
    row[list(members)] = 1
  return matrix


def calibration_error(right, confidence):
  """Computes equation 3 of Guo et al. 2017, bin by bin."""
  error = 0.0
  for i in range(15):
    held = [j for j, c in enumerate(confidence.tolist()) if i / 15 < c <= (i + 1) / 15]
    if held:
      accuracy, mean = np.mean([right[j] for j in held]), np.mean([float(confidence[j]) for j in held])
      error += len(held) / len(right) * abs(accuracy - mean)
  return error


@pytest.mark.filterwarnings("ignore:y_pred contains classes not in y_true")
@pytest.mark.filterwarnings("ignore:A single label was found")
@pytest.mark.filterwarnings("ignore:The number of unique classes")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("images", "classes", "present"), SHAPES)
def test_figures_match_scikit_learn(seed, images, classes, present):
  predictions = drawn(seed, images, classes, present)
  label, guess = predictions.label, predictions.best[:, 0]
  scores = np.zeros((images, classes))
  np.put_along_axis(scores, predictions.best, np.arange(predictions.best.shape[1], 0, -1.0)[None], axis=1)
  expected = {
    "top1": sklearn.metrics.accuracy_score(label, guess),
    "top5": sklearn.metrics.top_k_accuracy_score(label, scores, k=5, labels=np.arange(classes)) if classes > 5 else 1.0,
    "loss": np.mean(predictions.loss.astype(np.float64)),
    "mean_per_class": sklearn.metrics.balanced_accuracy_score(label, guess),
    **classification(label, guess),
    "calibration_error": calibration_error(label == guess, predictions.confidence),
    "images": images,
  }
  assert metrics.compute_metrics(predictions, classes) == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize(
  ("metric", "share"),
  [("top1", True), ("test/ema_top1", True), ("calibration_error", True), ("val/loss", False), ("rmse", False)],
)
def test_shares_are_recognised_by_name(metric, share):
  assert metrics.is_share(metric) == share


def test_most_important_figures_come_first():
  names = list(metrics.compute_metrics(drawn(0, 50, 10, 10, most=2), 10))
  assert names[:4] == ["top1", "top5", "loss", "mean_per_class"]
  assert names[-2:] == ["average_precision", "images"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [1, 3, 8])
def test_figures_of_several_labels_match_loops(seed, most):
  images, classes = 300, 80  # more classes than are copied at a time
  predictions = drawn(seed, images, classes, 71, most)
  sets = [set(row) - {-1} for row in predictions.label.tolist()]
  best = predictions.best.tolist()
  guess = [row[0] for row in best]
  right = [g in s for g, s in zip(guess, sets, strict=True)]
  true = indicators(sets, classes)
  occur = [c for c in range(classes) if true[:, c].any()]
  recall = [np.mean([guess[i] == c for i, s in enumerate(sets) if c in s]) for c in occur]
  expected = {
    "top1": np.mean(right),
    "top5": np.mean([bool(s & set(b)) for b, s in zip(best, sets, strict=True)]),
    "loss": sum(predictions.loss.tolist()) / images,
    "mean_per_class": np.mean(recall),
    **classification(true, indicators([{g} for g in guess], classes)),
    "calibration_error": calibration_error(right, predictions.confidence),
    "average_precision": np.mean(
      [sklearn.metrics.average_precision_score(true[:, c], predictions.logits[:, c]) for c in occur]
    ),
    "images": images,
  }
  assert len(occur) < classes
  assert metrics.compute_metrics(predictions, classes) == pytest.approx(expected, **CLOSE)


def test_repeated_label_counts_once_and_padding_may_be_anywhere():
  once = drawn(0, 4, 6, 6)._replace(label=np.array([[1, 2, -1], [3, -1, -1], [0, 4, 5], [-1, -1, -1]]))
  twice = once._replace(label=np.array([[2, -1, 1, 2, 1], [3, 3, 3, 3, 3], [5, 4, 0, -1, 5], [-1, -1, -1, -1, -1]]))
  assert metrics.compute_metrics(once, 6) == metrics.compute_metrics(twice, 6)


def test_average_precision_requires_several_labels_and_logits():
  several, one = drawn(0, 50, 10, 10, most=3), drawn(0, 50, 10, 10)
  assert "average_precision" in metrics.compute_metrics(several, 10)
  assert "average_precision" not in metrics.compute_metrics(several._replace(logits=None), 10)
  assert "average_precision" not in metrics.compute_metrics(one, 10)


def test_nan_logits_have_no_average_precision():
  predictions = drawn(0, 50, 10, 10, most=3)
  predictions.logits[7, 2] = np.nan
  assert math.isnan(metrics.compute_metrics(predictions, 10)["average_precision"])


@pytest.mark.parametrize("edge", range(1, 15))
def test_confidence_at_an_edge_belongs_to_the_bin_below(edge):
  pair = rows(drawn(0, 1, 3, 3), [0, 0])
  pair = pair._replace(label=np.array([pair.best[0, 0], (pair.best[0, 0] + 1) % 3]))  # one correct, one incorrect
  edge = edge / 15  # in float64, which represents the edge itself
  above, below = (
    metrics.compute_metrics(pair._replace(confidence=np.array([edge, other])), 3)["calibration_error"]
    for other in (edge + 1e-9, edge - 1e-9)
  )
  assert above == pytest.approx((1 - edge) / 2 + edge / 2, abs=1e-8)
  assert below == pytest.approx(abs(1 / 2 - edge), abs=1e-8)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("most", [None, 3])
def test_figures_without_images_are_zero(most):
  nothing = rows(drawn(0, 5, 10, 10, most), np.arange(0))
  measured = metrics.compute_metrics(nothing, 10)
  assert set(measured.values()) == {0}
  bounds = metrics.compute_intervals(nothing, 10, resamples=3)
  assert bounds == {}
  assert not metrics.compute_confusion(drawn(0, 5, 4, 4)._replace(label=np.full(5, -1)), 4).any()


@pytest.mark.filterwarnings("error")
def test_figures_without_labels_are_finite():
  measured = metrics.compute_metrics(drawn(0, 5, 10, 10, 3)._replace(label=np.full((5, 3), -1)), 10)
  assert all(math.isfinite(value) for value in measured.values())
  assert measured["top1"] == measured["mean_per_class"] == measured["average_precision"] == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("seed", range(2))
def test_intervals_match_a_bootstrap_that_repeats_images(seed, most):
  predictions = drawn(seed, 90, 12, 8, most)
  draw = np.random.default_rng(seed)
  again = [metrics.compute_metrics(rows(predictions, draw.integers(0, 90, 90)), 12) for _ in range(40)]
  bounds_of = metrics.compute_intervals(predictions, 12, resamples=40, seed=seed)
  assert bounds_of.keys() == again[0].keys() - {"images", "average_precision"}
  for name, bounds in bounds_of.items():
    if metrics.choose_interval_method(name, predictions) == "Wilson":  # test_intervals.py tests these
      continue
    values = sorted(figure[name] for figure in again)
    for bound, share in zip(bounds, (0.025, 0.975), strict=True):
      below, part = divmod(share * 39, 1)  # interpolated between two of the 40 values
      expected = values[int(below)] * (1 - part) + values[int(below) + 1] * part
      assert bound == pytest.approx(expected, **CLOSE), name


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_interval_of_a_proportion_has_the_binomial_width(share):
  images = 2000
  predictions = drawn(0, images, 10, 10)
  right = np.arange(images) < share * images
  predictions = predictions._replace(label=np.where(right, predictions.best[:, 0], predictions.best[:, 1]))
  low, high = metrics.compute_intervals(predictions, 10, resamples=2)["top1"]
  half = 1.96 * math.sqrt(share * (1 - share) / images)
  assert low == pytest.approx(share - half, abs=0.15 * half)
  assert high == pytest.approx(share + half, abs=0.15 * half)


@pytest.mark.heavy
def test_intervals_contain_the_true_value_95_percent_of_the_time():
  tries, draw, base, held = 100, np.random.default_rng(0), drawn(0, 200, 10, 10), 0
  for seed in range(tries):
    right = draw.uniform(size=200) < 0.7
    predictions = base._replace(label=np.where(right, base.best[:, 0], base.best[:, 1]))
    low, high = metrics.compute_intervals(predictions, 10, resamples=100, seed=seed)["top1"]
    held += low <= 0.7 <= high
  assert 0.86 <= held / tries <= 1  # four standard deviations of 100 tries


def test_seed_reproduces_its_intervals():
  predictions = drawn(0, 60, 5, 5)
  assert metrics.compute_intervals(predictions, 5, 20, seed=1) == metrics.compute_intervals(predictions, 5, 20, seed=1)
  assert metrics.compute_intervals(predictions, 5, 20, seed=1) != metrics.compute_intervals(predictions, 5, 20, seed=2)


@pytest.mark.filterwarnings("error")
def test_infinite_loss_does_not_affect_other_intervals():
  predictions = drawn(0, 60, 5, 5)
  expected = metrics.compute_intervals(predictions, 5, 20)
  predictions.loss[3] = np.inf
  bounds = metrics.compute_intervals(predictions, 5, 20)
  assert math.isnan(bounds.pop("loss")[1])
  assert bounds == {name: bounds for name, bounds in expected.items() if name != "loss"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("images", "classes", "present"), SHAPES)
def test_confusion_matrix_matches_scikit_learn(seed, images, classes, present):
  predictions = drawn(seed, images, classes, present)
  matrix = metrics.compute_confusion(predictions, classes)
  expected = sklearn.metrics.confusion_matrix(predictions.label, predictions.best[:, 0], labels=np.arange(classes))
  np.testing.assert_array_equal(matrix, expected)
  assert matrix.dtype == np.int64


def test_small_integers_do_not_overflow_in_a_confusion_matrix():
  predictions = drawn(0, 50, 100, 100)
  small = predictions._replace(label=predictions.label.astype(np.int8), best=predictions.best.astype(np.int8))
  np.testing.assert_array_equal(metrics.compute_confusion(small, 100), metrics.compute_confusion(predictions, 100))


def test_several_labels_have_no_confusion_matrix():
  with pytest.raises(ConfigError, match=r"one label per image, but these have up to 3.*Remove it"):
    metrics.compute_confusion(drawn(0, 5, 10, 10, most=3), 10)


@pytest.mark.parametrize(("images", "classes", "present"), SHAPES)
@pytest.mark.parametrize("most", [None, 3])
def test_counts_per_class_match_loops_and_rates_match_scikit_learn(images, classes, present, most):
  predictions = drawn(7, images, classes, present, most)
  guess = predictions.best[:, 0]
  sets = [{one for one in np.atleast_1d(label).tolist() if one >= 0} for label in predictions.label]
  counts = metrics.count_per_class(predictions, classes)
  for one in range(classes):
    assert counts.true[one] == sum(one in labels for labels in sets)
    assert counts.guessed[one] == np.sum(guess == one)
    assert counts.right[one] == sum(one in labels and best == one for labels, best in zip(sets, guess, strict=True))
  expected = sklearn.metrics.precision_recall_fscore_support(
    indicators(sets, classes), np.eye(classes, dtype=int)[guess], zero_division=0
  )
  for name, values in zip(("precision", "recall", "f1"), expected, strict=False):
    np.testing.assert_allclose(counts.rates[name], values, atol=1e-12)


@pytest.mark.parametrize(("images", "classes", "present"), SHAPES)
def test_confidence_bins_add_up_to_the_calibration_error(images, classes, present):
  predictions = drawn(8, images, classes, present)
  bins = metrics.bin_by_confidence(predictions, classes)
  for i in range(metrics.BINS):
    held = (predictions.confidence > i / 15) & (predictions.confidence <= (i + 1) / 15)
    assert bins.images[i] == held.sum()
    assert bins.right[i] == (predictions.best[held, 0] == predictions.label[held]).sum()
    assert bins.confidence[i] == pytest.approx(predictions.confidence[held].sum(dtype=np.float64))
  error = np.abs(bins.right - bins.confidence).sum() / images
  assert error == pytest.approx(metrics.compute_metrics(predictions, classes)["calibration_error"], **CLOSE)


def test_worst_mistakes_are_the_most_confident_incorrect_images():
  generator = np.random.default_rng(3)
  label, best = generator.integers(0, 4, (200, 2)), generator.integers(0, 4, (200, 1))
  label[:50] = -1
  confidence = generator.random(200).astype(np.float32)
  for labels in (label, np.maximum(label[:, 0], 0)):
    predictions = metrics.Predictions(np.arange(200), labels, best, confidence, confidence)
    several = labels if labels.ndim == 2 else labels[:, None]
    wrong = [i for i in range(200) if best[i, 0] not in several[i] and max(several[i]) >= 0]
    assert metrics.find_mistakes(predictions, 7).tolist() == sorted(wrong, key=lambda i: -confidence[i])[:7]
    assert len(metrics.find_mistakes(predictions, 1000)) == len(wrong)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_predictions_without_finite_confidence_have_no_metrics(value):
  predictions = drawn(0, 20, 5, 5)
  predictions.confidence[3] = value
  for function in (
    metrics.compute_metrics,
    metrics.compute_intervals,
    metrics.bin_by_confidence,
    metrics.count_per_class,
  ):
    with pytest.raises(metrics.NotFiniteError, match=f"image {predictions.position[3]}: its confidence is not finite"):
      function(predictions, 5)

"""Figures against scikit-learn and plain loops, intervals against a slow bootstrap, files against what was written."""

import csv
import math

import numpy as np
import pytest
import sklearn.metrics

from vit_jax import metrics
from vit_jax.schema import ConfigError

SHAPES = [(1000, 10, 10), (800, 12, 7), (5, 100, 100), (37, 3, 2), (1, 7, 7)]  # images, classes, classes that occur
CLOSE = dict(rel=0, abs=1e-12)


def drawn(seed, images, classes, present, most=None):
  """Predictions of random logits, rounded so that some are equal, and with up to `most` labels an image."""
  draw = np.random.default_rng(seed)
  logits = draw.normal(size=(images, classes)).round(1).astype(np.float32)
  label = draw.integers(0, present, images)
  logits[np.arange(images), label] += draw.integers(0, 4, images)
  if most is not None:
    label = np.where(np.arange(most) < draw.integers(0, most + 1, (images, 1)), 0, -1)
    label[label == 0] = draw.integers(0, present, np.count_nonzero(label == 0))  # some classes twice
  noise = draw.uniform(0, 0.01, logits.shape)  # top-k of scikit-learn breaks ties in its own way
  best = np.argsort(-(logits + noise), axis=1)[:, : min(5, classes)].astype(np.int32)
  return metrics.Predictions(
    position=np.arange(images),
    label=label,
    best=best,
    confidence=draw.uniform(1 / classes, 1, images).astype(np.float32),
    loss=draw.exponential(size=images).astype(np.float32),
    logits=logits,
  )


def rows(predictions, chosen):
  """The chosen images, repeated as often as they are chosen."""
  return metrics.Predictions(*(None if x is None else x[chosen] for x in predictions))


def classification(true, guess):
  """Precision, recall and F1 as scikit-learn averages them."""
  averages = {}
  for average in ("weighted", "macro"):
    values = sklearn.metrics.precision_recall_fscore_support(true, guess, average=average, zero_division=0)
    averages |= {f"{name}_{average}": value for name, value in zip(("precision", "recall", "f1"), values, strict=False)}
  return averages


def indicators(sets, classes):
  """[N, V] of 0 and 1 from the classes of each image."""
  matrix = np.zeros((len(sets), classes), int)
  for row, members in zip(matrix, sets, strict=True):
    row[list(members)] = 1
  return matrix


def calibration_error(right, confidence):
  """Guo et al. 2017, eq. 3, bin by bin."""
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
def test_figures_equal_scikit_learn(seed, images, classes, present):
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
  assert metrics.measure(predictions, classes) == pytest.approx(expected, **CLOSE)


def test_the_figures_that_people_ask_for_come_first():
  names = list(metrics.measure(drawn(0, 50, 10, 10, most=2), 10))
  assert names[:4] == ["top1", "top5", "loss", "mean_per_class"]
  assert names[-2:] == ["average_precision", "images"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [1, 3, 8])
def test_figures_of_several_labels_equal_loops(seed, most):
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
  assert metrics.measure(predictions, classes) == pytest.approx(expected, **CLOSE)


def test_a_label_that_an_image_has_twice_counts_once_and_padding_may_be_anywhere():
  once = drawn(0, 4, 6, 6)._replace(label=np.array([[1, 2, -1], [3, -1, -1], [0, 4, 5], [-1, -1, -1]]))
  twice = once._replace(label=np.array([[2, -1, 1, 2, 1], [3, 3, 3, 3, 3], [5, 4, 0, -1, 5], [-1, -1, -1, -1, -1]]))
  assert metrics.measure(once, 6) == metrics.measure(twice, 6)


def test_average_precision_is_there_only_for_several_labels_with_logits():
  several, one = drawn(0, 50, 10, 10, most=3), drawn(0, 50, 10, 10)
  assert "average_precision" in metrics.measure(several, 10)
  assert "average_precision" not in metrics.measure(several._replace(logits=None), 10)
  assert "average_precision" not in metrics.measure(one, 10)


def test_logits_that_are_no_numbers_have_no_average_precision():
  predictions = drawn(0, 50, 10, 10, most=3)
  predictions.logits[7, 2] = np.nan
  assert math.isnan(metrics.measure(predictions, 10)["average_precision"])


@pytest.mark.parametrize("edge", range(1, 15))
def test_a_confidence_at_an_edge_belongs_to_the_bin_below(edge):
  pair = rows(drawn(0, 1, 3, 3), [0, 0])
  pair = pair._replace(label=np.array([pair.best[0, 0], (pair.best[0, 0] + 1) % 3]))  # one right, one wrong
  edge = edge / 15  # in float64, where it is the edge itself
  above, below = (
    metrics.measure(pair._replace(confidence=np.array([edge, other])), 3)["calibration_error"]
    for other in (edge + 1e-9, edge - 1e-9)
  )
  assert above == pytest.approx((1 - edge) / 2 + edge / 2, abs=1e-8)
  assert below == pytest.approx(abs(1 / 2 - edge), abs=1e-8)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("most", [None, 3])
def test_without_images_every_figure_is_nought(most):
  nothing = rows(drawn(0, 5, 10, 10, most), np.arange(0))
  measured = metrics.measure(nothing, 10)
  assert set(measured.values()) == {0}
  bounds = metrics.intervals(nothing, 10, resamples=3)
  assert set(bounds.values()) == {(0, 0)}
  assert not metrics.confusion(drawn(0, 5, 4, 4)._replace(label=np.full(5, -1)), 4).any()


@pytest.mark.filterwarnings("error")
def test_without_labels_the_figures_are_numbers():
  measured = metrics.measure(drawn(0, 5, 10, 10, 3)._replace(label=np.full((5, 3), -1)), 10)
  assert all(math.isfinite(value) for value in measured.values())
  assert measured["top1"] == measured["mean_per_class"] == measured["average_precision"] == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("most", [None, 3])
@pytest.mark.parametrize("seed", range(2))
def test_intervals_equal_a_bootstrap_that_repeats_images(seed, most):
  predictions = drawn(seed, 90, 12, 8, most)
  draw = np.random.default_rng(seed)
  again = [metrics.measure(rows(predictions, draw.integers(0, 90, 90)), 12) for _ in range(40)]
  bounds_of = metrics.intervals(predictions, 12, resamples=40, seed=seed)
  assert bounds_of.keys() == again[0].keys() - {"images", "average_precision"}
  for name, bounds in bounds_of.items():
    values = sorted(figure[name] for figure in again)
    for bound, share in zip(bounds, (0.025, 0.975), strict=True):
      below, part = divmod(share * 39, 1)  # between two of the 40, in proportion
      expected = values[int(below)] * (1 - part) + values[int(below) + 1] * part
      assert bound == pytest.approx(expected, **CLOSE), name


@pytest.mark.parametrize("share", [0.5, 0.8, 0.95])
def test_the_interval_of_a_proportion_is_as_wide_as_the_binomial_says(share):
  images = 2000
  predictions = drawn(0, images, 10, 10)
  right = np.arange(images) < share * images
  predictions = predictions._replace(label=np.where(right, predictions.best[:, 0], predictions.best[:, 1]))
  low, high = metrics.intervals(predictions, 10)["top1"]
  half = 1.96 * math.sqrt(share * (1 - share) / images)
  assert low == pytest.approx(share - half, abs=0.15 * half)
  assert high == pytest.approx(share + half, abs=0.15 * half)


def test_intervals_hold_the_truth_about_95_times_in_100():
  tries, draw, base, held = 100, np.random.default_rng(0), drawn(0, 200, 10, 10), 0
  for seed in range(tries):
    right = draw.uniform(size=200) < 0.7
    predictions = base._replace(label=np.where(right, base.best[:, 0], base.best[:, 1]))
    low, high = metrics.intervals(predictions, 10, resamples=100, seed=seed)["top1"]
    held += low <= 0.7 <= high
  assert 0.86 <= held / tries <= 1  # four standard deviations of 100 tries


def test_a_seed_repeats_its_intervals():
  predictions = drawn(0, 60, 5, 5)
  assert metrics.intervals(predictions, 5, 20, seed=1) == metrics.intervals(predictions, 5, 20, seed=1)
  assert metrics.intervals(predictions, 5, 20, seed=1) != metrics.intervals(predictions, 5, 20, seed=2)


@pytest.mark.filterwarnings("error")
def test_an_infinite_loss_spoils_no_other_interval():
  predictions = drawn(0, 60, 5, 5)
  expected = metrics.intervals(predictions, 5, 20)
  predictions.loss[3] = np.inf
  bounds = metrics.intervals(predictions, 5, 20)
  assert math.isnan(bounds.pop("loss")[1])
  assert bounds == {name: bounds for name, bounds in expected.items() if name != "loss"}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("images", "classes", "present"), SHAPES)
def test_confusion_equals_scikit_learn(seed, images, classes, present):
  predictions = drawn(seed, images, classes, present)
  matrix = metrics.confusion(predictions, classes)
  expected = sklearn.metrics.confusion_matrix(predictions.label, predictions.best[:, 0], labels=np.arange(classes))
  np.testing.assert_array_equal(matrix, expected)
  assert matrix.dtype == np.int64


def test_small_integers_do_not_overflow_in_a_confusion_matrix():
  predictions = drawn(0, 50, 100, 100)
  small = predictions._replace(label=predictions.label.astype(np.int8), best=predictions.best.astype(np.int8))
  np.testing.assert_array_equal(metrics.confusion(small, 100), metrics.confusion(predictions, 100))


def test_several_labels_have_no_confusion_matrix():
  with pytest.raises(ConfigError, match=r"one label an image; these have up to 3.*Leave it out"):
    metrics.confusion(drawn(0, 5, 10, 10, most=3), 10)


def from_csv(path):
  """Predictions and ids from the CSV alone."""
  with open(path, newline="", encoding="utf-8") as file:
    lines = list(csv.DictReader(file))
  labels = [[int(label) for label in row["label"].split()] for row in lines]
  most = max(map(len, labels))
  label = np.array([row + [-1] * (most - len(row)) for row in labels])
  names = [name for name in lines[0] if name.startswith("logit_")]
  predictions = metrics.Predictions(
    position=np.arange(len(lines)),
    label=label if most > 1 else label[:, 0],
    best=np.array([[int(row[name]) for name in row if name.startswith("top")] for row in lines]),
    confidence=np.array([row["confidence"] for row in lines]).astype(np.float32),
    loss=np.array([row["loss"] for row in lines]).astype(np.float32),
    logits=np.array([[row[name] for name in names] for row in lines]).astype(np.float32) if names else None,
  )
  return predictions, [row["id"] for row in lines]


@pytest.mark.parametrize("logits", ["logits", None])
@pytest.mark.parametrize("most", [None, 3])
def test_every_figure_can_be_found_again_from_the_csv_alone(tmp_path, most, logits):
  predictions = drawn(0, 40, 8, 8, most)
  predictions = predictions._replace(logits=predictions.logits * np.float32(np.pi) if logits else None)
  ids = [f'image "{i}", ü\n' for i in range(40)]
  metrics.write(predictions, ids, tmp_path / "a.csv")
  again, names = from_csv(tmp_path / "a.csv")
  assert names == ids
  for name in ("best", "confidence", "loss", "logits"):
    np.testing.assert_array_equal(getattr(again, name), getattr(predictions, name))
  assert metrics.measure(again, 8) == metrics.measure(predictions, 8)
  assert metrics.intervals(again, 8, 10) == metrics.intervals(predictions, 8, 10)
  if most is None:
    np.testing.assert_array_equal(metrics.confusion(again, 8), metrics.confusion(predictions, 8))


def test_the_csv_keeps_every_float32(tmp_path):
  bits = np.random.default_rng(0).integers(0, 2**32, 2993, dtype=np.uint32)
  values = np.concatenate([bits.view(np.float32), np.float32([0, 1e-45, 3.4028235e38, np.inf, -np.inf, np.nan, 0.1])])
  values = values.reshape(-1, 6)
  predictions = drawn(0, len(values), 6, 6)._replace(logits=values)
  metrics.write(predictions, ["x"] * len(values), tmp_path / "a.csv")
  np.testing.assert_array_equal(from_csv(tmp_path / "a.csv")[0].logits, values)


def test_the_csv_is_as_documented(tmp_path):
  predictions = metrics.Predictions(
    position=np.array([7, 9, 8]),
    label=np.array([[2, 0], [1, -1], [-1, -1]]),
    best=np.array([[2, 1], [0, 1], [1, 2]]),
    confidence=np.float32([0.5, 0.1, 1]),
    loss=np.float32([1, 2, 0]),
    logits=np.float32([[0, 1, 2], [0.25, 0, -1], [0, 0, 0]]),
  )
  metrics.write(predictions, ["a", "b,c", "d"], tmp_path / "a.CSV")
  assert (tmp_path / "a.CSV").read_text().splitlines() == [
    "id,label,top1,top2,confidence,loss,logit_0,logit_1,logit_2",
    "a,2 0,2,1,0.5,1,0,1,2",
    '"b,c",1,0,1,0.100000001,2,0.25,0,-1',
    "d,,1,2,1,0,0,0,0",
  ]


def test_names_that_are_no_utf8_go_out_as_they_came(tmp_path):
  metrics.write(drawn(0, 1, 3, 3), [b"caf\xe9".decode("utf-8", "surrogateescape")], tmp_path / "a.csv")
  assert (tmp_path / "a.csv").read_bytes().splitlines()[1].startswith(b"caf\xe9,")


@pytest.mark.parametrize("logits", ["logits", None])
@pytest.mark.parametrize("most", [None, 3])
def test_the_npz_gives_back_every_array(tmp_path, most, logits):
  predictions = drawn(0, 40, 8, 8, most)
  if not logits:
    predictions = predictions._replace(logits=None)
  ids = [f"{i}/ü" for i in range(40)]
  metrics.write(predictions, ids, tmp_path / "a.npz")
  with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
    arrays = dict(file)
  assert list(arrays) == ["id", "label", "best", "confidence", "loss"] + ["logits"] * bool(logits)
  assert arrays.pop("id").tolist() == ids
  for name, value in arrays.items():
    np.testing.assert_array_equal(value, getattr(predictions, name), strict=True)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_no_images_make_an_empty_table(tmp_path, suffix):
  nothing = rows(drawn(0, 5, 3, 3), np.arange(0))
  path = tmp_path / f"a{suffix}"
  metrics.write(nothing, [], path)
  if suffix == ".csv":
    assert path.read_text() == "id,label,top1,top2,top3,confidence,loss,logit_0,logit_1,logit_2\n"
  else:
    assert np.load(path, allow_pickle=False)["id"].shape == (0,)


def test_a_confusion_matrix_can_be_read_back(tmp_path):
  matrix = metrics.confusion(drawn(0, 100, 3, 3), 3)
  metrics.write_confusion(matrix, ["cat", "dog, wet", "Fähre"], tmp_path / "a.csv")
  with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
    head, *body = csv.reader(file)
  assert head == ["label \\ prediction", "cat", "dog, wet", "Fähre"]
  assert [row[0] for row in body] == head[1:]
  np.testing.assert_array_equal(np.array([row[1:] for row in body], int), matrix)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_what_is_cut_short_leaves_the_old_file(tmp_path, suffix, monkeypatch):
  path = tmp_path / f"a{suffix}"
  path.write_text("old")
  monkeypatch.setattr(np, "savez_compressed", lambda file, **_: file.write(b"half") and 1 / 0)
  predictions = drawn(0, 2, 3, 3)._replace(loss=["1", "x"])  # the second row has no number
  with pytest.raises((ValueError, ZeroDivisionError)):
    metrics.write(predictions, ["a", "b"], path)
  assert path.read_text() == "old"
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_path_that_cannot_be_written_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=r"a\.json: \.json is not a format; end the name in \.csv or \.npz"):
    metrics.write(drawn(0, 2, 3, 3), ["a", "b"], tmp_path / "a.json")


def test_a_confusion_matrix_is_csv_only(tmp_path):
  with pytest.raises(ConfigError, match=r"end the name in \.csv$"):
    metrics.write_confusion(np.eye(2, dtype=np.int64), ["a", "b"], tmp_path / "a.npz")

"""Tests that written files of predictions and confusion matrices are read back unchanged."""

import csv

import numpy as np
import pytest

from tests.predictions import drawn, rows
from vit_jax.evals import metrics
from vit_jax.schema import ConfigError

SHAPES = [(1000, 10, 10), (800, 12, 7), (5, 100, 100), (37, 3, 2), (1, 7, 7)]  # images, classes, classes that occur
CLOSE = dict(rel=0, abs=1e-12)


def from_csv(path):
  """Reads predictions and ids from the CSV alone."""
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
  return predictions, [row["id"].removeprefix("'") for row in lines]


@pytest.mark.parametrize("logits", ["logits", None])
@pytest.mark.parametrize("most", [None, 3])
def test_every_figure_is_reproducible_from_the_csv_alone(tmp_path, most, logits):
  predictions = drawn(0, 40, 8, 8, most)
  predictions = predictions._replace(logits=predictions.logits * np.float32(np.pi) if logits else None)
  ids = [f'{begin}image "{i}", ü\n' for i in range(10) for begin in ("", "=", "-", "'")]
  metrics.write_predictions(predictions, ids, tmp_path / "a.csv")
  again, names = from_csv(tmp_path / "a.csv")
  assert names == ids
  for name in ("best", "confidence", "loss", "logits"):
    np.testing.assert_array_equal(getattr(again, name), getattr(predictions, name))
  assert metrics.compute_metrics(again, 8) == metrics.compute_metrics(predictions, 8)
  assert metrics.compute_intervals(again, 8, 10) == metrics.compute_intervals(predictions, 8, 10)
  if most is None:
    np.testing.assert_array_equal(metrics.compute_confusion(again, 8), metrics.compute_confusion(predictions, 8))


@pytest.mark.parametrize("most", [None, 3])
def test_both_formats_contain_class_names_and_probabilities(tmp_path, most):
  predictions = drawn(0, 40, 8, 8, most)
  shares = np.random.default_rng(1).random(predictions.best.shape, np.float32)
  predictions = predictions._replace(probability=shares, logits=None)
  classes = ("=cat", "-dog", *(f"class {i}" for i in range(6)))
  for suffix in (".csv", ".npz"):
    metrics.write_predictions(predictions, ["x"] * 40, tmp_path / f"a{suffix}", classes)
  with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
    lines = list(csv.DictReader(file))
  assert not [cell for line in lines for cell in line.values() if cell[:1] in tuple("=+-@")]
  for line, best, expected in zip(lines, predictions.best, shares, strict=True):
    assert [line[f"name{i + 1}"].removeprefix("'") for i in range(5)] == [classes[i] for i in best]
    np.testing.assert_array_equal(np.array([line[f"probability{i + 1}"] for i in range(5)], np.float32), expected)
    label = "|".join(classes[int(i)] for i in line["label"].split())
    assert line["label_name"].removeprefix("'") == label
  with np.load(tmp_path / "a.npz") as arrays:
    np.testing.assert_array_equal(arrays["probability"], shares)
    assert tuple(arrays["classes"]) == classes and {"id", "label", "best", "confidence", "loss"} < set(arrays)


def test_csv_keeps_every_float32(tmp_path):
  bits = np.random.default_rng(0).integers(0, 2**32, 2993, dtype=np.uint32)
  values = np.concatenate([bits.view(np.float32), np.float32([0, 1e-45, 3.4028235e38, np.inf, -np.inf, np.nan, 0.1])])
  values = values.reshape(-1, 6)
  predictions = drawn(0, len(values), 6, 6)._replace(logits=values)
  metrics.write_predictions(predictions, ["x"] * len(values), tmp_path / "a.csv")
  np.testing.assert_array_equal(from_csv(tmp_path / "a.csv")[0].logits, values)


def test_csv_has_the_documented_format(tmp_path):
  predictions = metrics.Predictions(
    position=np.array([7, 9, 8]),
    label=np.array([[2, 0], [1, -1], [-1, -1]]),
    best=np.array([[2, 1], [0, 1], [1, 2]]),
    confidence=np.float32([0.5, 0.1, 1]),
    loss=np.float32([1, 2, 0]),
    logits=np.float32([[0, 1, 2], [0.25, 0, -1], [0, 0, 0]]),
  )
  metrics.write_predictions(predictions, ["a", "b,c", "d"], tmp_path / "a.CSV")
  assert (tmp_path / "a.CSV").read_text().splitlines() == [
    "id,label,top1,top2,confidence,loss,logit_0,logit_1,logit_2",
    "a,2 0,2,1,0.5,1,0,1,2",
    '"b,c",1,0,1,0.100000001,2,0.25,0,-1',
    "d,,1,2,1,0,0,0,0",
  ]


def test_names_in_invalid_utf8_are_written_unchanged(tmp_path):
  metrics.write_predictions(drawn(0, 1, 3, 3), [b"caf\xe9".decode("utf-8", "surrogateescape")], tmp_path / "a.csv")
  assert (tmp_path / "a.csv").read_bytes().splitlines()[1].startswith(b"caf\xe9,")


@pytest.mark.parametrize("logits", ["logits", None])
@pytest.mark.parametrize("most", [None, 3])
def test_npz_keeps_every_array(tmp_path, most, logits):
  predictions = drawn(0, 40, 8, 8, most)
  if not logits:
    predictions = predictions._replace(logits=None)
  ids = [f"{i}/ü" for i in range(40)]
  metrics.write_predictions(predictions, ids, tmp_path / "a.npz")
  with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
    arrays = dict(file)
  assert list(arrays) == ["id", "label", "best", "confidence", "loss"] + ["logits"] * bool(logits)
  assert arrays.pop("id").tolist() == ids
  for name, value in arrays.items():
    np.testing.assert_array_equal(value, getattr(predictions, name), strict=True)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_no_images_give_an_empty_table(tmp_path, suffix):
  nothing = rows(drawn(0, 5, 3, 3), np.arange(0))
  path = tmp_path / f"a{suffix}"
  metrics.write_predictions(nothing, [], path)
  if suffix == ".csv":
    assert path.read_text() == "id,label,top1,top2,top3,confidence,loss,logit_0,logit_1,logit_2\n"
  else:
    assert np.load(path, allow_pickle=False)["id"].shape == (0,)


def test_confusion_matrix_is_read_back(tmp_path):
  matrix = metrics.compute_confusion(drawn(0, 100, 3, 3), 3)
  metrics.write_confusion(matrix, ["cat", "dog, wet", "Fähre"], tmp_path / "a.csv")
  with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
    head, *body = csv.reader(file)
  assert head == ["label \\ prediction", "cat", "dog, wet", "Fähre"]
  assert [row[0] for row in body] == head[1:]
  np.testing.assert_array_equal(np.array([row[1:] for row in body], int), matrix)


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_interrupted_write_keeps_the_previous_file(tmp_path, suffix, monkeypatch):
  path = tmp_path / f"a{suffix}"
  path.write_text("old")
  monkeypatch.setattr(np, "savez_compressed", lambda file, **_: file.write(b"half") and 1 / 0)
  predictions = drawn(0, 2, 3, 3)._replace(loss=["1", "x"])  # the loss of the second row is not a number
  with pytest.raises((ValueError, ZeroDivisionError)):
    metrics.write_predictions(predictions, ["a", "b"], path)
  assert path.read_text() == "old"
  assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_unwritable_path_is_refused(tmp_path):
  with pytest.raises(ConfigError, match=r"a\.json: \.json is not a format. End the name in \.csv or \.npz"):
    metrics.write_predictions(drawn(0, 2, 3, 3), ["a", "b"], tmp_path / "a.json")


def test_confusion_matrix_is_csv_only(tmp_path):
  with pytest.raises(ConfigError, match=r"End the name in \.csv$"):
    metrics.write_confusion(np.eye(2, dtype=np.int64), ["a", "b"], tmp_path / "a.npz")


def test_class_names_that_look_like_formulas_are_escaped(tmp_path):
  metrics.write_confusion(np.eye(2, dtype=int), ["=cmd()", "cat"], tmp_path / "a.csv")
  assert (tmp_path / "a.csv").read_text().splitlines() == ["label \\ prediction,'=cmd(),cat", "'=cmd(),1,0", "cat,0,1"]

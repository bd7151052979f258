"""Tests of rows written to files, read back with standard readers."""

import csv
import json

import numpy as np
import pytest

from vit_jax.inference import output
from vit_jax.inference.batches import FileResult
from vit_jax.schema import ConfigError

CLASSES = ("=cat", "dog", "ant")
FILES = ("-a.jpg", "b\n.jpg", "caf\udce9.png", 'd",e.gif')


def rows(features=True):
  draw = np.random.default_rng(0)
  for i, file in enumerate(FILES):
    best, share, values = draw.permutation(3).astype(np.int32), draw.random(3, np.float32), draw.random(4, np.float32)
    yield FileResult(file, reason="=no") if i == 2 else FileResult(file, best, share, values if features else None)


def good():
  return [row for row in rows() if row.reason is None]


def test_csv_contains_no_formulas_and_every_number_is_read_back(tmp_path):
  output.write_rows(tmp_path / "a.csv", rows(False), len(FILES), CLASSES)
  with open(tmp_path / "a.csv", newline="", encoding="utf-8", errors="surrogateescape") as file:
    read = list(csv.DictReader(file))
  assert [row["file"] for row in read] == ["'-a.jpg", *FILES[1:]]
  assert not [cell for row in read for cell in row.values() if cell[:1] in tuple("=+-@")]
  assert read[2]["reason"] == "'=no" and not read[2]["name1"]
  for row, expected in zip(read[:2] + read[3:], good(), strict=True):
    assert [row[f"name{i}"].removeprefix("'") for i in (1, 2, 3)] == [CLASSES[i] for i in expected.best]
    shares = np.array([row[f"probability{i}"] for i in (1, 2, 3)]).astype(np.float32)
    np.testing.assert_array_equal(shares, expected.probability)


def test_json_lines_contain_features_and_reasons(tmp_path):
  output.write_rows(tmp_path / "a.jsonl", rows(), len(FILES), CLASSES)
  read = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
  assert [row["file"] for row in read] == list(FILES)
  assert read.pop(2) == {"file": FILES[2], "reason": "=no"}
  for row, expected in zip(read, good(), strict=True):
    assert row["names"] == [CLASSES[i] for i in expected.best]
    np.testing.assert_array_equal(np.float32(row["features"]), expected.features)
    np.testing.assert_array_equal(np.float32(row["probabilities"]), expected.probability)


def test_arrays_have_a_row_for_each_file(tmp_path):
  output.write_rows(tmp_path / "a.npz", rows(), len(FILES), CLASSES)
  with np.load(tmp_path / "a.npz") as read:
    assert tuple(read["id"]) == FILES and tuple(read["classes"]) == CLASSES and tuple(read["reason"])[2] == "=no"
    assert (
      (read["best"][2] == -1).all() and np.isnan(read["probability"][2]).all() and np.isnan(read["features"][2]).all()
    )
    np.testing.assert_array_equal(np.delete(read["features"], 2, 0), [row.features for row in good()])
    np.testing.assert_array_equal(np.delete(read["best"], 2, 0), [row.best for row in good()])


def test_interrupted_write_keeps_the_previous_file(tmp_path):
  def broken():
    yield from rows()
    raise KeyboardInterrupt

  for suffix in output.SUFFIXES:
    path = tmp_path / f"a{suffix}"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt):
      output.write_rows(path, broken(), len(FILES) + 1, CLASSES)
    assert path.read_text() == "before"
  assert len(list(tmp_path.iterdir())) == 3


def test_screen_shows_the_first_rows_and_counts_the_remaining_rows():
  many = [FileResult(f"{i}\x1b[2J.jpg", np.int32([1, 0]), np.float32([0.75, 0.25])) for i in range(output.SHOWN + 7)]
  many[1] = FileResult("x" * 100, reason="torn\nfile")
  lines = list(output.format_lines(many, CLASSES))
  assert len(lines) == output.SHOWN + 1 and "7 more" in lines[-1]
  assert lines[0].split() == ["0\\x1b[2J.jpg", "dog", "75.0%", "=cat", "25.0%"]
  assert lines[1].endswith("x  bad: torn file") and len(lines[1]) < 80


@pytest.mark.parametrize(
  ("name", "features", "message"),
  [
    (None, True, "--features: no output file"),
    ("a.csv", True, "a .csv file cannot store features, got"),
    ("a.txt", False, ".txt is not a format. End the name in .csv or .jsonl or .npz"),
    ("none/a.csv", False, "none does not exist. Create it"),
  ],
)
def test_invalid_output_is_refused_before_the_prediction(tmp_path, name, features, message):
  with pytest.raises(ConfigError) as caught:
    output.check_output(name and tmp_path / name, features)
  assert message in str(caught.value)

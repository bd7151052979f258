"""Tests of the preview sheet of a shipped config, from the command line to the image and its numbers."""

import collections
import json
import struct

import cv2
import pytest

from tests import runs
from vit_jax import prepare, schema
from vit_jax.corpora import builders
from vit_jax.data import catalog
from vit_jax.evals import plots
from vit_jax.reports import preview, preview_sheet


@pytest.mark.heavy
def test_sheet_of_the_digits_has_matching_numbers(tmp_path, capsys):
  builders.prepare_dataset("digits")
  path = tmp_path / "a.png"
  words = f"--show={runs.ROOT}/configs/digits.py --config.batch=20 --config.task.loss=sigmoid --out={path}"
  prepare.main(words.split())
  output = capsys.readouterr().out
  assert cv2.imread(str(path)).shape[1] == preview_sheet.WIDTH
  numbers = json.loads(path.with_suffix(".json").read_text())
  source = catalog.open_split(schema.Choice("digits", {}), "train")
  labels = [source.label(i) for i in range(len(source))]
  assert {row["class"]: row["images"] for row in numbers["classes"]} == collections.Counter(map(str, labels))
  assert (numbers["records"], numbers["looked_at"], numbers["counted"]) == (1437, 1437, 1437)
  assert len(numbers["batch"]) == 20 and numbers["mixed_as_the_run"]
  for example in numbers["batch"]:
    label = str(labels[example["record"]])
    assert example["labels"] == [label] and example["target"] == [{"class": label, "share": 1.0}]
  most = max(collections.Counter(labels).values())
  assert "10 classes in all 1,437 images" in output and f" {most}" in output and str(path) in output
  assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "a.png"]


def test_caption_contains_the_sample_size_and_the_total():
  source = [0] * 1437
  assert (
    preview_sheet.caption(1437, source) == "all 1,437 images"
    and preview_sheet.caption(1000, source) == "1,000 of 1,437 images"
  )


@pytest.mark.heavy
def test_first_batch_is_one_image_for_tensorboard():
  builders.prepare_dataset("digits")
  run = runs.run(data__mixing__name="mixup")
  drawn = preview.draw_batch(run, catalog.open_split(run.data, "train"))
  width, height = struct.unpack(">II", drawn[16:24])
  tile, line = 80 * plots.TILE, 80 * plots.LINE
  assert (width, height) == (int(8 * tile), int(2 * (tile + 3 * line)))  # 16 images, with two shares each
  assert len(drawn) < 2**20

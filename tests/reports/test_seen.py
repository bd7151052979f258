"""Tests that the first batch of the page matches the preview, and that the images of each class match a loop."""

import collections
import dataclasses

import numpy as np
import pytest

from tests import runs
from tests.corpora import folders
from tests.reports import reading
from vit_jax.data import catalog
from vit_jax.data.sources import Source
from vit_jax.reports import page, preview_batch, seen
from vit_jax.schema import Choice, bind
from vit_jax.schema.errors import AbsentError

HOSTILE = ("<img src=x>", "$a$ & b", "c" * 200, "two\nlines", "\x1b[31m")


def source_of(read_labels, classes, read_label=None, **options):
  def read(record):
    label = read_labels[record]
    if isinstance(label, Exception):
      raise label
    return b"", label

  names = tuple(f"class {i}" for i in range(classes))
  return Source("set", "train", names, len(read_labels), read, str, read_label=read_label, **options)


def drawn(count, classes):
  return np.random.default_rng(classes).integers(0, classes, count).tolist()


@pytest.mark.parametrize("remote", [False, True])
def test_all_labels_are_counted_within_the_time_limit(remote):
  labels = drawn(1000, 7)
  images, counted = seen.count_images(source_of(labels, 7, remote=remote))
  assert counted == 1000
  assert images.tolist() == [labels.count(i) for i in range(7)]


def test_slow_labels_are_counted_in_a_random_sample():
  labels = [0] * 5000 + [1] * 5000
  images, counted = seen.count_images(source_of(labels, 2), seconds=0)
  assert counted == seen.CHUNK == images.sum()
  assert 80 < images[0] < 176, "not the first ones"
  assert seen.count_images(source_of(labels, 2), seconds=0)[0].tolist() == images.tolist()
  chart, table = seen.show_classes(source_of(labels, 2), images, counted)
  assert "256 of 10,000 images, drawn at random" in chart.about
  assert [row[1] for row in table.rows] == [f"{number:,}" for number in sorted(images, reverse=True)]


def test_distinct_labels_count_once_and_unreadable_ones_do_not():
  labels = [(0, 1), (1, 1), (), (2, 9), OSError("gone"), ValueError("no number")]
  images, counted = seen.count_images(source_of(labels, 3, labels=2))
  assert images.tolist() == [1, 2, 1] and counted == 4
  with pytest.raises(AbsentError):
    seen.count_images(source_of([0, AbsentError("the bucket is gone")], 3))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("classes", [1, 30, 31, 1001, 3000])
def test_table_has_the_classes_with_most_and_fewest_images(classes):
  labels = drawn(20 * classes, classes) + [0] * 100 * classes
  source = source_of(labels, classes)
  expected = collections.Counter(labels)
  chart, table = seen.show_classes(source, *seen.count_images(source))
  rows = {name: number for name, number, _ in table.rows}
  assert len(rows) == min(classes, 1000) and not table.open
  assert all(rows[name] == f"{expected[int(name.split()[1])]:,}" for name in rows)
  numbers = [int(number.replace(",", "")) for number in rows.values()]
  assert numbers == sorted(numbers, reverse=True)
  assert numbers[-1] == min(expected[i] for i in range(classes))
  assert ("class 0" in reading.words(chart.svg)) == (classes <= 30)


@pytest.mark.heavy
def test_first_batch_of_the_page_has_names_and_shares(tmp_path):
  root = folders.folder(tmp_path, 8, HOSTILE)
  broken = next((root / "train" / HOSTILE[0]).iterdir())
  broken.write_bytes(broken.read_bytes()[:100])
  mixing = {"data.mixing.name": "mixup_cutmix", "data.image_size": "32"}
  run = runs.run(
    "configs/folder.py", runs.IMAGENET | mixing, data__path=root, batch=40, data__test="train", data__validation=0
  )
  source = catalog.open_split(run.data, "train")
  chapter = seen.make_chapter(run, source, 40)
  examples, _ = preview_batch.compute_first_images(run, source, 40)
  pictures = reading.named(chapter, "The first batch").pictures
  assert len(pictures) == 40
  for picture, example in zip(pictures, examples, strict=True):
    if example.error:
      assert picture.wrong and picture.lines[1] == example.error
      continue
    np.testing.assert_array_equal(picture.pixels, example.seen)
    np.testing.assert_array_equal(picture.before, example.original)
    shares = [f"{100 * share:.0f} %" for _, share in example.target[:3]]
    assert [line.partition(" %")[0] + " %" for line in picture.lines[2:]] in ([], shares)
  assert sum(picture.wrong for picture in pictures) == 1
  assert any(len(picture.lines) > 2 for picture in pictures)
  assert "Left: the image. Right: the model's input" in reading.named(chapter, "The first batch").about
  assert [row["images"] for row in reading.table(chapter, "Images of each class, as a table")] == ["8"] * 5
  text = page.render_page("Run", "", [chapter])
  assert text.encode() and "<img src=x>" not in text and "\x1b" not in text


@pytest.mark.heavy
def test_page_of_a_mixture_explains_that_weights_decide_the_draws(tmp_path):
  roots = [folders.folder(tmp_path / name, 6) for name in "ab"]
  run = runs.run("configs/folder.py", runs.IMAGENET, data__path=roots[0], batch=8, data__test="train")
  kept = {key: value for key, value in run.data.args.items() if key in ("image_size", "crop", "flip")}
  parts = tuple(Choice("folder", {"path": str(root), "weight": 1 + i}) for i, root in enumerate(roots))
  data = bind(Choice("mixture", {**kept, "parts": parts}), catalog.DATA["mixture"], catalog.DATA)
  chapter = seen.make_chapter(dataclasses.replace(run, data=data), catalog.open_split(data, "train"), 4)
  assert "a mixture draws images by its weights" in reading.named(chapter, "Images of each class").about
  assert len(reading.named(chapter, "The first batch").pictures) == 4

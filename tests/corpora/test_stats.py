"""Tests of the search for conspicuous images, with the reason for each."""

import dataclasses
import itertools

import cv2
import numpy as np
import pytest

from tests.corpora import folders
from tests.image_files import encode, picture
from vit_jax import schema
from vit_jax.corpora import duplicates, stats
from vit_jax.data import catalog
from vit_jax.data.images import Images

SIDE = 32
ODD = {
  "tiny.png": ("tiny", encode(picture(15, 17, seed=101))),
  "huge.png": ("huge", encode(picture(330, 320, seed=102))),
  "wide.png": ("extreme aspect", encode(picture(40, 121, seed=103))),
  "tall.png": ("extreme aspect", encode(picture(200, 40, seed=104))),
  "grey.png": ("one colour", encode(np.full((40, 50, 3), 128, np.uint8))),
  "blank.jpg": ("one colour", encode(np.full((40, 50, 3), (250, 3, 7), np.uint8), "JPEG")),
  "torn.jpg": ("unreadable", encode(picture(40, 50), "JPEG")[:200]),
  "none.jpg": ("unreadable", b""),
}


def open_train(root):
  return catalog.open_split(schema.Choice("folder", {"path": str(root), "test": "train"}), "train")


def inspect_source(source):
  return stats.inspect_images(Images(source, "raise", 10**6, 100.0), range(len(source)))


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
  root = folders.folder(tmp_path_factory.mktemp("odd"), 6)
  for name, (_, data) in ODD.items():
    (root / "train/cat" / name).write_bytes(data)
  again = cv2.resize(picture(40, 50, seed=1), (60, 48))  # a copy of dog/0.jpg with the other label
  (root / "train/cat/again.png").write_bytes(encode(again))
  source = open_train(root)
  return source, inspect_source(source)


def test_memory_error_is_not_attributed_to_an_image(tmp_path):
  def fail(i):
    raise MemoryError

  source = dataclasses.replace(open_train(folders.folder(tmp_path, 2)), read=fail)
  with pytest.raises(schema.ConfigError, match=r"train/(cat|dog)/.*: not enough memory"):
    inspect_source(source)


def test_each_kind_contains_exactly_its_images(seen):
  source, found = seen
  kinds = stats.find_conspicuous(found, SIDE)
  names = {
    kind: {source.identify(look.record).rpartition("/")[2] for _, looks in of.worst for look in looks}
    for kind, of in kinds.items()
  }
  for kind in ("unreadable", "tiny", "huge", "extreme aspect", "one colour"):
    assert names[kind] == {name for name, (expected, _) in ODD.items() if expected == kind}
    assert kinds[kind].count == len(names[kind])
  ((_, pair),) = kinds["pairs of near-duplicates"].worst
  assert {source.identify(look.record) for look in pair} == {"train/cat/again.png", "train/dog/0.jpg"}
  assert {look.labels for look in pair} == {(0,), (1,)}


def test_worst_images_come_first_up_to_a_limit(seen):
  _, found = seen
  aspects = stats.find_conspicuous(found, SIDE)["extreme aspect"]
  assert [severity for severity, _ in aspects.worst] == [5.0, pytest.approx(121 / 40)]
  assert stats.find_conspicuous(found, SIDE, worst=1)["extreme aspect"].worst == aspects.worst[:1]
  assert stats.find_conspicuous(found, SIDE, worst=1)["extreme aspect"].count == 2


def test_errors_describe_the_problem_without_the_file_name(seen):
  source, found = seen
  errors = {source.identify(look.record): look.error for look in found if look.error}
  assert errors["train/cat/none.jpg"] == "the file is empty"
  assert errors["train/cat/torn.jpg"].startswith("not a complete image")


def test_pairs_match_exhaustive_search():
  rng = np.random.default_rng(0)
  hashes = [int(value) for value in rng.integers(0, 2**64, 60, dtype=np.uint64)]
  hashes += [
    value ^ sum(1 << int(bit) for bit in rng.choice(64, 1 + i, replace=False)) for i, value in enumerate(hashes[:9])
  ]
  found = [stats.ImageFacts(10 * i, hash=value) for i, value in enumerate(hashes)]
  expected = set()
  for one, look in enumerate(found):
    others = [((look.hash ^ other.hash).bit_count(), i) for i, other in enumerate(found) if i != one]
    bits, nearest = min(others)
    if bits <= duplicates.DISTANCE:
      expected.add((bits, *sorted((look.record, found[nearest].record))))
  assert {(bits, a.record, b.record) for bits, a, b in stats.find_duplicates(found)} == expected
  assert 5 < len(expected) < 9


def test_blank_pages_are_not_duplicates():
  found = [stats.ImageFacts(i, (0,), 9, 9, spread, 7) for i, spread in enumerate((0.0, 2.9, 3.1, 50.0))]
  ((_, pair),) = stats.find_conspicuous(found, 8)["pairs of near-duplicates"].worst
  assert [look.record for look in pair] == [2, 3]


@pytest.mark.parametrize(("length", "count"), [(10, 10), (10, 99), (10, 3), (1000, 999), (10**9, 100)])
def test_sample_has_distinct_records_from_the_whole_range(length, count):
  records = stats.sample_records(length, count, seed=1)
  assert len(records) == len(set(records)) == min(length, count) and records == sorted(records)
  assert records[0] >= 0 and records[-1] < length
  assert max(b - a for a, b in itertools.pairwise(records)) <= 2 * length / count + 1
  assert records == stats.sample_records(length, count, seed=1)


def test_sample_covers_classes_in_periodic_order():
  drawn = np.bincount([record % 10 for record in stats.sample_records(100_000, 10_000, seed=0)], minlength=10)
  assert drawn.min() > 850 and drawn.max() < 1150  # 1,000 expected, and 30 is the standard deviation


def test_classes_are_counted_over_all_labelled_records(seen):
  source, found = seen
  counts, records = stats.count_classes(source, [])
  assert (counts.tolist(), records) == ([15, 6], 21)
  counts, records = stats.count_classes(dataclasses.replace(source, read_label=None), found)
  assert (counts.tolist(), records) == ([13, 6], 19)  # without the two unreadable images
  several = [stats.ImageFacts(0, (0, 1)), stats.ImageFacts(1, ()), stats.ImageFacts(2, (1,))]
  counts, records = stats.count_classes(dataclasses.replace(source, read_label=None), several)
  assert (counts.tolist(), records) == ([1, 2], 3)


def test_other_kinds_are_found_without_the_hash_library(seen, monkeypatch):
  source, _ = seen

  def missing():
    raise schema.ConfigError("not installed")

  monkeypatch.setattr(duplicates, "_import_imagehash", missing)
  kinds = stats.find_conspicuous(inspect_source(source), SIDE)
  assert kinds["pairs of near-duplicates"].count == 0 and kinds["tiny"].count == 1


def test_huge_images_are_harmless_and_have_a_fix(seen):
  _, found = seen
  kinds = stats.find_conspicuous(found, SIDE)
  assert [name for name, kind in kinds.items() if kind.harmless] == ["huge"]
  assert kinds["huge"].about == (
    "over 100 times the 1,024 pixels of the model's input. `prepare --size=64` makes smaller, faster copies"
  )

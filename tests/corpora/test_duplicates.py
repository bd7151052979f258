"""Tests of perceptual hashes and their index."""

import dataclasses
import re

import cv2
import numpy as np
import pytest

from benchmarks import photographs
from tests import hostile_images
from tests.corpora import folders
from tests.image_files import decoded
from vit_jax.corpora import duplicates
from vit_jax.data import sources
from vit_jax.schema import ConfigError

PHOTOGRAPHS = [decoded(photographs.make_picture(seed)) for seed in range(6)]
ALIKE = {
  "saved again": lambda image: decoded(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])[1].tobytes())[
    ..., ::-1
  ],
  "smaller": lambda image: cv2.resize(image, (160, 120), interpolation=cv2.INTER_AREA),
  "square": lambda image: cv2.resize(image, (224, 224), interpolation=cv2.INTER_AREA),
  "cut": lambda image: image[4:-4, 5:-5],
}


def index(images, distance=duplicates.DISTANCE):
  hashes = [duplicates.compute_hash(each) for image in images for each in (image, cv2.flip(image, 1))]
  return duplicates.HashIndex(hashes, [("test set", f"image {i}", i) for i in range(len(images))], distance)


@pytest.mark.parametrize("change", ALIKE)
def test_changed_copy_of_an_image_is_a_duplicate(change):
  matched = index(PHOTOGRAPHS).match(np.ascontiguousarray(ALIKE[change](PHOTOGRAPHS[3])))
  assert (matched["image"], matched["record"], matched["of"], matched["mirrored"]) == ("image 3", 3, "test set", False)
  mirrored = cv2.flip(np.ascontiguousarray(ALIKE[change](PHOTOGRAPHS[3])), 1)
  assert index(PHOTOGRAPHS).match(mirrored)["mirrored"]


def test_different_image_is_not_a_duplicate():
  assert index(PHOTOGRAPHS[:-1]).match(PHOTOGRAPHS[-1]) is None


@pytest.mark.parametrize("distance", [0, 3, 6, 20])
def test_index_matches_exhaustive_search(distance):
  rng = np.random.default_rng(0)
  hashes = rng.integers(0, 2**64, 500, dtype=np.uint64)
  found = duplicates.HashIndex(hashes, [], distance)
  hits = 0
  for _ in range(60):
    value = int(hashes[rng.integers(500)])
    for bit in rng.choice(64, rng.integers(0, 2 * distance + 2), replace=False):
      value ^= 1 << int(bit)
    distances = [int(each ^ value).bit_count() for each in hashes.tolist()]
    best = min(distances)
    assert found.find_nearest(value) == ((distances.index(best), best) if best <= distance else None)
    hits += best <= distance
  assert hits > 10


def test_index_compares_few_hashes():
  rng = np.random.default_rng(0)
  found = duplicates.HashIndex(rng.integers(0, 2**64, 50_000, dtype=np.uint64), [], 6)
  (low, mask), (keys, _) = found._parts[0], found._tables[0]
  counts = np.bincount(keys.astype(int), minlength=mask + 1)
  assert low == 0 and counts.max() < 200  # the index has seven parts


def test_page_shows_pairs_and_escapes_names(tmp_path, monkeypatch):
  monkeypatch.setattr(duplicates, "SHOWN", 1)
  rows = [
    {"file": "<script>\udcff\x1b[2J", "of": "a\x07", "image": "x&y", "record": 1, "distance": 2, "mirrored": True}
    | duplicates.make_thumbnail(PHOTOGRAPHS[0])
  ]
  duplicates.write_duplicates_page(
    tmp_path / "d.html", 7 * rows, lambda row: duplicates.make_thumbnail(PHOTOGRAPHS[row["record"]])
  )
  text = (tmp_path / "d.html").read_text()
  assert len(re.findall(r'src="data:image/jpeg;base64,[\w+/=]+"', text)) == 2
  assert (
    "&lt;script&gt;\\udcff\\x1b[2J" in text
    and "a\\x07" in text
    and "\x1b" not in text
    and "x&amp;y" in text
    and "mirrored" in text
    and "7 duplicates, the first 1" in text
  )


def test_unreadable_test_image_is_an_error():
  nothing = sources.Source("set", "test", ("a",), 9, lambda i: (b"nothing", 0), lambda i: f"set, record {i}")
  with pytest.raises(ConfigError, match=r"--dedup-against: set, record 4: not a complete image"):
    duplicates.hash_record(nothing, 4)


def test_published_test_image_may_have_extraneous_bytes():
  data = hostile_images.REFUSED["jpeg with bytes before its end"]()
  private = sources.Source("set", "test", ("a",), 9, lambda i: (data, 0), lambda i: f"set, record {i}")
  public = dataclasses.replace(private, is_published=lambda i: True)
  expected = decoded(hostile_images.jpeg())
  np.testing.assert_array_equal(duplicates.read_pixels(public, 4), expected)
  assert duplicates.hash_record(public, 4)[0] == duplicates.compute_hash(expected)
  with pytest.raises(ConfigError, match=r"set, record 4: .*extraneous bytes"):
    duplicates.hash_record(private, 4)


def test_split_with_only_duplicates_is_refused(tmp_path):
  path = folders.folder(tmp_path / "photos", 3)
  with pytest.raises(ConfigError, match=r"no image is left in split 'train': 6 of 6 images are left out as duplicates"):
    folders.made(path, tmp_path / "data", against=(str(path),), distance=6)

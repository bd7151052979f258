"""Tests of a table of bad data: each file is kept, rejected with a reason, or refused by name."""

import dataclasses
import io
import json
import os
import re

import cv2
import numpy as np
import pytest
from PIL import Image

from tests import hostile_images
from tests.corpora import folders
from tests.image_files import decoded, encode, picture
from vit_jax.corpora import record_maker
from vit_jax.data import sources
from vit_jax.schema import ConfigError


def make_animation(form):
  frames = [Image.fromarray(picture(seed=seed)) for seed in range(3)]
  return encode(frames[0], form, save_all=True, append_images=frames[1:])


def make_transparent():
  return encode(Image.fromarray(np.dstack([picture(), np.full((60, 80), 7, np.uint8)])))


def turned():
  exif = Image.Exif()
  exif[0x0112] = 6
  return encode(picture(), "JPEG", exif=exif)


# Rejected files by name: (content, pattern of the reason).
LEFT_OUT = {
  "truncated": (lambda: hostile_images.cut(hostile_images.jpeg(), 0.6), "not a complete image"),
  "truncated, with its end": (
    lambda: hostile_images.REFUSED["jpeg cut at 60%, with its end"](),
    "not a complete image",
  ),
  "zero bytes": (lambda: b"", "the file is empty"),
  "a page called an image": (lambda: b"<!doctype html>404", "not a complete image: .* beginning with b'<!doctyp'"),
  "a truncated TIFF": (
    lambda: hostile_images.REFUSED["tiff cut at 90%"](),
    "not a complete image: .* with pixels that end at",
  ),
  "a bomb in PNG": (lambda: hostile_images.REFUSED["png of a sixteenth of the bytes it needs"](), "10,000 x 10,000"),
  "a bomb in JPEG": (lambda: hostile_images.REFUSED["jpeg of 65,500 squared"](), "65,500 x 65,500"),
  "a bomb in GIF": (lambda: hostile_images.REFUSED["gif of 65,535 squared"](), "65,535 x 65,535 pixels. Allowed"),
  "a strip": (lambda: encode(np.zeros((1, 500, 3), np.uint8)), "one side up to .* times the other"),
}
# Kept files by name: (content, True if the bytes are unchanged).
KEPT = {
  "CMYK": (lambda: hostile_images.jpeg(mode="CMYK"), False),
  "gray": (lambda: hostile_images.jpeg(mode="L"), True),
  "16 bits": (hostile_images.WHOLE["gray png of sixteen bits"], True),
  "alpha": (make_transparent, True),
  "palette": (lambda: encode(Image.fromarray(picture()).convert("P")), True),
  "animated GIF": (lambda: make_animation("GIF"), False),
  "animated PNG": (lambda: make_animation("PNG"), False),
  "1 x 1": (lambda: encode(picture(1, 1)), True),
  "a panorama of 20,000 pixels": (lambda: encode(cv2.resize(picture(), (20_000, 200)), "JPEG", quality=20), True),
  "turned by EXIF": (turned, False),
  "a colour profile": (lambda: encode(picture(), "JPEG", icc_profile=b"profile" * 99), True),
  "damaged EXIF": (lambda: encode(picture(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), True),
  "a PNG called .jpg": (lambda: encode(picture()), True),
  "a TIFF called .jpg": (lambda: encode(picture(), "TIFF"), False),
}
NAMES = (
  "with blanks .jpg",
  "of two\nlines.jpg",
  "no\udcff\udcfeunicode.jpg",
  "-dash.jpg",
  "quote'\".jpg",
  "ünïcode.jpg",
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  """The root of a corpus of a folder with all these files, and the lines of the writer."""
  top = tmp_path_factory.mktemp("bad")
  root = folders.folder(top / "photos", 3)
  for name, (make, *_) in (LEFT_OUT | KEPT).items():
    (root / f"train/cat/{name}.jpg").write_bytes(make())
  for kind in ("named pipe", "link to itself", "link to nothing", "unreadable", "100 GB with holes"):
    hostile_images.NO_FILES[kind](root / f"train/dog/{kind}.jpg")
  for i, name in enumerate(NAMES):
    (root / "train/dog" / name).write_bytes(encode(picture(seed=100 + i)))
  output = folders.made(root, top / "data", max_rejected=0.9)
  return top, output


def read_rejected(root):
  lines = (root / "data/corpus/1.0.0/rejected.jsonl").read_text().splitlines()
  return {row["file"]: row["reason"] for row in map(json.loads, lines)}


def read_kept(root):
  import tensorflow_datasets as tfds

  examples = tfds.builder_from_directory(root / "data/corpus/1.0.0").as_data_source(
    "train", decoders={"image": tfds.decode.SkipDecoding()}
  )
  return {os.fsdecode(example["id"]): example["image"] for example in examples}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_incomplete_image_is_rejected_with_its_reason(corpus, name):
  assert re.search(LEFT_OUT[name][1], read_rejected(corpus[0])[f"train/cat/{name}.jpg"])
  assert f"train/cat/{name}.jpg" not in read_kept(corpus[0])


@pytest.mark.parametrize("name", KEPT)
def test_unusual_but_complete_image_keeps_its_pixels(corpus, name):
  data, same = KEPT[name][0](), KEPT[name][1]
  stored = read_kept(corpus[0])[f"train/cat/{name}.jpg"]
  assert (stored == data) == same
  image = Image.open(io.BytesIO(stored))
  assert image.format in ("JPEG", "PNG") and image.mode != "CMYK"
  expected = np.rot90(decoded(data), -1) if name == "turned by EXIF" else decoded(data)
  assert decoded(stored).shape == expected.shape
  assert np.abs(decoded(stored).astype(int) - expected).mean() < 3


@pytest.mark.parametrize(
  ("name", "reason"),
  {
    "named pipe": "named pipe",
    "link to itself": "symbolic links",
    "link to nothing": "No such file",
    "unreadable": "ermission|irectory",
    "100 GB with holes": "100,000,000,000 bytes. Allowed",
  }.items(),
)
def test_unreadable_file_is_rejected_with_its_reason(corpus, name, reason):
  assert re.search(reason, read_rejected(corpus[0])[f"train/dog/{name}.jpg"])


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_unusual_file_name_is_kept(corpus, name):
  assert f"train/dog/{name}" in read_kept(corpus[0])


def test_kept_and_rejected_images_are_counted(corpus):
  root, output = corpus
  assert len(read_rejected(root)) == len(LEFT_OUT) + 5
  assert len(read_kept(root)) == 6 + len(KEPT) + len(NAMES)
  assert any(line.startswith(f"{len(LEFT_OUT) + 5} rejected") for line in output)
  bombs = next(line for line in output if "data.max_pixels" in line)
  assert re.match(r" +\d  (such as )?train/cat/a bomb in (GIF|JPEG|PNG).jpg: \d\d,\d{3} x \d\d,\d{3} pixels", bombs)
  assert output[-1] == f"train on it with --config.data.name=tfds --config.data.path={root}/data/corpus/1.0.0"


def make_labelled(*labels, most=1):
  """Returns a source that gives the same good image for each of these labels."""
  return sources.Source(
    "set", "all", ("a", "b"), len(labels), lambda i: (encode(picture()), labels[i]), lambda i: f"set, record {i}", most
  )


def test_label_out_of_range_is_rejected():
  maker = record_maker.RecordMaker(make_labelled(1, 2, -1))
  assert [record.rejected for record in maker.make_records(range(3))] == [
    None, "label 2 is not one of 2 classes", "label -1 is not one of 2 classes"
  ]  # fmt: skip


def test_missing_label_is_rejected_only_in_a_single_label_dataset():
  assert [
    record.labels for record in record_maker.RecordMaker(make_labelled((0, 1), (), most=2)).make_records(range(2))
  ] == [
    (0, 1),
    (),
  ]
  (record,) = record_maker.RecordMaker(make_labelled(())).make_records(range(1))
  assert record.rejected == "0 labels. Allowed: one label per image"


@pytest.mark.parametrize(
  ("name", "stored"),
  [("ü", b"\xc3\xbc"), ("no\udcffunicode", b"no\xffunicode"), ("\ud800", b"\xed\xa0\x80"), ("\ud800\udcff", None)],
  ids=ascii,
)
def test_image_with_any_name_is_kept(name, stored):
  from tensorflow_datasets.proto import tf_example_pb2

  source = dataclasses.replace(make_labelled(1), identify=lambda i: name)
  (record,) = record_maker.RecordMaker(source).make_records(range(1))
  assert record.rejected is None
  (kept,) = tf_example_pb2.Example.FromString(record.data).features.feature["id"].bytes_list.value
  assert kept == stored or (stored is None and kept.decode("utf-8", "surrogatepass") == name)


def test_disk_error_does_not_reject_an_image():
  def read(i):
    raise OSError(5, "Input/output error")

  source = sources.Source("set", "all", ("a",), 1, read, lambda i: f"set, record {i}")
  with pytest.raises(ConfigError, match=r"set, record 0: .*Input/output error. Check that its disk or bucket"):
    list(record_maker.RecordMaker(source).make_records(range(1)))


def test_empty_class_is_refused_by_name(tmp_path):
  root = folders.folder(tmp_path / "photos")
  (root / "train/empty").mkdir()
  with pytest.raises(ConfigError, match=r"data.path: class folder '.*train/empty' contains no image"):
    folders.made(root, tmp_path / "data")


def test_classes_that_differ_only_in_case_stay_separate_and_are_named(tmp_path, capsys):
  root = folders.folder(tmp_path / "photos", 6, ("cat", "Cat", "dog"))
  folders.made(root, tmp_path / "data")
  assert (
    "1 group of classes has names that look alike but are different classes: 'Cat' and 'cat'" in capsys.readouterr().out
  )
  assert folders.source(tmp_path / "data").classes == ("Cat", "cat", "dog")


@pytest.mark.parametrize("name", ["of two\nlines", " blank", "no\udcffunicode"], ids=ascii)
def test_class_name_that_is_not_one_line_of_text_is_refused(tmp_path, name):
  root = folders.folder(tmp_path / "photos", 2, ("cat", name))
  with pytest.raises(ConfigError, match=r"data: class .* cannot be stored by TFDS"):
    folders.made(root, tmp_path / "data")

"""Tests that a file has the same pixels in training, evaluation, `predict`, `prepare` and `prepare --check`."""

import numpy as np
import pytest

from tests import hostile_images
from tests.image_files import encode, picture
from tests.made_images import bmp, chunk, gif, gif_frame, png, tiff
from vit_jax import schema
from vit_jax.corpora import check, conversion
from vit_jax.data import catalog, crops, images, loader, stream
from vit_jax.data.formats.errors import DecodeError
from vit_jax.inference.preparation import Preparation

SIDE = 24
DRAW = np.random.default_rng(0)
MASKS = 0x3FF, 0xFFC00, 0x3FF00000
PALETTE = DRAW.integers(0, 256, (16, 3))


def masked():
  """Returns a BMP with 10 bits per channel, and its pixels."""
  channels = DRAW.integers(0, 1024, (SIDE, SIDE, 3))
  pixels = sum(channels[..., i].astype(np.uint32) << np.uint32(10 * i) for i in range(3))
  rows = [row.astype("<u4").tobytes() for row in pixels[::-1]]
  return bmp(rows, SIDE, SIDE, 32, compression=3, masks=MASKS), (channels * 510 + 1023) // 2046


def numbered(form):
  """Returns a GIF with its pixels. Its background is outside the palette, or one of its colours is transparent."""
  numbers = DRAW.integers(0, 16, (SIDE, SIDE))
  frame = gif_frame(numbers, transparent=3 if form == "transparent" else None)
  return gif(SIDE, SIDE, frame, palette=PALETTE, background=99 if form == "background" else 0), PALETTE[numbers]


def gray(kind):
  """Returns a square TIFF with an orientation that is ignored, and its pixels."""
  samples = DRAW.integers(0, 256, (SIDE, SIDE, 1))
  return tiff(samples, 8, 1, tags={274: (kind, [6])}), np.repeat(samples, 3, -1)


def deep():
  """Returns a PNG of 16 bits with a transparent colour, and its pixels."""
  samples = DRAW.integers(0, 65536, (SIDE, SIDE, 3))
  return png(samples, 16, 2, before=chunk(b"tRNS", samples[0, 0].astype(">u2").tobytes())), samples >> 8


FILES = {
  "b1.bmp": masked(),
  "b2.tif": gray(8),
  "b3.gif": numbered("background"),
  "b4.gif": numbered("transparent"),
  "deep.png": deep(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  root = tmp_path_factory.mktemp("formats")
  (root / "train/a").mkdir(parents=True)
  for name, (data, _) in FILES.items():
    (root / "train/a" / name).write_bytes(data)
  return root


@pytest.fixture(scope="module")
def source(folder):
  return catalog.open_split(schema.Choice("folder", {"path": str(folder), "test": "train"}), "train")


def record(source, name):
  return next(i for i in range(len(source)) if source.identify(i).endswith(name))


@pytest.mark.parametrize("name", FILES)
def test_every_verb_has_the_pixels_that_the_format_defines(source, name):
  data, expected = FILES[name]
  preparation = Preparation(SIDE, crops.TEST_CROPS["resize"](SIDE), 10**6, 100, True)
  np.testing.assert_array_equal(preparation.prepare_file(data), expected)  # predict and the report
  np.testing.assert_array_equal(conversion.convert_image(data).pixels, expected)  # prepare, on one machine or several
  for exif in (False, True):
    account = images.Images(source, "raise", 10**6, 100, exif)
    whole, _ = account.read_prepared(record(source, name), np.asarray)  # --show and --check
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("name", FILES)
def test_prepared_file_has_the_same_pixels(name):
  data, expected = FILES[name]
  written = conversion.convert_image(data)
  np.testing.assert_array_equal(conversion.convert_image(written.data).pixels, expected)


def test_training_and_evaluation_have_the_same_pixels(source):
  training = stream.train_examples(source, 0, image_size=SIDE, crop=schema.Choice("resize"), flip=False)
  testing = stream.eval_examples(source, image_size=SIDE, test_crop=schema.Choice("resize"))
  for examples in (training, testing):
    batches = loader.batches(examples, len(FILES), range(len(FILES)))
    taken = list(next(batches)["image"])
    batches.close()
    for _, expected in FILES.values():
      assert sum(np.array_equal(image, expected) for image in taken) == 1


DAMAGED = {
  name: hostile_images.REFUSED[name]()
  for name in (
    "jpeg without one of its intervals",
    "jpeg with bytes before its end",
    "progressive jpeg with zeros inside",
    "group4 tiff with a tail of zeros",
    "deflate tiff with a flipped bit",
    "packbits tiff with a run beyond its rows",
  )
}


@pytest.mark.parametrize("name", DAMAGED)
def test_every_verb_refuses_a_damaged_file(name, tmp_path, monkeypatch):
  data = DAMAGED[name]
  preparation = Preparation(SIDE, crops.TEST_CROPS["resize"](SIDE), 10**6, 100, True)
  with pytest.raises(DecodeError, match="not a complete image"):
    preparation.prepare_file(data)  # predict and the report
  with pytest.raises(DecodeError, match="not a complete image"):
    conversion.convert_image(data)  # prepare
  (tmp_path / "train/a").mkdir(parents=True)
  (tmp_path / "train/a/x.jpg").write_bytes(data)
  lines, bad, _ = check.check_images(tmp_path)  # prepare --check
  assert bad == 1 and "bad: train/a/x.jpg: not a complete image" in lines[0]
  monkeypatch.setattr(images, "KEEP", 0)  # as with data larger than memory
  photos = catalog.open_split(schema.Choice("folder", {"path": str(tmp_path), "test": "train"}), "train")
  training = stream.train_examples(photos, 0, image_size=SIDE)  # crops a box
  testing = stream.eval_examples(photos, image_size=SIDE)
  for examples in (training, testing):
    batches = loader.batches(examples, 1, range(1))
    with pytest.raises(images.ImageError, match=r"train/a/x.jpg'\): not a complete image"):
      next(batches)
    batches.close()


def test_check_reports_only_images_that_a_run_refuses(folder, tmp_path):
  lines, bad, _ = check.check_images(folder)
  assert bad == 0, lines
  refused = {
    "shared.bmp": bmp([bytes(4)], 1, 1, 32, compression=3, masks=(1, 1, 2)),
    "sixteen.tif": b"II+\0" + bytes(9),
  }
  for name, data in refused.items():
    (tmp_path / name).write_bytes(data)
  (tmp_path / "good.png").write_bytes(encode(picture()))
  lines, bad, _ = check.check_images(tmp_path)
  assert bad == 2
  assert any("shared.bmp: a BMP with channel masks that share bits" in line for line in lines)
  assert any("sixteen.tif: a BigTIFF" in line for line in lines)

"""Tests of images by record: bad images are named or skipped, and images being read are reported."""

import dataclasses
import errno
import threading
import time

import cv2
import numpy as np
import pytest

from tests import hostile_images
from tests.image_files import decoded, encode, picture, tagged
from tests.streams import PLAIN, file, records, source, train
from vit_jax import schema
from vit_jax.data import catalog, crops, decoding, images, loader, prefetch, sources, stream

SMALL = [name for name in hostile_images.REFUSED if "32,767" not in name]


def of(read, on_error, count=1):
  """Returns the images of a generated source with the records of `read`."""
  made = sources.Source("made", "test", ("a",), count, read, lambda i: f"made, record {i}")
  return images.Images(made, on_error, 178_956_970, 100)


def same(image):
  return np.asarray(image)


@pytest.mark.parametrize("name", SMALL)
def test_hostile_image_is_named_in_an_error_or_skipped(name):
  data = hostile_images.REFUSED[name]()
  raising, skipping = of(lambda i: (data, 0), "raise"), of(lambda i: (data, 0), "skip", 1000)
  with pytest.raises(images.ImageError, match=r"^made, record 0: ") as caught:
    raising.read_prepared(0, same)
  assert "Fix it, or leave out such images with --config.data.on_error=skip" in str(caught.value)
  assert len(str(caught.value)) < 400
  assert raising.problem is caught.value
  assert skipping.read_prepared(7, same) is None
  assert skipping.reasons.keys() == {7}
  assert skipping.problem is None


@pytest.mark.parametrize("name", hostile_images.NO_FILES)
def test_file_that_is_not_regular_is_refused_without_blocking(tmp_path, name):
  folder = tmp_path / "train/a"
  folder.mkdir(parents=True)
  (folder / "x.jpg").write_bytes(hostile_images.jpeg())
  photos = catalog.open_split(schema.Choice("folder", {"path": str(tmp_path), "test": "train"}), "train")
  (folder / "x.jpg").unlink()
  hostile_images.NO_FILES[name](folder / "x.jpg")
  with pytest.raises(images.ImageError, match=r"record 0 \(file '.*/train/a/x.jpg'\): ") as caught:
    images.Images(photos, "raise", 10**6, 100).read_prepared(0, same)
  if name.endswith("named pipe"):
    assert "it is a named pipe, not a regular file" in str(caught.value)
  if name == "100 GB with holes":
    assert "it has 100,000,000,000 bytes. Allowed: 268,435,456" in str(caught.value)


def corner(image):
  """Returns a box far from the end of the file."""
  return np.array(image[10:40, 20:60])


def test_jpeg_is_decoded_as_a_whole_once_and_by_boxes_later(monkeypatch):
  data, whole = hostile_images.jpeg(), []
  monkeypatch.setattr(images, "KEEP", 0)  # otherwise the decoded image is kept in memory
  decode = decoding.decode
  monkeypatch.setattr(decoding, "decode", lambda *args: whole.append(1) or decode(*args))
  several = of(lambda i: (data, 0), "raise", 20)
  for i in (3, 9, 3, 8, 9, 3):
    np.testing.assert_array_equal(several.read_prepared(i, corner)[0], decoded(data)[10:40, 20:60])
  assert len(whole) - 6 == (3 if decoding.nvimgcodec else 6)  # the test itself decodes six times


def test_damage_outside_a_box_is_found_every_time(monkeypatch):
  monkeypatch.setattr(images, "KEEP", 0)
  data = hostile_images.cut(hostile_images.jpeg(), 0.9, hostile_images.EOI)
  raising, skipping = of(lambda i: (data, 0), "raise"), of(lambda i: (data, 0), "skip", 1000)
  for _ in range(3):
    with pytest.raises(images.ImageError, match="record 0: not a complete image: libjpeg reports: Corrupt JPEG data"):
      raising.read_prepared(0, corner)
    assert skipping.read_prepared(7, corner) is None


def test_records_of_public_data_may_have_bytes_before_the_end():
  data = hostile_images.REFUSED["jpeg with bytes before its end"]()
  mixed = dataclasses.replace(of(lambda i: (data, 0), "raise", 2).source, is_published=lambda i: i == 1)
  account = images.Images(mixed, "raise", 10**6, 100)
  np.testing.assert_array_equal(account.read_prepared(1, same)[0], decoded(hostile_images.jpeg()))
  with pytest.raises(images.ImageError, match="extraneous bytes before marker 0xd9"):
    account.read_prepared(0, same)
  swapped = images.Images(sources.select_subset(mixed, [1, 0]), "raise", 10**6, 100)
  assert swapped.read_prepared(0, same)
  with pytest.raises(images.ImageError):
    swapped.read_prepared(1, same)


def test_missing_file_is_named_once(tmp_path):
  file = tmp_path / "a.png"
  gone = dataclasses.replace(
    of(lambda i: (file.read_bytes(), 0), "raise").source, place=lambda i: f"file {str(file)!r}"
  )
  with pytest.raises(images.ImageError) as caught:
    images.Images(gone, "raise", 10**6, 100).read_prepared(0, same)
  new = f"or leave out such images in a new run with --{gone.key}.on_error=skip"
  assert str(caught.value) == f"file {str(file)!r}: No such file or directory. Restore it, {new}"


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_disk_error_stops_the_run_and_marks_no_record_as_bad(on_error):
  def read(i):
    raise OSError(errno.ESTALE, "Stale file handle")

  made = of(read, on_error, 1000)
  with pytest.raises(
    images.ImageError, match=r"record 3: .*Stale file handle. Check that its disk or bucket is reachable"
  ):
    made.read_prepared(3, same)
  assert not made.reasons


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(
  "error", [MemoryError(), cv2.error("OpenCV(5.0.0) a.cpp:1: error: (-4:Insufficient memory) F")]
)
def test_lack_of_memory_stops_the_run_and_marks_no_record_as_bad(on_error, error):
  def fail(image):
    raise error

  made = of(lambda i: (file(3), 0), on_error, 1000)
  with pytest.raises(images.ImageError, match=r"made, record 3: not enough memory. Use fewer data\.threads"):
    made.read_prepared(3, fail)
  assert not made.reasons


def test_dataset_with_only_bad_images_stops_the_run():
  made = of(lambda i: (b"", 0), "skip", 3)
  assert made.read_prepared(0, same) is None
  assert made.read_prepared(1, same) is None
  with pytest.raises(images.ImageError, match="3 of 3 records are bad"):
    made.read_prepared(2, same)


ERRORS = (
  cv2.error("OpenCV(5.0.0) resize.cpp:1: error: (-215:Assertion failed) in function 'resize'"),
  ValueError("cannot reshape"),
)


@pytest.mark.heavy
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("stage", ["crop", "policy"])
def test_error_in_a_crop_or_policy_is_an_error_of_the_image(monkeypatch, error, stage):
  def fail(image, draw):
    if image[0, 0].tolist() == [7, 0, 3]:  # record 3
      raise error
    return cv2.resize(image, (2, 2))

  table = crops.CROPS if stage == "crop" else stream.policies.POLICIES
  monkeypatch.setitem(table, "failing", (lambda size: fail) if stage == "crop" else lambda: fail)
  monkeypatch.setitem(crops.TEST_CROPS, "failing", lambda size: fail)
  args = {stage: schema.Choice("failing")}
  with pytest.raises(images.ImageError, match=r"^made, record 3: ") as caught:
    train(source(10), 10, 1, **args)
  assert caught.value.__cause__ is error
  taken = train(source(2000), 500, 4, on_error="skip", **args)
  assert sorted(records(taken))[:4] == [0, 1, 2, 4]  # one epoch, with another image in place of record 3
  if stage == "crop":
    examples = stream.eval_examples(source(2000), image_size=2, test_crop=schema.Choice("failing"))
    batches = loader.batches(examples, 500, range(500), on_error="skip")
    mask = next(batches)["valid"]
    batches.close()
    assert np.flatnonzero(mask == 0).tolist() == [3]


def test_image_too_long_for_the_crop_is_an_error_of_the_image():
  data = encode(np.zeros((1_000_000, 1, 3), np.uint8))
  made = sources.Source("made", "test", ("a",), 1, lambda i: (data, 0), lambda i: f"made, record {i}")
  for max_aspect, reason in ((100, "data.max_aspect=100 times"), (1e9, "Allowed: 256 MiB|libpng|OpenCV")):
    examples = stream.eval_examples(made, test_crop=schema.Choice("centre"))
    batches = loader.batches(examples, 1, range(1), max_aspect=max_aspect)
    with pytest.raises(images.ImageError, match=f"made, record 0: .*({reason})"):
      next(batches)
    batches.close()


def test_limits_of_a_config_apply_to_training_and_evaluation():
  large = sources.Source("made", "t", ("a",), 1, lambda i: (encode(picture(60, 80)), 0), lambda i: f"made, record {i}")
  for examples in (stream.train_examples(large, 0, **PLAIN), stream.eval_examples(large, image_size=2)):
    for bounds, message in (({"max_pixels": 4000}, "max_pixels=4,000"), ({"max_aspect": 1.3}, "max_aspect=1.3")):
      batches = loader.batches(examples, 1, range(1), **bounds)
      with pytest.raises(images.ImageError, match=message):
        next(batches)
      batches.close()


def test_first_problem_is_known_before_its_batch_is_requested():
  batches = loader.batches(stream.eval_examples(source(200, bad=[30]), image_size=2), 4, range(4), threads=2)
  assert batches.problem is None
  next(batches)
  for _ in range(6):
    next(batches)
  deadline = time.monotonic() + 20
  while batches.problem is None and time.monotonic() < deadline:
    time.sleep(0.01)  # record 30 is in the eighth batch, which was not requested
  assert isinstance(batches.problem, images.ImageError)
  assert "made, record 30" in str(batches.problem)
  batches.close()


def test_image_being_read_is_reported_and_closing_does_not_wait(monkeypatch):
  monkeypatch.setattr(prefetch, "PATIENCE", 0.1)
  go_on, begun = threading.Event(), threading.Event()

  def read(i):
    if i == 5:
      begun.set()
      go_on.wait(60)
    return file(i), 0

  made = sources.Source("made", "t", ("a",), 40, read, lambda i: f"made, record {i}")
  batches = loader.batches(stream.eval_examples(made, image_size=2), 4, range(4), threads=3)
  next(batches)
  assert begun.wait(20)
  time.sleep(0.2)
  (place, seconds), *others = batches.reading()
  assert place == "made, record 5" and 0.2 <= seconds < 20
  assert all(later <= seconds for _, later in others)
  start_time = time.monotonic()
  batches.close()
  assert time.monotonic() - start_time < 2
  go_on.set()


def test_no_image_is_reported_as_being_read_at_the_end():
  batches = loader.batches(stream.eval_examples(source(10), image_size=2), 4, range(4))
  assert len(list(batches)) == 3
  assert batches.reading() == []
  batches.close()


def test_bad_images_are_counted_across_threads_and_logged_once(caplog):
  bad = [3, 500, 1400]
  batches = loader.batches(
    stream.eval_examples(source(4000, bad), image_size=2), 100, range(100), on_error="skip", threads=8
  )
  list(batches)
  batches.close()
  assert batches.skipped == 3
  named = [record.getMessage() for record in caplog.records if "skipped: made" in record.getMessage()]
  assert sorted(int(text.split("record ")[1].split(":")[0]) for text in named) == bad


def test_number_of_logged_bad_images_is_limited(caplog):
  batches = loader.batches(
    stream.eval_examples(source(4000, range(0, 60, 2)), image_size=2), 100, range(100), on_error="skip", max_bad=0.1
  )
  list(batches)
  batches.close()
  lines = [record.getMessage() for record in caplog.records]
  assert batches.skipped == 30 and sum(line.startswith("skipped: made") for line in lines) == images.LISTED
  assert len(lines) == images.LISTED + 1 and lines[-1].startswith("further skipped records of split")


@pytest.mark.parametrize(
  ("max_bad", "bad", "stops"), [(0.0, 5, False), (0.0, 6, True), (0.1, 20, False), (0.1, 21, True)]
)
def test_limit_of_bad_records_is_configurable(max_bad, bad, stops):
  examples = stream.eval_examples(source(200, bad=range(bad)), image_size=2)
  batches = loader.batches(examples, 200, range(200), on_error="skip", max_bad=max_bad)
  if stops:
    with pytest.raises(images.ImageError, match=rf"larger of {100 * max_bad:g}% .config.data.max_bad. and 5 records"):
      next(batches)
  else:
    assert (next(batches)["valid"] == 0).sum() == bad
  batches.close()


@pytest.mark.parametrize("records", [1, 10**6], ids=["kept", "not kept"])
@pytest.mark.parametrize("exif", [False, True])
def test_images_are_oriented_as_configured_also_from_memory(exif, records):
  data = tagged(picture(), 6)
  made = sources.Source("made", "t", ("a",), records, lambda i: (data, 0), str)
  opened = images.Images(made, "raise", 10**6, 100, exif)
  for _ in range(2):
    pixels, _ = opened.read_prepared(0, np.asarray)
    np.testing.assert_array_equal(pixels, decoded(data, exif))
    assert opened.read_prepared(0, lambda image: image.shape)[0] == ((80, 60, 3) if exif else (60, 80, 3))


def test_evaluation_rotates_images_only_if_exif_is_applied():
  data = tagged(picture(60, 60), 3, "PNG")
  made = sources.Source("made", "t", ("a",), 1, lambda i: (data, 0), str)
  for exif in (False, True):
    batches = loader.batches(stream.eval_examples(made, image_size=60), 1, range(1), exif=exif)
    np.testing.assert_array_equal(next(batches)["image"][0], np.rot90(picture(60, 60), 2 * exif))
    batches.close()

"""Tests of prepared datasets in a bucket.

They have the same images as local datasets. One request reads at least 20 images on average.
"""

import functools
import json
import os
import shutil

import cv2
import fsspec
import numpy as np
import pytest

from tests.streams import file, same, take
from vit_jax import schema
from vit_jax.data import catalog, images, loader, stream
from vit_jax.data.readers import shards
from vit_jax.data.views import Fields
from vit_jax.schema import Choice
from vit_jax.storage import buckets, paths

pytestmark = pytest.mark.heavy  # the server is a process
PLAIN = {"image_size": 6, "crop": Choice("resize"), "flip": False}
ORDER = Choice("blocks", {"groups": 4, "window": 8})
LENGTHS = (500, 300, 7, 800)
BATCH = 64


def write(root, name, lengths, image):
  """Writes a dataset with shards of these lengths and the images `image(record)`."""
  import tensorflow_datasets as tfds
  from array_record.python import array_record_module

  features = tfds.features.FeaturesDict(
    {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=3)}
  )
  folder = root / name / "1.0.0"
  folder.mkdir(parents=True)
  features.save_config(folder)
  split = {"filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "name": "train", "numBytes": "1"}
  split["shardLengths"] = [str(length) for length in lengths]
  info = {"name": name, "version": "1.0.0", "fileFormat": "array_record", "splits": [split]}
  info["moduleName"] = "tensorflow_datasets.core.dataset_builders.adhoc_builder"
  (folder / "dataset_info.json").write_text(json.dumps(info))
  record = 0
  for i, length in enumerate(lengths):
    path = folder / f"{name}-train.array_record-{i:05d}-of-{len(lengths):05d}"
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1")
    for _ in range(length):
      writer.write(features.serialize_example({"image": image(record), "label": record % 3}))
      record += 1
    writer.close()


def jpeg(i):
  """Returns a JPEG of about 90 kB."""
  noise = np.random.default_rng(i % 20).integers(0, 256, (140, 190, 3), dtype=np.uint8)
  picture = cv2.resize(noise, (500, 375), interpolation=cv2.INTER_LINEAR)
  return cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 80])[1].tobytes()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
  """Returns a data directory with `small` and `photos`."""
  root = tmp_path_factory.mktemp("data")
  write(root, "small", LENGTHS, file)
  write(root, "photos", (900, 900), jpeg)
  return root


@pytest.fixture(scope="module")
def server(bucket_server, local):
  bucket_server.fill(local, "tfds")
  return bucket_server


@pytest.fixture(autouse=True)
def forgetful(monkeypatch):
  """Disables the cache of images in memory, as with a large dataset."""
  monkeypatch.setattr(images, "KEEP", 0)


def opened(path, name="small", split="train"):
  with schema.enter_key("config.data"):
    return catalog.open_split(Choice("tfds", {"path": str(path), "builder": name}), split)


def training(source, steps, rows=range(BATCH), start=0, order=ORDER, **args):
  examples = stream.train_examples(source, 0, Fields(), BATCH, order=order, **PLAIN | args)
  return take(loader.batches(examples, BATCH, rows, start), steps)


def test_source_in_a_bucket_has_the_records_of_the_local_source(server, local):
  here, there = opened(local), opened("gs://bkt/tfds")
  assert (here.classes, len(here), here.parts) == (there.classes, len(there), there.parts)
  for record in (0, 499, 500, 806, 807, 1606):
    assert here.read(record) == there.read(record)
    assert here.identify(record) == there.identify(record)
  parts = "train[450:520]+train[790:820]"
  here, there = opened(local, split=parts), opened("gs://bkt/tfds", split=parts)
  read = [there.runs.parse(stored) for stored in there.runs.read(3, 95)]
  assert read == [here.read(record) for record in range(3, 95)]
  assert there.place(0) == (
    "small, split 'train', record 450 (file 'gs://bkt/tfds/small/1.0.0/small-train.array_record-00000-of-00004')"
  )


@pytest.mark.parametrize("hosts", [1, 2, 4])
def test_processes_build_their_rows_with_one_request_per_20_images(server, local, hosts):
  steps = 2 * sum(LENGTHS) // BATCH  # two epochs
  whole, source = training(opened(local), steps), opened("gs://bkt/tfds")
  before = server.asked("tfds/.*array_record-")
  for host in range(hosts):
    rows = np.arange(BATCH)[host * BATCH // hosts : (host + 1) * BATCH // hosts]
    expected = [{key: value[rows] for key, value in batch.items()} for batch in whole]
    same(expected, training(source, steps, rows.tolist()))
  images = steps * BATCH
  # At the end, more records are read ahead than these steps need: 5/4 of a window per group, and the prefetched
  # batches.
  ahead = 4 * (8 * 32 * 5 // 4 + 6 * BATCH // 4)
  assert server.asked("tfds/.*array_record-") - before <= 0.05 * (images + ahead)


def examples_in(path):
  """Returns training examples that another process can open."""
  images.KEEP = 0  # also in the other process
  return stream.train_examples(opened(path), 0, Fields(), BATCH, order=ORDER, **PLAIN)


@pytest.mark.long
def test_two_workers_match_the_local_stream_and_read_each_block_once(server, local):
  steps = 2 * sum(LENGTHS) // BATCH  # two epochs
  there = functools.partial(examples_in, "gs://bkt/tfds")
  before = server.asked("small-train.array_record-")
  made = loader.batches(there(), BATCH, range(BATCH), 0, loader.processes(there, 0, workers=2))
  same(take(loader.batches(examples_in(local), BATCH, range(BATCH)), steps), take(made, steps))
  asked = server.asked("small-train.array_record-") - before
  ahead = 4 * (8 * 32 * 5 // 4 + 6 * BATCH // 4)  # as above; a block that both workers read would be two requests
  assert 2 * sum(LENGTHS) / 32 < asked <= 0.05 * (steps * BATCH + ahead)


def test_resuming_in_the_middle_of_a_window_gives_the_same_batches(server, local):
  whole = training(opened(local), 30)
  for start in (3, 11, 26):
    same(whole[start:], training(opened("gs://bkt/tfds"), 30 - start, start=start))


def test_evaluation_reads_32_images_at_a_time(server, local):
  def evaluated(source):
    return list(loader.batches(stream.eval_examples(source, image_size=6), BATCH, range(BATCH)))

  source = opened("gs://bkt/tfds")
  before = server.asked("tfds/.*array_record-")
  same(evaluated(opened(local)), evaluated(source))
  assert server.asked("tfds/.*array_record-") - before <= 0.05 * sum(LENGTHS)


def test_bucket_is_read_by_our_file_system_and_denied_access_is_reported(server):
  fsspec.register_implementation("gs", "gcsfs.GCSFileSystem", clobber=True)  # as in a new process
  paths.prepare_buckets.cache_clear()
  opened("gs://bkt/tfds")
  assert fsspec.get_filesystem_class("gs") is buckets.FileSystem
  with (
    server.troubled(refused=True),
    pytest.raises(schema.ConfigError, match=r"bkt/tfds cannot be.*denied access"),
  ):
    opened("gs://bkt/tfds")


def test_unreadable_shard_is_named_and_stops_the_run(server, local, monkeypatch, tmp_path):
  monkeypatch.setattr(shards, "PAUSES", (0.01,))
  shutil.copytree(local / "small", tmp_path / "small")
  os.remove(tmp_path / "small/1.0.0/small-train.array_record-00003-of-00004")
  server.fill(tmp_path, "gap")
  with (
    pytest.raises(
      images.ImageError,
      match=r"small, split 'train', record \d+ \(file 'gs://bkt/gap/small/1.0.0/small-train.array_record-00003-of-00004'\):"
      r".*array_record-00003-of-00004, records \d+ to \d+: the file does not exist.*tried 2 times",
    ),
  ):
    training(opened("gs://bkt/gap"), 30)


def test_opening_reads_no_records_and_fingerprints_have_stamps(server):
  before = server.asked("tfds/.*array_record-")
  source = opened("gs://bkt/tfds")
  assert server.asked("tfds/.*array_record-") == before
  one = source.fingerprint()
  assert one == opened("gs://bkt/tfds").fingerprint()
  assert one.sizes and one.times

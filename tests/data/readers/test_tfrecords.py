"""Tests of TFDS datasets in TFRecord files: records written by TensorFlow, and damaged files."""

import json
import shutil

import pytest

from tests.data.readers.test_tfds import opened
from tests.image_files import image, names, numbers
from tests.streams import same, train
from vit_jax import schema
from vit_jax.data.readers import tfrecords


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """Returns the folder of a dataset written with TensorFlow's TFRecordWriter.

  `old` has 12 records for training in two files, and 5 records for tests.
  """
  import tensorflow as tf
  import tensorflow_datasets as tfds

  root = tmp_path_factory.mktemp("tfds")
  features = tfds.features.FeaturesDict(
    {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["round", "square"])}
  )
  folder = root / "old/2.0.0"
  folder.mkdir(parents=True)
  features.save_config(folder)
  info = {"name": "old", "version": "2.0.0", "fileFormat": "tfrecord", "splits": []}
  info["moduleName"] = "tensorflow_datasets.core.dataset_builders.adhoc_builder"
  for split, lengths in (("train", (7, 5)), ("test", (5,))):
    template = {"filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}", "numBytes": "1"}
    info["splits"].append(template | {"name": split, "shardLengths": [str(length) for length in lengths]})
    records = iter(range(sum(lengths)))
    for shard, length in enumerate(lengths):
      with tf.io.TFRecordWriter(str(folder / f"old-{split}.tfrecord-{shard:05d}-of-{len(lengths):05d}")) as writer:
        for _, i in zip(range(length), records, strict=False):
          writer.write(features.serialize_example({"image": image(i), "label": i % 2}))
  (folder / "dataset_info.json").write_text(json.dumps(info))
  return root


def test_records_match_the_written_records(data_dir):
  source = opened("tfds", "train", path=str(data_dir), builder="old")
  assert numbers(source) == [(image(i), i % 2) for i in range(12)] and source.classes == ("round", "square")
  assert names(source)[9] == "train/9"
  part = opened("tfds", "test", path=str(data_dir), builder="old", test="test[60%:]+train[1:2]")
  assert numbers(part) == [(image(3), 1), (image(4), 0), (image(1), 1)]
  whole = train(source, 4, 7)
  same(train(source, 4, 4, start=3), whole[3:])


def test_tensorflow_reads_the_same_bytes(data_dir):
  """Compares with a second implementation of the format."""
  import tensorflow as tf

  folder = data_dir / "old/2.0.0"
  files = sorted(folder.glob("*train*"))
  theirs = [record.numpy() for file in files for record in tf.data.TFRecordDataset(str(file))]
  assert tfrecords.open_records(folder, [str(file) for file in files], [7, 5]).read(0, 12) == theirs


@pytest.mark.parametrize("kind", ["cut off", "a length", "a record less"])
def test_damaged_file_is_named(data_dir, tmp_path, kind):
  shutil.copytree(data_dir / "old/2.0.0", tmp_path / "old/2.0.0")
  file, _ = sorted((tmp_path / "old/2.0.0").glob("*train*"))
  data = bytearray(file.read_bytes())
  size = int.from_bytes(data[:8], "little")
  if kind == "a length":
    data[6] = 7
  file.write_bytes({"cut off": data[:-20], "a length": data, "a record less": data[size + 16 :]}[kind])
  with pytest.raises(schema.ConfigError, match=r"truncated at byte|has 6 records, not the 7") as caught:
    opened("tfds", "train", path=str(tmp_path), builder="old")
  assert str(file) in caught.value.message


@pytest.mark.heavy
def test_adjacent_records_in_a_bucket_are_one_request(bucket, bucket_server, data_dir):
  for file in (data_dir / "old/2.0.0").iterdir():
    (bucket / "old/2.0.0" / file.name).write_bytes(file.read_bytes())
  there = opened("tfds", "train", path=str(bucket), builder="old")
  assert numbers(there) == [(image(i), i % 2) for i in range(12)] and there.remote
  asked = bucket_server.counts["GET"]
  assert [there.runs.parse(data) for data in there.runs.read(1, 7)] == [(image(i), i % 2) for i in range(1, 7)]
  assert bucket_server.counts["GET"] == asked + 1

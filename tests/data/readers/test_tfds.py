"""Tests of prepared TFDS datasets as sources: raw bytes by number, lists of labels, fingerprints and errors."""

import io
import os
import shutil

import pytest
from array_record.python import array_record_module

from tests.image_files import image, labels, names, numbers
from vit_jax import schema
from vit_jax.data import catalog
from vit_jax.data.dataset_row import DatasetRow
from vit_jax.data.readers import tfds


def opened(name, split, **args):
  """Opens the source of a data choice as a run does."""
  with schema.enter_key("config.data"):
    return catalog.open_split(schema.Choice(name, args), split)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """Returns the folder of two versions of a dataset with more features than image and label."""
  import tensorflow_datasets as tfds

  root = tmp_path_factory.mktemp("tfds")
  features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["round", "square"])}
  features |= {"mask": tfds.features.Image(), "file": tfds.features.Text()}
  for name, version, form in (
    ("shapes", "1.0.0", "array_record"),
    ("shapes", "1.10.0", "array_record"),
  ):
    tfds.dataset_builders.store_as_tfds_dataset(
      name=name,
      version=version,
      features=tfds.features.FeaturesDict(features),
      split_datasets={
        split: (
          (i, {"image": io.BytesIO(image(i)), "mask": io.BytesIO(image(i)), "label": i % 2, "file": str(i)})
          for i in range(count)
        )
        for split, count in (("train", 12), ("test", 5))
      },
      data_dir=root,
      file_format=form,
      disable_shuffling=True,
    )
  return root


@pytest.mark.parametrize("text", ["{", '{"name": 3}', "", '{"name": "shapes"}'])
def test_error_of_a_damaged_description_names_the_folder(data_dir, tmp_path, text):
  shutil.copytree(data_dir / "shapes" / "1.0.0", tmp_path / "shapes" / "1.0.0")
  (tmp_path / "shapes/1.0.0/dataset_info.json").write_text(text)
  with pytest.raises(schema.ConfigError, match=r"/shapes/1.0.0"):
    opened("tfds", "train", path=str(tmp_path), builder="shapes")


# tf.Example: int64 1, 2, 3, without an image
THREE_LABELS = b"\n\x12\n\x10\n\x05label\x12\x07\x1a\x05\n\x03\x01\x02\x03"


@pytest.mark.parametrize("record", [b"garbage", b"", THREE_LABELS], ids=["garbage", "nothing", "labels"])
def test_error_of_an_invalid_record_names_the_folder(data_dir, tmp_path, record):
  shutil.copytree(data_dir / "shapes" / "1.0.0", tmp_path / "shapes" / "1.0.0")
  (file,) = (tmp_path / "shapes/1.0.0").glob("*train.array_record*")
  writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
  for _ in range(12):
    writer.write(record)
  writer.close()
  source = opened("tfds", "train", path=str(tmp_path), builder="shapes")
  with pytest.raises(OSError, match=r"/shapes/1.0.0 is damaged"):
    source.read(3)


def test_error_of_a_damaged_file_names_the_folder(data_dir, tmp_path):
  shutil.copytree(data_dir / "shapes" / "1.0.0", tmp_path / "shapes" / "1.0.0")
  source = opened("tfds", "train", path=str(tmp_path), builder="shapes")
  (file,) = (tmp_path / "shapes/1.0.0").glob("*train.array_record*")
  data = bytearray(file.read_bytes())
  data[100:150] = bytes(50)
  file.write_bytes(data)
  with pytest.raises(OSError, match=r"/shapes/1.0.0 is damaged: .*Corrupted"):
    numbers(source)


@pytest.mark.parametrize("builder", ["shapes", "shapes:1.0.0"])
def test_tfds_dataset_gives_raw_bytes_by_number(data_dir, builder):
  train = opened("tfds", "train", path=str(data_dir), builder=builder)
  assert train.classes == ("round", "square")
  assert numbers(train) == [(image(i), i % 2) for i in range(12)]
  part = opened("tfds", "test", path=str(data_dir), builder=builder, test="test[60%:]+train[1:2]")
  assert numbers(part) == [(image(3), 1), (image(4), 0), (image(1), 1)]
  assert labels(part) == [1, 0, 1]
  assert part.place(2) == "shapes, split 'train', record 1"
  assert names(part) == ["test/3", "test/4", "train/1"]


def test_fingerprint_of_a_tfds_dataset_depends_on_its_files(data_dir, tmp_path):
  root = tmp_path / "shapes/1.0.0"
  shutil.copytree(data_dir / "shapes/1.0.0", root)

  def fingerprint(split="train", **args):
    return opened("tfds", split, path=str(tmp_path), builder="shapes", **args).fingerprint()

  seen = {fingerprint(), fingerprint("test")}
  assert len(seen) == 2
  assert fingerprint(train="train[:100%]") in seen
  file = sorted(root.iterdir())[-1]
  changes = (
    lambda: os.utime(file, ns=(0, file.stat().st_mtime_ns + 1)),
    lambda: (root / "notes.txt").write_text("x"),
    lambda: (root / "notes.txt").rename(root / "other.txt"),
    lambda: root.rename(root.with_name("1.1.0")),
  )
  for change in changes:
    change()
    found = fingerprint()
    assert found == fingerprint()
    assert found not in seen
    seen.add(found)


def test_builder_directory_needs_no_builder_name(data_dir):
  source = opened("tfds", "test", path=str(data_dir / "shapes" / "1.0.0"))
  assert (source.name, len(source)) == ("shapes", 5)


@pytest.mark.parametrize(
  ("name", "args", "message"),
  [
    ("tfds", {"builder": "shapes:3.0.0"}, "python -m vit_jax.prepare shapes:3.0.0"),
    ("tfds", {"builder": "missing"}, "python -m vit_jax.prepare missing"),
    ("cifar10", {}, "python -m vit_jax.prepare cifar10 --data_dir="),
    ("tfds", {"builder": "shapes", "test": "tests"}, "config.data.test: no split 'tests'. Did you mean 'test'"),
  ],
)
def test_error_of_an_unreadable_dataset_contains_the_fix(data_dir, name, args, message):
  with pytest.raises(schema.ConfigError) as caught:
    opened(name, "test", path=str(data_dir), **args)
  assert message in str(caught.value)


def test_error_of_an_unsupported_file_format_contains_the_fix(data_dir, tmp_path):
  shutil.copytree(data_dir / "shapes" / "1.0.0", tmp_path / "shapes" / "1.0.0")
  file = tmp_path / "shapes/1.0.0/dataset_info.json"
  file.write_text(file.read_text().replace('"array_record"', '"riegeli"'))
  with pytest.raises(
    schema.ConfigError, match=r"in riegeli format, not array_record or tfrecord. To fix it, remove it and prepare"
  ):
    opened("tfds", "test", path=str(tmp_path), builder="shapes")


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
  """Returns the folder of a dataset with lists of labels, and with a list of texts."""
  import tensorflow_datasets as tfds

  root = tmp_path_factory.mktemp("lists")
  features = {
    "image": tfds.features.Image(),
    "classes": tfds.features.Sequence(tfds.features.ClassLabel(num_classes=7)),
  }
  features |= {"words": tfds.features.Sequence(tfds.features.Text())}
  tfds.dataset_builders.store_as_tfds_dataset(
    name="lists",
    version="1.0.0",
    features=tfds.features.FeaturesDict(features),
    split_datasets={
      "full": [(i, {"image": io.BytesIO(image(i)), "classes": [6, 2, 4][:i], "words": ["x"] * i}) for i in range(4)]
    },
    data_dir=root,
    file_format="array_record",
    disable_shuffling=True,
  )
  return root / "lists/1.0.0"


def test_list_of_labels_is_a_tuple_of_numbers(lists):
  source = opened("tfds", "full[1:]", path=str(lists), labels=3)
  assert labels(source) == [label for _, label in numbers(source)] == [(6,), (6, 2), (6, 2, 4)]
  assert (source.labels, source.classes) == (3, tuple("0123456"))


def test_dataset_without_a_public_builder_uses_the_numbers_of_the_copy(lists):
  choice = schema.Choice("jft300m", {"path": str(lists), "train": "full[:75%]", "test": "full[75%:]"})
  for split, length in (("train", 3), ("test", 1), ("full", 4)):
    for source in (catalog.open_split(choice, split), catalog.open_known_split(choice, split)):
      assert (len(source), len(source.classes), source.labels) == (length, 7, 8)
  with pytest.raises(schema.ConfigError, match=r"config\.data\.train: no split 'train'.*Allowed: full"):
    opened("jft300m", "train", path=str(lists))


@pytest.mark.heavy
def test_unreachable_bucket_is_absent_data(monkeypatch, bucket, bucket_server):
  monkeypatch.setenv("VITJAX_PATIENCE", "0.5")
  data = schema.Choice("jft300m", {"path": str(bucket / "jft/1.0.0")})
  with bucket_server.troubled(away=True):
    assert len(catalog.open_known_split(data, "test")) == 50_000
    with pytest.raises(schema.ConfigError, match=f"path: {bucket}/jft/1.0.0 cannot be reached: .* has not responded"):
      catalog.open_split(data, "train")


def test_builder_directory_of_another_dataset_is_an_error(data_dir):
  with pytest.raises(schema.ConfigError, match=r"contains the dataset 'shapes', not 'cifar10:3\.0\.2'"):
    opened("cifar10", "train", path=str(data_dir / "shapes" / "1.0.0"))


def test_only_data_of_the_catalog_are_public(data_dir):
  row = DatasetRow(tfds.open_catalogued, "shapes:1.0.0", {"train": 12, "test": 5}, 2)
  source = tfds.open_catalogued("shapes", row, "train", path=str(data_dir))
  assert all(source.is_published(i) for i in range(12))
  assert not opened("tfds", "train", path=str(data_dir), builder="shapes").is_published(0)


def test_sizes_that_differ_from_the_catalog_are_an_error(data_dir):
  row = DatasetRow(tfds.open_catalogued, "shapes:1.0.0", {"train": 12, "test": 6}, 2)
  with pytest.raises(schema.ConfigError, match="5 records in 'test', not 6"):
    tfds.open_catalogued("shapes", row, "train", path=str(data_dir))


def test_missing_split_of_the_catalog_is_an_error(data_dir):
  row = DatasetRow(tfds.open_catalogued, "shapes:1.0.0", {"train": 12, "test": 5, "extra": 7}, 2)
  with pytest.raises(schema.ConfigError, match="0 records in 'extra', not 7"):
    tfds.open_catalogued("shapes", row, "train", path=str(data_dir))

"""Sources of labelled image files: split strings, image folders, TFDS datasets."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from vit_jax import config
from vit_jax.data import catalog, sources

SIZES = {"train": 1437, "test": 360, "odd": 1}


def image(seed=0):
  file = io.BytesIO()
  Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)).save(file, "PNG")
  return file.getvalue()


def write(root, *files):
  for i, name in enumerate(files):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(image(i))
  return str(root)


def folder(path, split="train", **args):
  return catalog.open_source("folder", split, path=str(path), **args)


def numbers(source):
  return [source.read(i) for i in range(len(source))]


# Split strings.


@pytest.mark.parametrize(
  "spec",
  [
    *(
      "train",
      "train[:99%]",
      "train[99%:]",
      "test[10:20]",
      "train[-100:]",
      "train[:-5]",
      "train[5%:10%]",
      "test[:0.5%]",
    ),
    *("train[-10%:]", "train+test", "train[:1%]+test[50%:]+train[7:9]", "all", "odd[:50%]+test", "train[1_000:]"),
  ],
)
def test_split_strings_mean_what_they_mean_in_tfds(spec):
  import tensorflow_datasets as tfds

  infos = {
    name: tfds.core.SplitInfo(name=name, shard_lengths=[count], num_bytes=0, filename_template=None)
    for name, count in SIZES.items()
  }
  expected = []
  for part in tfds.core.splits.AbstractSplit.from_spec(spec).to_absolute(infos):
    size = SIZES[part.splitname]
    expected.append((part.splitname, range(part.from_ or 0, size if part.to is None else part.to)))
  assert sources.select(spec, SIZES, "here") == expected


@pytest.mark.parametrize("share", range(0, 101, 7))
def test_percentages_partition_a_split(share):
  if share in (0, 100):
    return
  (_, left), (_, right) = sources.select(f"train[:{share}%]+train[{share}%:]", SIZES, "here")
  assert [*left, *right] == [*range(1437)]


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ("tset", "no split 'tset'. Did you mean 'test'"),
    ("train[:99", "is not a split"),
    ("train[5]", "is not a split"),
    ("train[:1shard]", "is not a split"),
    ("train[1.5:]", "no number"),
    ("train[--5:]", "is not a split"),
    ("train[:2000]", "which has 1437 records"),
    ("train[:101%]", "which has 1437 records"),
    ("train[10:20%]", "mixes records and percent"),
    ("train[20:10]", "holds no record"),
    ("train[:0%]", "holds no record"),
    ("", "is not a split"),
    ("train++test", "is not a split"),
  ],
)
def test_a_wrong_split_string_is_one_clear_error(spec, message):
  with pytest.raises(config.ConfigError) as caught:
    sources.select(spec, SIZES, "config.data.train")
  assert message in str(caught.value)
  assert str(caught.value).startswith("config.data.train: ")


# Image folders.


def test_split_folders_are_read_in_order_of_name(tmp_path):
  path = write(tmp_path, "train/b/2.png", "train/b/10.JPG", "train/a/x.jpeg", "test/a/1.png", "test/b/1.png")
  train, test = folder(path), folder(path, "test")
  assert train.classes == test.classes == ("a", "b")
  assert numbers(train) == [(image(2), 0), (image(1), 1), (image(0), 1)]
  assert len(test) == 2
  assert train.place(1) == f"folder, split 'train', record 1 (file '{tmp_path}/train/b/10.JPG')"


def test_other_split_names_and_slices(tmp_path):
  path = write(
    tmp_path, *(f"{split}/{label}/{i}.png" for split in ("train", "val") for label in "ab" for i in range(5))
  )
  assert len(folder(path, "test", test="val")) == 10
  part = folder(path, train="train[3:6]+val[:20%]", test="val")
  assert [label for _, label in numbers(part)] == [0, 0, 1, 0, 0]
  assert part.place(2) == f"folder, split 'train', record 5 (file '{tmp_path}/train/b/0.png')"
  assert part.place(3) == f"folder, split 'val', record 0 (file '{tmp_path}/val/a/0.png')"
  assert len(folder(path, "val[50%:]", test="val")) == 5
  with pytest.raises(config.ConfigError, match=r"config.data.test: no split 'test'.*Allowed: train, val"):
    folder(path, "test")


def test_class_folders_are_split_by_seed_whatever_the_file_system_says(tmp_path, monkeypatch):
  path = write(tmp_path, *(f"{label}/{i}.png" for label in ("cat", "dog") for i in range(10)))
  train, test = folder(path), folder(path, "test")
  assert (len(train), len(test)) == (16, 4)
  files = {data for data, _ in numbers(train)} | {data for data, _ in numbers(test)}
  assert len(files) == 20
  assert sorted(label for _, label in numbers(test)) == [0, 0, 1, 1]
  scandir = os.scandir

  class Backwards:
    def __init__(self, path):
      self.entries = sorted(scandir(path), key=lambda e: e.name, reverse=True)

    def __enter__(self):
      return iter(self.entries)

    def __exit__(self, *_):
      pass

  monkeypatch.setattr(os, "scandir", Backwards)
  assert numbers(folder(path, "test")) == numbers(test)
  assert numbers(folder(path, "test", split_seed=1)) != numbers(test)
  assert len(folder(path, "test", holdout=0.5)) == 10


def test_the_same_images_are_held_out_when_a_class_is_added(tmp_path):
  path = write(tmp_path, *(f"dog/{i}.png" for i in range(10)))
  before = [data for data, _ in numbers(folder(path, "test"))]
  (tmp_path / "cat").mkdir()
  (tmp_path / "cat/0.png").write_bytes(image(99))
  assert [data for data, label in numbers(folder(path, "test")) if label == 1] == before


def test_strange_names_links_and_other_files(tmp_path):
  names = ["train/a b/ü ñ.png", "train/a b/new\nline.png", "train/ç/1.JPEG", "train/ç/[x]*?.png", "train/ç/.hidden.png"]
  write(tmp_path / "real", *names, "train/ç/notes.txt", "train/.git/x.png", "elsewhere/1.png")
  (tmp_path / "real/train/ç/link.png").symlink_to(tmp_path / "real/elsewhere/1.png")
  (tmp_path / "link").mkdir()
  (tmp_path / "link/train").symlink_to(tmp_path / "real/train")
  source = folder(tmp_path / "link", test="train")
  assert source.classes == ("a b", "ç")
  assert [label for _, label in numbers(source)] == [0, 0, 1, 1, 1]
  assert "new\\nline.png" in source.place(0)


@pytest.mark.parametrize(
  ("files", "message"),
  [
    ((), "no images"),
    (("readme.txt",), "no images"),
    (("train/a/1.png", "train/b/1.png", "test/a/1.png"), r"differ in classes \['b'\]"),
    (("train/a/1.png", "train/b/1.txt", "test/a/1.png", "test/b/1.png"), "train/b' holds no image"),
    (("a/1.png", "b/1.txt"), "b' holds no image"),
    (("a/1.png", "b/c/1.png"), "mixes layouts"),
    (("1.png", "2.png"), "no images"),
    (("a/1.png", "b/1.png"), "holds no record"),
  ],
)
def test_a_folder_of_another_shape_is_one_clear_error(tmp_path, files, message):
  write(tmp_path, *files)
  with pytest.raises(config.ConfigError, match=message) as caught:
    folder(tmp_path, "test")
  assert "config.data" in str(caught.value)


def test_a_missing_folder_is_an_error(tmp_path):
  with pytest.raises(config.ConfigError, match=r"config\.data\.path: no folder"):
    folder(tmp_path / "nowhere")


# TFDS.


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
  """Two datasets with more features than image and label: `shapes` as array_record, `old` as tfrecord."""
  import tensorflow_datasets as tfds

  root = tmp_path_factory.mktemp("tfds")
  features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=["round", "square"])}
  features |= {"mask": tfds.features.Image(), "file": tfds.features.Text()}
  for name, version, form in (
    ("shapes", "1.0.0", "array_record"),
    ("shapes", "1.10.0", "array_record"),
    ("old", "2.0.0", "tfrecord"),
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


@pytest.mark.parametrize("builder", ["shapes", "shapes:1.0.0"])
def test_a_tfds_dataset_gives_raw_bytes_by_number(data_dir, builder):
  train = catalog.open_source("tfds", "train", path=str(data_dir), builder=builder)
  assert train.classes == ("round", "square")
  assert numbers(train) == [(image(i), i % 2) for i in range(12)]
  part = catalog.open_source("tfds", "test", path=str(data_dir), builder=builder, test="test[60%:]+train[1:2]")
  assert numbers(part) == [(image(3), 1), (image(4), 0), (image(1), 1)]
  assert part.place(2) == "shapes, split 'train', record 1"


def test_a_builder_directory_needs_no_name(data_dir):
  source = catalog.open_source("tfds", "test", path=str(data_dir / "shapes" / "1.0.0"))
  assert (source.name, len(source)) == ("shapes", 5)


@pytest.mark.parametrize(
  ("name", "args", "message"),
  [
    ("tfds", {"builder": "shapes:3.0.0"}, "python -m vit_jax.prepare shapes:3.0.0"),
    ("tfds", {"builder": "missing"}, "python -m vit_jax.prepare missing"),
    ("cifar10", {}, "python -m vit_jax.prepare cifar10 --data_dir="),
    ("tfds", {"builder": "old"}, "in tfrecord format, not array_record; remove it and prepare it with"),
    ("tfds", {"builder": "shapes", "test": "tests"}, "config.data.test: no split 'tests'. Did you mean 'test'"),
  ],
)
def test_a_dataset_that_cannot_be_read_says_what_to_do(data_dir, name, args, message):
  with pytest.raises(config.ConfigError) as caught:
    catalog.open_source(name, "test", path=str(data_dir), **args)
  assert message in str(caught.value)


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
  """A dataset whose images have lists of labels, beside a list of something else."""
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


def test_a_list_of_labels_is_a_tuple_of_numbers(lists):
  source = catalog.open_source("tfds", "full[1:]", path=str(lists), labels=3)
  assert [label for _, label in numbers(source)] == [(6,), (6, 2), (6, 2, 4)]
  assert (source.labels, source.classes) == (3, tuple("0123456"))


def test_of_a_set_without_public_builder_the_users_own_numbers_count(lists):
  own = config.Choice("jft300m", {"path": str(lists), "train": "full[:75%]", "test": "full[75%:]"})
  bound = catalog.bind(own)
  for choice, split, length in ((bound, "train", 3), (bound, "test", 1), (bound, "full", 4)):
    for opened in (catalog.open_split(choice, split), catalog.known_split(choice, split)):
      assert (len(opened), len(opened.classes), opened.labels) == (length, 7, 8)
  with pytest.raises(config.ConfigError, match=r"config\.data\.train: no split 'train'.*Allowed: full"):
    catalog.known_split(catalog.bind(config.Choice("jft300m", {"path": str(lists)})), "train")


def test_a_bucket_that_cannot_be_reached_is_absent_data(monkeypatch):
  import tensorflow as tf

  def unreachable(*arguments):
    raise tf.errors.FailedPreconditionError(None, None, "Could not resolve host\nwhen reading metadata")

  monkeypatch.setattr(sources, "_builder_dir", unreachable)
  data = catalog.bind(config.Choice("jft300m", {"path": "gs://bucket/jft/1.0.0"}))
  assert len(catalog.known_split(data, "test")) == 50_000
  with pytest.raises(config.ConfigError, match=r"path: gs://bucket/jft/1\.0\.0 cannot be reached: Could not resolve"):
    catalog.open_split(data, "train")


def test_a_builder_directory_of_another_dataset_is_an_error(data_dir):
  with pytest.raises(config.ConfigError, match=r"holds the dataset 'shapes', not 'cifar10:3\.0\.2'"):
    catalog.open_source("cifar10", "train", path=str(data_dir / "shapes" / "1.0.0"))


def test_sizes_that_differ_from_the_catalog_are_an_error(data_dir, monkeypatch):
  monkeypatch.setitem(catalog.CATALOG, "shapes", catalog.Row("tfds", "shapes:1.0.0", {"train": 12, "test": 6}, 2))
  with pytest.raises(config.ConfigError, match="5 records in 'test', not 6"):
    catalog.open_source("shapes", "train", path=str(data_dir))

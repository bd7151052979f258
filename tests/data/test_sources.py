"""Sources of labelled image files: split strings, subsets, TFDS datasets."""

import dataclasses
import io
import os
import shutil
import types

import numpy as np
import pytest

from tests.image_files import image, labels, names, numbers
from vit_jax import schema
from vit_jax.data import catalog, sources
from vit_jax.data.readers import tfds

SIZES = {"train": 1437, "test": 360, "odd": 1}


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


@pytest.mark.parametrize(
  ("specs", "expected"),
  [
    (["train"], {"train"}),
    (["train[:99%] + test", "dev[5:]"], {"train", "test", "dev"}),
    (["all"], {"all"}),
    (["train[:99", "test"], {"test"}),
    ([], set()),
  ],
)
def test_split_strings_name_splits(specs, expected):
  assert sources.split_names(specs) == expected


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
  with pytest.raises(schema.ConfigError) as caught:
    sources.select(spec, SIZES, "config.data.train")
  assert message in str(caught.value)
  assert str(caught.value).startswith("config.data.train: ")


# Labels and subsets.


LABELS = [4, 1, (), (2, 3), 0, 1]


def made(read_label=None):
  """Six records; a label is read with its image unless `read_label` says otherwise."""
  return sources.Source(
    "made",
    "train",
    tuple("abcde"),
    len(LABELS),
    lambda i: (bytes([i]), LABELS[i]),
    lambda i: f"made, record {i}",
    labels=2,
    identify=lambda i: f"file {i}",
    fingerprint=lambda: "print",
    read_label=read_label,
  )


def test_a_label_is_the_one_that_is_read_with_the_image():
  assert labels(made()) == LABELS


def unreadable(i):
  raise AssertionError(f"record {i} is read")


def test_a_label_that_costs_less_is_asked_for_without_reading():
  source = dataclasses.replace(made(LABELS.__getitem__), read=unreadable)
  assert labels(source) == LABELS
  assert labels(sources.subset(source, [3, 0])) == [(2, 3), 4]


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4, 5], [3, 0, 5], [5, 4, 4, 2], [1]], ids=str)
@pytest.mark.parametrize("read_label", [None, LABELS.__getitem__], ids=["read", "asked"])
def test_a_subset_has_the_given_records_in_the_given_order(kind, chosen, read_label):
  part = sources.subset(made(read_label), kind(chosen))
  assert len(part) == len(chosen)
  assert numbers(part) == [(bytes([i]), LABELS[i]) for i in chosen]
  assert labels(part) == [LABELS[i] for i in chosen]
  assert names(part) == [f"file {i}" for i in chosen]
  assert [part.place(i) for i in range(len(part))] == [f"made, record {i}" for i in chosen]
  assert (part.name, part.split, part.classes, part.labels) == ("made", "train", tuple("abcde"), 2)


def test_a_subset_of_a_subset_counts_in_the_first():
  part = sources.subset(sources.subset(made(), [5, 3, 1]), [2, 0])
  assert names(part) == ["file 1", "file 5"]
  assert numbers(part) == [(b"\1", 1), (b"\5", 1)]
  assert labels(part) == [1, 1]


def test_a_subset_has_no_record_past_its_end():
  part = sources.subset(made(), [5, 3])
  for ask in (part.read, part.label, part.place, part.identify):
    with pytest.raises(IndexError):
      ask(2)


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
  assert labels(part) == [1, 0, 1]
  assert part.place(2) == "shapes, split 'train', record 1"
  assert names(part) == ["test/3", "test/4", "train/1"]


def test_the_fingerprint_of_a_tfds_dataset_follows_its_files(data_dir, tmp_path):
  root = tmp_path / "shapes/1.0.0"
  shutil.copytree(data_dir / "shapes/1.0.0", root)

  def fingerprint(split="train", **args):
    return catalog.open_source("tfds", split, path=str(tmp_path), builder="shapes", **args).fingerprint()

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


def test_of_a_bucket_names_sizes_and_seconds_are_known():
  class Bucket:
    def iterdir(self):
      for name, length in (("b", 1), ("a", 2)):
        found = types.SimpleNamespace(length=length, mtime=10 * length)
        yield types.SimpleNamespace(name=name, stat=lambda found=found: found)

    def __str__(self):
      return "gs://bucket/shapes/1.0.0"

  assert [*tfds._stamps(Bucket())] == [("a", 2, 20), ("b", 1, 10)]


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
  with pytest.raises(schema.ConfigError) as caught:
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
  assert labels(source) == [label for _, label in numbers(source)] == [(6,), (6, 2), (6, 2, 4)]
  assert (source.labels, source.classes) == (3, tuple("0123456"))


def test_of_a_set_without_public_builder_the_users_own_numbers_count(lists):
  own = schema.Choice("jft300m", {"path": str(lists), "train": "full[:75%]", "test": "full[75%:]"})
  bound = catalog.bind(own)
  for choice, split, length in ((bound, "train", 3), (bound, "test", 1), (bound, "full", 4)):
    for opened in (catalog.open_split(choice, split), catalog.known_split(choice, split)):
      assert (len(opened), len(opened.classes), opened.labels) == (length, 7, 8)
  with pytest.raises(schema.ConfigError, match=r"config\.data\.train: no split 'train'.*Allowed: full"):
    catalog.known_split(catalog.bind(schema.Choice("jft300m", {"path": str(lists)})), "train")


def test_a_bucket_that_cannot_be_reached_is_absent_data(monkeypatch):
  import tensorflow as tf

  def unreachable(*arguments):
    raise tf.errors.FailedPreconditionError(None, None, "Could not resolve host\nwhen reading metadata")

  monkeypatch.setattr(tfds, "_builder_dir", unreachable)
  data = catalog.bind(schema.Choice("jft300m", {"path": "gs://bucket/jft/1.0.0"}))
  assert len(catalog.known_split(data, "test")) == 50_000
  with pytest.raises(schema.ConfigError, match=r"path: gs://bucket/jft/1\.0\.0 cannot be reached: Could not resolve"):
    catalog.open_split(data, "train")


def test_a_builder_directory_of_another_dataset_is_an_error(data_dir):
  with pytest.raises(schema.ConfigError, match=r"holds the dataset 'shapes', not 'cifar10:3\.0\.2'"):
    catalog.open_source("cifar10", "train", path=str(data_dir / "shapes" / "1.0.0"))


def test_sizes_that_differ_from_the_catalog_are_an_error(data_dir, monkeypatch):
  monkeypatch.setitem(catalog.CATALOG, "shapes", catalog.Row("tfds", "shapes:1.0.0", {"train": 12, "test": 6}, 2))
  with pytest.raises(schema.ConfigError, match="5 records in 'test', not 6"):
    catalog.open_source("shapes", "train", path=str(data_dir))


def test_two_sources_share_records_or_not():
  def made(*parts):
    return sources.assemble("a", "b", ("c",), parts, None, None, None, str)

  first = made(("train", range(10)), ("test", range(5)))
  for other, expected in (
    (made(("train", range(9, 12))), True),
    (made(("train", range(10, 12))), False),
    (made(("test", range(2))), True),
    (made(("other", range(100))), False),
    (made(("train", range(10, 10)), ("test", range(4, 6))), True),
  ):
    assert sources.share(first, other) is expected
    assert sources.share(other, first) is expected

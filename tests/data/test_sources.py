"""Tests of sources of labelled image files: split strings, subsets, and shared records."""

import dataclasses

import numpy as np
import pytest

from tests.image_files import labels, names, numbers
from vit_jax import schema
from vit_jax.data import sources

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
def test_split_strings_match_tfds(spec):
  import tensorflow_datasets as tfds

  infos = {
    name: tfds.core.SplitInfo(name=name, shard_lengths=[count], num_bytes=0, filename_template=None)
    for name, count in SIZES.items()
  }
  expected = []
  for part in tfds.core.splits.AbstractSplit.from_spec(spec).to_absolute(infos):
    size = SIZES[part.splitname]
    expected.append((part.splitname, range(part.from_ or 0, size if part.to is None else part.to)))
  assert sources.select_parts(spec, SIZES) == expected


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
def test_names_of_splits_are_parsed_from_split_strings(specs, expected):
  assert sources.parse_split_names(specs) == expected


@pytest.mark.parametrize("share", range(0, 101, 7))
def test_percentages_partition_a_split(share):
  if share in (0, 100):
    return
  (_, left), (_, right) = sources.select_parts(f"train[:{share}%]+train[{share}%:]", SIZES)
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
    ("train[:2000]", "which has 1,437 records"),
    ("train[:101%]", "which has 1,437 records"),
    ("train[10:20%]", "mixes records and percent"),
    ("train[20:10]", "contains no record"),
    ("train[:0%]", "contains no record"),
    ("", "is not a split"),
    ("train++test", "is not a split"),
  ],
)
def test_invalid_split_string_is_one_error(spec, message):
  with pytest.raises(sources.SplitError) as caught, schema.enter_key("config.data.train"):
    sources.select_parts(spec, SIZES)
  assert message in caught.value.message
  assert caught.value.place == "config.data.train"


def test_error_is_at_the_key_of_the_split_or_at_the_data():
  with pytest.raises(sources.SplitError) as caught, schema.enter_key("config.data"):
    sources.Splits("dev", None, "test").select("train", SIZES)
  assert caught.value.place == "config.data.train"
  with pytest.raises(sources.SplitError) as caught, schema.enter_key("config.data"):
    sources.Splits("train", None, "test").select("dev", SIZES)
  assert caught.value.place == "config.data"


# Labels and subsets.


LABELS = [4, 1, (), (2, 3), 0, 1]


def made(read_label=None):
  """Returns six records. A label is read with its image unless `read_label` is given."""
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


def test_label_is_read_with_the_image():
  assert labels(made()) == LABELS


def unreadable(i):
  raise AssertionError(f"record {i} is read")


def test_cheap_label_is_read_without_the_image():
  source = dataclasses.replace(made(LABELS.__getitem__), read=unreadable)
  assert labels(source) == LABELS
  assert labels(sources.select_subset(source, [3, 0])) == [(2, 3), 4]


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
@pytest.mark.parametrize("chosen", [[0, 1, 2, 3, 4, 5], [3, 0, 5], [5, 4, 4, 2], [1]], ids=str)
@pytest.mark.parametrize("read_label", [None, LABELS.__getitem__], ids=["read", "asked"])
def test_subset_has_the_given_records_in_the_given_order(kind, chosen, read_label):
  part = sources.select_subset(made(read_label), kind(chosen))
  assert len(part) == len(chosen)
  assert numbers(part) == [(bytes([i]), LABELS[i]) for i in chosen]
  assert labels(part) == [LABELS[i] for i in chosen]
  assert names(part) == [f"file {i}" for i in chosen]
  assert [part.place(i) for i in range(len(part))] == [f"made, record {i}" for i in chosen]
  assert (part.name, part.split, part.classes, part.labels) == ("made", "train", tuple("abcde"), 2)


def test_indices_of_a_nested_subset_refer_to_the_outer_subset():
  part = sources.select_subset(sources.select_subset(made(), [5, 3, 1]), [2, 0])
  assert names(part) == ["file 1", "file 5"]
  assert numbers(part) == [(b"\1", 1), (b"\5", 1)]
  assert labels(part) == [1, 1]


def test_subset_has_no_record_past_its_end():
  part = sources.select_subset(made(), [5, 3])
  for ask in (part.read, part.label, part.place, part.identify):
    with pytest.raises(IndexError):
      ask(2)


def test_shared_records_of_two_sources_are_detected():
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
    assert sources.share_records(first, other) is expected
    assert sources.share_records(other, first) is expected

"""What a record that TFDS stored says: an image file and a label, by the dataset's features and a row's rule."""

import functools
import os
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf import message

from vit_jax.data.rows import Row, Rule
from vit_jax.schema import ConfigError, amount

Label = int | tuple[int, ...]
_NAMES = ("id", "file_name", "filename", "image/filename")  # features with the name of the image file, in TFDS's sets


class Records(NamedTuple):
  """How the records of a dataset are understood."""

  classes: tuple[str, ...]
  listed: bool  # whether a label is a tuple
  parse: Callable[[bytes], tuple[bytes, Label]]  # a record to image file and label; OSError for anything else
  label: Callable[[bytes], Label] | None  # a record to its label, where that is less work
  name: Callable[[bytes], str] | None  # a record to the name of its image file, where that is stored
  mask: Callable[[bytes], bytes] | None  # a record to the file of its mask, where it has one


def understood(row: Row, features) -> Records:
  """The records of a dataset with these TFDS features; ConfigError where an image or a label is not among them."""
  import tensorflow_datasets as tfds
  from tensorflow_datasets.proto import tf_example_pb2

  image, listed = _key(features, tfds.features.Image), False
  if isinstance(row.label, Rule):
    names, read = row.label.names, functools.partial(_derived, row.label, image)
    if missing := {feature.split("/")[0] for feature in row.label.features} - set(features):
      raise ConfigError(f"the label follows from {sorted(missing)}, which the dataset does not have")
  else:
    key = row.label or _key(features, tfds.features.ClassLabel)
    if key not in features:
      raise ConfigError(f"the label is {key!r}, which the dataset does not have; it has {sorted(features)}")
    listed = isinstance(features[key], tfds.features.Sequence)
    names = (features[key].feature if listed else features[key]).names
    read = functools.partial(_stored, key, listed, image)

  if row.segments and row.segments.feature not in features:
    raise ConfigError(
      f"the mask is {row.segments.feature!r}, which the dataset does not have; it has {sorted(features)}"
    )

  def values_of(data):
    # As TFDS has them in protobuf, without its own parser, which takes 200 us where this takes 40.
    try:
      return tf_example_pb2.Example.FromString(data).features.feature
    except message.Error as error:
      raise OSError(f"damaged: {str(error).splitlines()[0]}") from error

  def parse(data):
    return read(values_of(data))

  def mask_of(data):
    encoded = values_of(data)[row.segments.feature].bytes_list.value
    if len(encoded) != 1:
      raise OSError(f"damaged: a record with {amount(len(encoded), 'mask')}")
    return encoded[0]

  def changed(data):
    encoded, label = parse(data)
    return row.image(encoded), label

  texts = [key for key in _NAMES if key in features and isinstance(features[key], tfds.features.Text)]
  name = functools.partial(_name, texts[0]) if texts else None
  mask = mask_of if row.segments else None
  if row.image is None:
    return Records(tuple(names), listed, parse, None, name, mask)
  return Records(tuple(names), listed, changed, lambda data: parse(data)[1], name, mask)


def _name(key, data):
  """The name of an image file that is stored in a record; names of files need not be UTF-8."""
  from tensorflow_datasets.proto import tf_example_pb2

  return os.fsdecode(tf_example_pb2.Example.FromString(data).features.feature[key].bytes_list.value[0])


def _stored(key, listed, image, values):
  """(image file, label) of a record's features, of which one is the label."""
  encoded, numbers = values[image].bytes_list.value, tuple(values[key].int64_list.value)
  if len(encoded) != 1 or (len(numbers) != 1 and not listed):
    raise OSError(f"damaged: a record with {amount(len(encoded), 'image')} and {amount(len(numbers), 'label')}")
  return encoded[0], numbers if listed else numbers[0]


def _derived(rule, image, values):
  """The same where the label follows from some features."""
  encoded = values[image].bytes_list.value
  try:
    label = rule.label(*(_numbers(values[feature]) for feature in rule.features))
  except (ValueError, IndexError) as error:
    raise OSError(f"damaged: no label follows from {rule.features}: {error}") from error
  if len(encoded) != 1:
    raise OSError(f"damaged: a record with {amount(len(encoded), 'image')}")
  return encoded[0], label


def _numbers(feature):
  """All numbers of a feature of tf.train.Example, whatever their type."""
  kind = feature.WhichOneof("kind")
  return list(getattr(feature, kind).value) if kind else []


def _key(features, kind):
  """The feature of a kind, or for labels the list of that kind; "image" and "label" before others."""

  def fits(feature):
    return isinstance(feature, kind) or (preferred == "label" and isinstance(getattr(feature, "feature", None), kind))

  preferred = {"Image": "image", "ClassLabel": "label"}[kind.__name__]
  keys = [key for key, feature in features.items() if fits(feature)]
  if preferred not in keys and len(keys) != 1:
    raise ConfigError(f"the dataset needs one {kind.__name__} feature; it has {keys or 'none'}")
  return preferred if preferred in keys else keys[0]

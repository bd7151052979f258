"""Conversion of TFDS records to image files and labels.

The dataset's features and its catalog row specify the fields.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf import message

from vit_jax.data.dataset_row import DatasetRow, Label, LabelRule
from vit_jax.schema import ConfigError, format_amount

_NAMES = ("id", "file_name", "filename", "image/filename")  # features of TFDS datasets with the name of the image file


class RecordParser(NamedTuple):
  """Functions that parse the records of a dataset.

  Attributes:
    classes: names of the classes.
    listed: whether labels are tuples.
    parse: function from a record to (image file, label). It raises OSError for damaged records.
    label: function from a record to its label, if it is cheaper than `parse`.
    name: function from a record to the name of its image file, if records contain it.
    mask: function from a record to the file of its segmentation mask, if records contain one.
  """

  classes: tuple[str, ...]
  listed: bool
  parse: Callable[[bytes], tuple[bytes, Label]]
  label: Callable[[bytes], Label] | None
  name: Callable[[bytes], str] | None
  mask: Callable[[bytes], bytes] | None


def create_parser(row: DatasetRow, features: Any) -> RecordParser:
  """Returns the functions that parse the records of a dataset.

  Args:
    row: row of the catalog, which specifies the features of label and mask, and changes of the image.
    features: TFDS features of the dataset.

  Raises:
    ConfigError: if the features do not contain the image, the label or the mask.
  """
  import tensorflow_datasets as tfds
  from tensorflow_datasets.proto import tf_example_pb2

  image, listed = _find_feature(features, tfds.features.Image), False
  if isinstance(row.label, LabelRule):
    names, read = row.label.names, functools.partial(_derive_label, row.label, image)
    if missing := {feature.split("/")[0] for feature in row.label.features} - set(features):
      raise ConfigError(f"the label is computed from the features {sorted(missing)}, which the dataset does not have")
  else:
    key = row.label or _find_feature(features, tfds.features.ClassLabel)
    if key not in features:
      raise ConfigError(f"the dataset does not have the label feature {key!r}. Its features are {sorted(features)}")
    listed = isinstance(features[key], tfds.features.Sequence)
    names = (features[key].feature if listed else features[key]).names
    read = functools.partial(_read_stored, key, listed, image)

  if row.segments and row.segments.feature not in features:
    raise ConfigError(
      f"the dataset does not have the mask feature {row.segments.feature!r}. Its features are {sorted(features)}"
    )

  def parse_features(data: bytes) -> Any:
    # Parsed with TFDS's protobuf type (40 us) instead of TFDS's own parser (200 us).
    try:
      return tf_example_pb2.Example.FromString(data).features.feature
    except message.Error as error:
      raise OSError(f"damaged: {str(error).splitlines()[0]}") from error

  def parse(data: bytes) -> tuple[bytes, Label]:
    return read(parse_features(data))

  def read_mask(feature: str, data: bytes) -> bytes:
    encoded = parse_features(data)[feature].bytes_list.value
    if len(encoded) != 1:
      raise OSError(f"damaged: a record with {format_amount(len(encoded), 'mask')}")
    return encoded[0]

  def parse_converted(convert: Callable[[bytes], bytes], data: bytes) -> tuple[bytes, Label]:
    encoded, label = parse(data)
    return convert(encoded), label

  texts = [key for key in _NAMES if key in features and isinstance(features[key], tfds.features.Text)]
  name = functools.partial(_read_name, texts[0]) if texts else None
  mask = functools.partial(read_mask, row.segments.feature) if row.segments else None
  if row.image is None:
    return RecordParser(tuple(names), listed, parse, None, name, mask)
  return RecordParser(
    tuple(names), listed, functools.partial(parse_converted, row.image), lambda data: parse(data)[1], name, mask
  )


def _read_name(key: str, data: bytes) -> str:
  """Returns the name of the image file that a record contains. Names of files need not be UTF-8."""
  from tensorflow_datasets.proto import tf_example_pb2

  return os.fsdecode(tf_example_pb2.Example.FromString(data).features.feature[key].bytes_list.value[0])


def _read_stored(key: str, listed: bool, image: str, values: Any) -> tuple[bytes, Label]:
  """Returns (image file, label) of the features of a record with a label feature."""
  encoded, numbers = values[image].bytes_list.value, tuple(values[key].int64_list.value)
  if len(encoded) != 1 or (len(numbers) != 1 and not listed):
    raise OSError(
      f"damaged: a record with {format_amount(len(encoded), 'image')} and {format_amount(len(numbers), 'label')}"
    )
  return encoded[0], numbers if listed else numbers[0]


def _derive_label(rule: Any, image: str, values: Any) -> tuple[bytes, Label]:
  """Returns (image file, label) of the features of a record. A rule computes the label."""
  encoded = values[image].bytes_list.value
  try:
    label = rule.label(*(_read_numbers(values[feature]) for feature in rule.features))
  except (ValueError, IndexError) as error:
    raise OSError(f"damaged: no label follows from {rule.features}: {error}") from error
  if len(encoded) != 1:
    raise OSError(f"damaged: a record with {format_amount(len(encoded), 'image')}")
  return encoded[0], label


def _read_numbers(feature: Any) -> list[float]:
  """Returns all numbers of a feature of tf.train.Example, of any type."""
  kind = feature.WhichOneof("kind")
  return list(getattr(feature, kind).value) if kind else []


def _find_feature(features: Any, kind: Any) -> str:
  """Returns the name of the feature of a type. A label may also be a list of this type. Prefers "image" and "label"."""

  def is_match(feature: Any) -> bool:
    return isinstance(feature, kind) or (preferred == "label" and isinstance(getattr(feature, "feature", None), kind))

  preferred = {"Image": "image", "ClassLabel": "label"}[kind.__name__]
  keys = [key for key, feature in features.items() if is_match(feature)]
  if preferred not in keys and len(keys) != 1:
    raise ConfigError(f"the dataset needs one {kind.__name__} feature. It has {keys or 'none'}")
  return preferred if preferred in keys else keys[0]

"""The reader of Parquet datasets in Hugging Face's image format.

An image is a struct of bytes and path, or only bytes. A label is a number, a name, or a list of either. Names of
classes come from the key "huggingface" of the schema (https://huggingface.co/docs/datasets, features Image and
ClassLabel).
"""

import contextlib
import functools
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.data import sources
from vit_jax.data.class_names import NameOrder
from vit_jax.data.readers import index, indexed, listing
from vit_jax.data.readers.index import Arrays
from vit_jax.data.readers.labels import LabelCollector, MaxLabels, find_repeated, parse_class_names
from vit_jax.data.readers.listing import Files
from vit_jax.data.readers.row_groups import RowGroups, convert_errors, open_parquet
from vit_jax.schema import ConfigError, show, suggest_nearest
from vit_jax.schema.errors import format_names
from vit_jax.storage.files import parse_json

LARGE_GROUP = 2**29  # size in bytes above which a row group causes a warning; each thread may hold one in memory


def parquet(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  path: str,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  classes: str | int | None = None,
  class_order: NameOrder = "numeric",
  image: str | None = None,
  label: str | None = None,
  labels: MaxLabels = 1,
) -> sources.Source:
  """Opens a split of Parquet files.

  The smallest unit that can be read is a row group of about 100 images. The default order therefore uses blocks of
  that size. With order=records, each image requires a row group to be read. Labels are read when the data are opened,
  and are stored in this machine's cache.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    split: "train", "val", "test" or a split string. The split of a file follows from its name, see
      `listing.parse_split`.
    path: a directory, a file, or a pattern such as data/train-*.parquet, on a disk or in a bucket.
    train: split string for training.
    val: split string for validation.
    test: split string for testing.
    classes: a text file with one name per line, or the number of classes. Default: the classes of the schema, else the
      used names, or the numbers up to the largest in the splits of the config. See `labels` for the meaning of labels.
    class_order: order of used names. "numeric" sorts numbers by value. "text" sorts "10" before "2".
    image: name of the column of images. Default: the column with the feature Image, or "image".
    label: name of the column of labels. Default: the column with the feature ClassLabel, or "label".
    labels: largest number of labels of an image.

  Raises:
    AbsentError: if `path` contains no Parquet files.
    ConfigError: if a file is damaged, a column is missing or ambiguous, or a label is invalid.
    SplitError: if the split does not exist.
  """
  splits, named = sources.Splits(train, val, test), parse_class_names(classes)
  files = listing.list_files(path, (".parquet",), "Parquet files")
  tables, (columns, kind) = listing.group_by_split(files), _find_columns(files, image, label)
  stated = named is None and bool(columns.classes)  # with ClassLabel, integers are positions in its names
  if stated:
    if again := find_repeated(columns.classes):
      raise ConfigError(
        f"{files.path(0)} lists class {show(again)} twice. Set the number of classes, or a file of names", "classes"
      )
    named = columns.classes
  first = f"{kind} in {files.path(0)}"
  known = {
    part: (
      tables[part],
      index.load_or_scan("Parquet", tables[part], functools.partial(_scan, tables[part], columns, first), columns),
    )
    for part in indexed.find_needed_splits(tables, splits, split, named is None)
  }
  stored = functools.partial(RowGroups, columns.image)
  names, records = indexed.resolve_labels(
    known, named, labels, _locate_row, stored=stored, order=class_order, positions=stated
  )
  parts = splits.select(split, indexed.count_records(records, tables))
  rows = np.concatenate([arrays["rows"] for part, _ in parts for arrays in records[part].arrays])
  return indexed.create_source(
    *(name, splits.spec(split), names, parts, records, labels, _locate_row),
    together=round(float(np.median(rows))),
    remote=files.remote,
    about=(columns,),
  )


def _locate_row(files: Files, file: int, arrays: object, record: int) -> str:
  return f"{files.path(file)}, row {record:,}"


class _Columns(NamedTuple):
  """The columns of images and labels.

  Attributes:
    image: path of the image column, such as ("image", "bytes").
    label: name of the label column.
    classes: names of the classes in the schema. Empty if the schema contains no names.
  """

  image: tuple[str, ...]
  label: str
  classes: tuple[str, ...]


def _find_columns(files: Files, image: str | None, label: str | None) -> Any:
  """Returns (columns, type of the images) of the first file. Other files must have the same columns."""
  with _convert_errors(files, 0), open_parquet(files, 0) as table:
    schema = table.schema_arrow
  features = _read_features(schema)
  image = _choose_column(
    "image", image, schema.names, [name for name in features if _feature_type(features[name]) == "Image"]
  )
  label = _choose_column(
    "label", label, schema.names, [name for name in features if _feature_type(features[name]) == "ClassLabel"]
  )
  _check_single(files.path(0), schema, (image, label))
  kind = schema.field(image).type
  if (words := _find_image_column(image, kind)) is None:
    raise ConfigError(
      f"column {image!r} of {files.path(0)} is {kind}. Allowed: struct<bytes: binary, ...>, binary", "image"
    )
  return _Columns(words, label, _read_classes(features.get(label))), kind


def _check_single(path: str, schema: Any, columns: Sequence[str]) -> None:
  for column in columns:
    if (count := schema.names.count(column)) > 1:
      raise ConfigError(f"{path} has {count} columns called {column!r}. Keep only one of them", "path")


def _find_image_column(column: str, kind: Any) -> tuple[str, ...] | None:
  """Returns the path of the bytes in a column of images, or None if the type is unsupported."""
  import pyarrow

  struct = pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
  stored = kind.field("bytes").type if struct else kind
  if not (pyarrow.types.is_binary(stored) or pyarrow.types.is_large_binary(stored)):
    return None
  return (column, "bytes") if struct else (column,)


def _choose_column(key: str, name: str | None, names: Sequence[str], fitting: Sequence[str]) -> str:
  """Returns the column that the config names, or the only suitable one."""
  if name is None and key in names and (key in fitting or not fitting):
    name = key
  if name is None and len(fitting) == 1:
    name = fitting[0]
  if name is None:
    raise ConfigError(f"the column of the {key} is unknown. Set it to one of {format_names(names)}", key)
  if name not in names:
    raise ConfigError(f"no column {name!r}.{suggest_nearest(name, names)}", key)
  return name


def _read_features(schema: Any) -> dict[str, Any]:
  """Returns the column features that Hugging Face's library stored, or {} without them."""
  try:
    about = parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = about["info"]["features"]
  except (ValueError, KeyError, TypeError):
    return {}
  return features if isinstance(features, dict) else {}


def _unwrap_feature(feature: object) -> dict[str, Any]:
  """Returns the feature itself, or the feature of its items if it is a list. Returns {} for other values."""
  if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
    feature = feature.get("feature")
  if isinstance(feature, list) and len(feature) == 1:
    feature = feature[0]
  return feature if isinstance(feature, dict) else {}


def _feature_type(feature: object) -> Any:
  return _unwrap_feature(feature).get("_type")


def _read_classes(feature: object) -> Any:
  names = _unwrap_feature(feature).get("names")
  return tuple(map(str, names)) if isinstance(names, list) else ()


def _scan(files: Files, columns: Any, first: object, file: int) -> Arrays:
  """Returns the labels and the number of rows of each row group. Raises ConfigError with file and row."""
  labels = LabelCollector()
  with _convert_errors(files, file), open_parquet(files, file) as table:
    footer, names, features = table.metadata, table.schema_arrow.names, _read_features(table.schema_arrow)
    if missing := {columns.image[0], columns.label} - set(names):
      raise ConfigError(f"{files.path(file)} has no column {min(missing)!r}. Use files with the same columns", "path")
    _check_single(files.path(file), table.schema_arrow, (columns.image[0], columns.label))
    kind = table.schema_arrow.field(columns.image[0]).type
    if _find_image_column(columns.image[0], kind) != columns.image:
      raise ConfigError(
        f"column {columns.image[0]!r} is {kind} in {files.path(file)}, but {first}. Use files with the same columns",
        "path",
      )
    if _read_classes(features.get(columns.label)) != columns.classes:
      raise ConfigError(
        f"{files.path(file)} has other classes than the first file. Use files with the same classes", "path"
      )
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    row = 0
    for batch in table.iter_batches(columns=[columns.label], batch_size=2**16):
      for value in batch.column(columns.label).to_pylist():
        try:
          labels.add(value)
        except ValueError as error:
          raise ConfigError(f"{_locate_row(files, file, None, row)}: {error}", "path") from error
        row += 1
  if not row:
    raise ConfigError(f"{files.path(file)} contains no rows. Remove it", "path")
  largest = max(sum(group.column(i).total_uncompressed_size for i in range(group.num_columns)) for group in groups)
  if largest > LARGE_GROUP:
    logging.warning(
      "%s has a row group of %.1f GB, which is read to get any of its images. Rewrite the file with about 100 rows a "
      "group",
      files.path(file), largest / 1e9,
    )  # fmt: skip
  return labels.arrays() | {"rows": np.array([group.num_rows for group in groups], np.int64)}


def _convert_errors(files: Files, file: int) -> contextlib.AbstractContextManager[None]:
  return convert_errors(lambda text: ConfigError(f"{files.path(file)} is not a complete Parquet file: {text}", "path"))

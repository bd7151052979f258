"""The reader of datasets that TFDS prepared."""

import contextlib
import dataclasses
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf import json_format

from vit_jax.data import sources
from vit_jax.data.dataset_row import DatasetRow
from vit_jax.data.readers import features, locations, shards, tfrecords
from vit_jax.data.readers.labels import MaxLabels
from vit_jax.data.readers.records import create_parser
from vit_jax.data.sources import Fingerprint
from vit_jax.schema import ConfigError, enter_key, format_amount, get_current_key, texts
from vit_jax.schema.errors import AbsentError
from vit_jax.storage import paths


def find_data_dir(path: str | None) -> pathlib.Path:
  """Returns the TFDS data directory, on a disk or in a bucket: `path`, $TFDS_DATA_DIR, or ~/tensorflow_datasets."""
  with enter_key("path"):
    return paths.expand_home(
      paths.parse_path(path or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets", bare=True)
    )


def open_catalogued(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  path: str | None = None,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
) -> sources.Source:
  """Opens a dataset of the catalog.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    split: "train", "val", "test" or a split string.
    path: TFDS data directory, or the directory of one dataset. Default: $TFDS_DATA_DIR, else ~/tensorflow_datasets.
    train: split string for training.
    val: split string for validation.
    test: split string for testing.

  Raises:
    AbsentError: if the dataset is not prepared.
    ConfigError: if the files are damaged or differ from the row.
    SplitError: if the split does not exist.
  """
  splits = sources.Splits(train, val, test, row.slices)
  splits.check(row.splits)  # detects a misspelled split before the data are opened
  source = open_prepared(name, row, path, row.labels, split, splits)
  return dataclasses.replace(source, is_published=lambda i: True)


def open_own_copy(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  path: str | None = None,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  labels: MaxLabels = 1,
) -> sources.Source:
  """Opens the user's copy of a dataset that has no public builder.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    split: "train", "val", "test" or a split string.
    path: directory of the dataset.
    train: split string for training.
    val: split string for validation.
    test: split string for testing.
    labels: largest number of labels of an image.

  Raises:
    AbsentError: if the dataset does not exist.
    ConfigError: if the files are damaged or not in a supported format.
    SplitError: if the split does not exist.
  """
  return open_prepared(name, row, path, labels, split, sources.Splits(train, val, test))


def any_builder(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  builder: str | None = None,
  path: str | None = None,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  labels: MaxLabels = 1,
) -> sources.Source:
  """Opens any prepared dataset, by its TFDS builder, by its directory, or by both.

  Args:
    name: name of the catalog's row, which is used without a `builder`.
    row: row of the catalog.
    split: "train", "val", "test" or a split string.
    builder: name of the TFDS builder.
    path: directory of one version of the dataset, or the TFDS data directory.
    train: split string for training.
    val: split string for validation.
    test: split string for testing.
    labels: largest number of labels of an image, if labels are lists.

  Raises:
    AbsentError: if the dataset is not prepared.
    ConfigError: if neither `builder` nor `path` is given, or if the files are damaged.
    SplitError: if the split does not exist.
  """
  if not (builder or path):
    raise ConfigError(
      "missing. Use a TFDS name such as 'cifar10:3.0.2', or set path to the directory of one version of the dataset",
      "builder",
    )
  row = dataclasses.replace(row, builder=builder)
  return open_prepared(builder or name, row, path, labels, split, sources.Splits(train, val, test))


def describe_remedy(name: str, row: sources.DatasetRow, path: str | None) -> str:
  """Returns advice for a dataset that is missing or cannot be used.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    path: directory from the config.
  """
  if row.builder:
    return f"prepare it with: python -m vit_jax.prepare {name}" + (
      f" {texts.format_flag('data_dir', path)}" if path else ""
    )
  if row.classes:
    return (
      f"{name} has no public builder. Give your own copy: --{get_current_key('path')}=DIR, a TFDS directory (with "
      f"dataset_info.json) in array_record format, with a label that is a ClassLabel or a list of them"
    )
  return "set builder='name:1.0.0', or set path to the directory of one version, such as '.../name/1.0.0'"


def open_prepared(
  name: str, row: sources.DatasetRow, path: str | None, labels: int, split: str, splits: sources.Splits
) -> sources.Source:
  """Opens a split of a prepared dataset.

  Files have the format `array_record`, which has an index, or `tfrecord`, which is indexed here (see `tfrecords`). If
  the row has a builder, the number of records must match the row. Otherwise the numbers of records in the user's copy
  are used. Errors explain how to prepare the dataset.

  Args:
    name: name of the dataset, for advice.
    row: row of the catalog.
    path: TFDS data directory, or the directory of the dataset.
    labels: largest number of labels of an image, if labels are lists.
    split: "train", "val", "test" or a split string.
    splits: split strings of the config.

  Raises:
    AbsentError: if the dataset does not exist.
    ConfigError: if the files are damaged, differ from the row, or are not in a supported format.
    SplitError: if the split does not exist.
  """
  advice = describe_remedy(name, row, path)
  folder, prepared = _open_builder(row, path, advice)
  info = prepared.info
  sizes = {part: info.splits[part].num_examples for part in info.splits}
  records = create_parser(row, info.features)
  parts, remote = splits.select(split, sizes), paths.is_in_bucket(folder)
  with _convert_errors(folder, advice):
    stored = {part: _open_records(prepared, folder, part) for part, _ in parts}

  def fetch(part: str, i: int) -> bytes:
    try:
      return stored[part].read(i, i + 1)[0]
    except RuntimeError as error:  # error of array_record for a damaged file
      raise OSError(f"{folder} is damaged: {str(error).splitlines()[0]}") from error

  def parse(data: bytes, understand: Any = records.parse) -> Any:
    try:
      return understand(data)
    except OSError as error:
      raise OSError(f"{folder} is {error}") from error

  def read_stored(i: int, understand: Callable[[bytes], object] | None) -> Any:
    part, number = sources.locate_record(parts, i)
    return parse(fetch(part, number), understand)

  source = sources.assemble(
    info.name,
    splits.spec(split),
    records.classes,
    parts,
    lambda part, i: parse(fetch(part, i)),
    lambda part, i: f" (file {stored[part].file(i)!r})" if remote else "",
    lambda part, i: f"{part}/{i}",
    lambda: locations.call_storage(folder, lambda: _compute_fingerprint(folder, parts)),
    labels if records.listed else 1,
    read_label=(lambda part, i: parse(fetch(part, i), records.label)) if records.label else None,
    runs=sources.PartReader(lambda part, first, stop: stored[part].read(first, stop), parse) if remote else None,
    remote=remote,
  )
  masks = None
  if row.segments:
    values = row.segments.values
    masks = sources.Masks(
      tuple(values), lambda i: read_stored(i, records.mask), tuple(values.values()), row.segments.ignored
    )
  named = (lambda i: read_stored(i, records.name)) if records.name else None
  files = tuple if remote else lambda: sorted(map(str, folder.iterdir()))
  return dataclasses.replace(source, read_name=named, masks=masks, files=files)


def _open_builder(row: DatasetRow, path: str | None, advice: str) -> Any:
  """Returns (directory of a dataset, its TFDS builder) after checking that name, format and sizes match the row."""
  import tensorflow_datasets as tfds

  builder = row.builder
  folder = find_builder_dir(builder, path)
  if folder is None:
    missing = f"dataset {builder!r} is not in {find_data_dir(path)}" if builder else f"no dataset_info.json in {path!r}"
    missing = missing if builder or path else "path: missing"
    raise AbsentError(f"{missing}; {advice}")
  features.refuse_imports()
  with _convert_errors(folder, advice):
    prepared = tfds.builder_from_directory(folder)
  info, again = prepared.info, f"remove it and {advice}" if builder else advice
  if builder and info.name != re.split("[:/]", builder)[0]:
    raise ConfigError(f"{folder} contains the dataset {info.name!r}, not {builder!r}", "path")
  if info.file_format not in (tfds.core.FileFormat.ARRAY_RECORD, tfds.core.FileFormat.TFRECORD):
    form = info.file_format.value
    raise ConfigError(f"{folder} is in {form} format, not array_record or tfrecord. To fix it, {again}")
  for part, count in row.splits.items() if builder else ():
    size = info.splits[part].num_examples if part in info.splits else 0
    if size != count:
      raise ConfigError(f"{folder} has {format_amount(size, 'record')} in {part!r}, not {count}; {again}")
  return folder, prepared


@contextlib.contextmanager
def _convert_errors(folder: object, advice: str) -> Iterator[None]:
  """Converts errors of TFDS for invalid files to errors of one line. Values in damaged files can have any type."""
  import tensorflow_datasets as tfds

  try:
    yield
  except ConfigError:
    raise
  except (
    *(tfds.core.registered.DatasetNotFoundError, json_format.ParseError, OSError, RecursionError),
    *(ValueError, TypeError, LookupError, AttributeError),
  ) as error:
    reason = " ".join(str(error).split())[:300]
    raise ConfigError(
      f"{folder} is not a TFDS dataset: {reason or type(error).__name__}. To fix it, {advice}", "path"
    ) from error


@dataclasses.dataclass(frozen=True)
class _LocalRecords:
  """Records of a split on a local disk, which are read one by one."""

  records: Sequence[bytes]

  def read(self, first: int, stop: int) -> list[bytes]:
    """Returns the records from `first` up to, but not including, `stop`."""
    return [self.records[i] for i in range(first, stop)]


def _open_records(prepared: Any, folder: pathlib.Path, part: str) -> Any:
  """Returns the stored records of a split by number."""
  import tensorflow_datasets as tfds

  split = prepared.info.splits[part]
  if prepared.info.file_format is tfds.core.FileFormat.TFRECORD:
    return tfrecords.open_records(folder, [str(file) for file in split.filepaths], split.shard_lengths)
  if paths.is_in_bucket(folder):
    return shards.Shards([str(file) for file in split.filepaths], split.shard_lengths)
  return _LocalRecords(prepared.as_data_source(split=part, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES))


def _compute_fingerprint(folder: pathlib.Path, parts: sources.Parts) -> Fingerprint:
  """Returns the fingerprint of the files of a TFDS directory.

  Its digest of names also covers the selected parts of the split.
  """
  files = sorted(folder.iterdir(), key=lambda file: file.name)
  names = sources.digest([folder.parts[-2:], parts, *(file.name for file in files)])
  sizes, times = zip(*locations.read_stamps(files), strict=True)
  return sources.Fingerprint(names, "", sources.digest(sizes), sources.digest(times))


def find_builder_dir(builder: str | None, path: str | None) -> pathlib.Path | None:
  """Returns the directory with dataset_info.json: `path` itself, or the highest version of `builder` in it.

  Args:
    builder: name of the TFDS builder, with or without a version.
    path: directory of the dataset, or the TFDS data directory.

  Returns:
    The directory, or None if it does not exist.

  Raises:
    UnreachableError: if the bucket does not exist or cannot be reached.
  """
  root = find_data_dir(path)
  return locations.call_storage(root, lambda: _find_builder_dir(root, builder, path))


def _find_builder_dir(root: pathlib.Path, builder: str | None, path: str | None) -> pathlib.Path | None:
  # Imported here because the import takes 0.3 s, and only runs that read TFDS need it. It does not import TensorFlow.
  import tensorflow_datasets as tfds

  if path and (root / "dataset_info.json").exists():
    return root
  if not builder:
    return None
  name, _, version = builder.partition(":")
  if version:
    versions = [root / name / version]
  else:
    every = (root / name).iterdir() if (root / name).is_dir() else ()
    folders = [folder for folder in every if tfds.core.Version.is_valid(folder.name)]
    versions = sorted(folders, key=lambda folder: tfds.core.Version(folder.name))
  complete = [folder for folder in versions if (folder / "dataset_info.json").exists()]
  return complete[-1] if complete else None

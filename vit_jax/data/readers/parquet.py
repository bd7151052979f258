"""Parquet datasets of Hugging Face's image form as sources, where they are.

An image is a struct of bytes and path, or bytes; a label a number, a name, or a list of either. Names of classes are in
the key "huggingface" of the schema (https://huggingface.co/docs/datasets, features Image and ClassLabel).
"""

import collections
import contextlib
import functools
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Annotated, NamedTuple

import numpy as np

from vit_jax import files as json_reading
from vit_jax.data import sources
from vit_jax.data.readers import index, listing
from vit_jax.data.readers import labels as label_columns
from vit_jax.schema import ConfigError, Range, nearest
from vit_jax.schema.errors import some

KEPT = 2**28  # bytes of row groups that stay in memory, but for one
FOOTERS = 64  # files whose description stays in memory
LARGE_GROUP = 2**29  # bytes from which on a row group is named: each thread may hold one


def parquet(
  name: str,
  row: sources.Row,
  split: str,
  *,
  path: str,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  classes: str | None = None,
  image: str | None = None,
  label: str | None = None,
  labels: Annotated[int, Range(1, 4096)] = 1,
) -> sources.Source:
  """A split of Parquet files: `path` is their folder, one of them, or a pattern such as data/train-*.parquet.

  What can be read by itself is a row group, of about 100 images. So the order is one of blocks of that size by itself;
  with order=records each image costs a row group. Labels are read when the data are opened, and kept in this machine's
  cache.

  Args:
    name: of the data.
    row: of the catalog.
    split: "train", "val", "test" or a split string; which split a file is of, its name says, see `listing.split_of`.
    path: on a disk or in a bucket.
    train: split string.
    val: split string.
    test: split string.
    classes: a text file with their names, one a line, or their number; by default those of the schema, else the names
      in use, sorted, or the largest number in use in the splits of the config.
    image: the column; by default the one that the schema calls an image, or "image".
    label: the column; by default the one that the schema calls a class, or "label".
    labels: the most that one image has.
  """
  splits, named = sources.Splits(train, val, test), label_columns.class_names(classes)
  files = listing.listed(path, (".parquet",), "Parquet files")
  tables = {part: files.chosen(numbers) for part, numbers in listing.by_split(files).items()}
  columns = _columns(files, image, label)
  if named is None and columns.classes:
    named = columns.classes
  known = {
    part: (tables[part], index.made("Parquet", tables[part], functools.partial(_scan, tables[part], columns), columns))
    for part in index.used(tables, splits, split, named is None)
  }
  stored = functools.partial(RowGroups, columns.image)
  found, records = index.resolved(known, named, labels, _where, stored)
  parts, remote = splits.select(split, index.sizes(records, tables)), files.remote
  rows = [rows for part, _ in parts for each in known[part][1] for rows in each["rows"].tolist()]

  def place(part, i):
    file, number = records[part].extents.locate(i)
    return f" ({_where(tables[part], file, None, number)})"

  return sources.assemble(
    name,
    splits.spec(split),
    found,
    parts,
    lambda part, i: records[part].read(i),
    place,
    lambda part, i: f"{part}/{i}",
    lambda: index.fingerprint(parts, records, columns),
    labels,
    read_label=lambda part, i: records[part].label(i),
    runs=sources.Runs(lambda part, *ends: records[part].run(*ends), index.unpacked, round(float(np.median(rows)))),
    remote=remote,
  )


def _where(files, file, arrays, record):
  return f"{files.path(file)}, row {record:,}"


# Rows.


class RowGroups:
  """The images of the rows of files, by number through all of them; row groups that were read last are kept.

  For many threads at once: a row group is read by one of them, and the others wait for it.
  """

  def __init__(self, column: tuple[str, ...], files: listing.Files, arrays: Sequence[index.Arrays]):
    """`column` is that of the images, as words; `arrays` have "rows" of the row groups of each file."""
    self._column, self.files = column, files
    self._firsts = index.firsts(each["rows"].sum() for each in arrays)
    self._groups = [index.firsts(each["rows"]) for each in arrays]
    self._kept: collections.OrderedDict[tuple[int, int], Future] = collections.OrderedDict()
    self._lock = threading.Lock()
    self._footer = functools.lru_cache(maxsize=FOOTERS)(lambda file: opened(files, file).metadata)

  def __len__(self):
    return self._firsts[-1]

  def locate(self, record: int) -> tuple[int, int]:
    """(file, row) of a record."""
    return index.locate(self._firsts, record)

  def read(self, first: int, stop: int) -> list[bytes]:
    """The images of records `first` to `stop`. Raises OSError."""
    result = []
    for record in range(first, stop):
      file, number = self.locate(record)
      group, number = index.locate(self._groups[file], number)
      data = self._group(file, group)[number].as_py()
      if data is None:
        raise OSError("its row has no bytes; write the images into the files, not their paths")
      if len(data) > sources.LARGEST:
        raise OSError(f"it has {len(data):,} bytes; allowed: {sources.LARGEST:,}")
      result.append(data)
    return result

  def _group(self, file, group):
    """The column of a row group."""
    with self._lock:
      mine = (file, group) not in self._kept
      future = self._kept.setdefault((file, group), Future())
      self._kept.move_to_end((file, group))
    if mine:
      try:
        future.set_result(self._read(file, group))
      except OSError as error:
        future.set_exception(error)
      finally:
        if not _is_read(future):  # another time it may be there
          with self._lock:
            self._kept.pop((file, group), None)
          future.cancel()
      self._forget()
    return future.result()

  def _forget(self):
    """Lets go of row groups until the others have few bytes."""
    with self._lock:
      done = [(key, future.result().nbytes) for key, future in self._kept.items() if _is_read(future)]
      size = sum(bytes_ for _, bytes_ in done)
      for key, bytes_ in done[:-1]:
        if size <= KEPT:
          break
        del self._kept[key]
        size -= bytes_

  def _read(self, file, group):
    import pyarrow
    import pyarrow.compute

    try:
      with opened(self.files, file, self._footer(file)) as table:
        column = table.read_row_group(group, columns=[".".join(self._column)], use_threads=False).column(0)
      for field in self._column[1:]:
        column = pyarrow.compute.struct_field(column, field)
      return column
    except (pyarrow.ArrowException, ValueError, OSError) as error:
      if isinstance(error, OSError) and error.errno is not None:  # of the disk or the bucket
        raise
      raise OSError(f"{self.files.path(file)}, row group {group}, cannot be read: {_line(error)}") from error


def _is_read(future):
  return future.done() and future.exception() is None


def opened(files: listing.Files, file: int, footer=None):
  """A Parquet file, open; a `footer` that is known is not read again. Of a bucket a column is one request."""
  import pyarrow
  from pyarrow import parquet as format_

  source = pyarrow.PythonFile(files.opened(file), mode="r") if files.remote else files.path(file)
  return format_.ParquetFile(source, metadata=footer, pre_buffer=files.remote)


def _line(error):
  return " ".join(str(error).split())[:300]


# What is known of files.


class _Columns(NamedTuple):
  """Which columns have images and labels, as words of a nested name, and the names of classes, if they are stated."""

  image: tuple[str, ...]
  label: str
  classes: tuple[str, ...]


def _columns(files, image, label):
  """Of the first of the files; the others must have the same."""
  import pyarrow

  with _described(files, 0), opened(files, 0) as table:
    schema = table.schema_arrow
  features = _features(schema)
  image = _chosen("image", image, schema.names, [name for name in features if _kind(features[name]) == "Image"])
  label = _chosen("label", label, schema.names, [name for name in features if _kind(features[name]) == "ClassLabel"])
  kind = schema.field(image).type
  bytes_ = kind.field("bytes").type if pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0 else kind
  if not (pyarrow.types.is_binary(bytes_) or pyarrow.types.is_large_binary(bytes_)):
    raise ConfigError(
      f"column {image!r} of {files.path(0)} is {kind}; allowed: struct<bytes: binary, ...>, binary", "image"
    )
  return _Columns((image,) if bytes_ is kind else (image, "bytes"), label, _classes(features.get(label)))


def _chosen(key, name, names, fitting):
  """The column that a config names, or the only one that fits."""
  if name is None and key in names and (key in fitting or not fitting):
    name = key
  if name is None and len(fitting) == 1:
    name = fitting[0]
  if name is None:
    raise ConfigError(f"which column is the {key}? Set it; the files have {some(names)}", key)
  if name not in names:
    raise ConfigError(f"no column {name!r}.{nearest(name, names)}", key)
  return name


def _features(schema):
  """What Hugging Face's library says of the columns, {} where it says nothing."""
  try:
    about = json_reading.parse_json((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = about["info"]["features"]
  except (ValueError, KeyError, TypeError):
    return {}
  return features if isinstance(features, dict) else {}


def _feature(feature):
  """A feature, or that of which it is a list; {} for what is none."""
  if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
    feature = feature.get("feature")
  if isinstance(feature, list) and len(feature) == 1:
    feature = feature[0]
  return feature if isinstance(feature, dict) else {}


def _kind(feature):
  return _feature(feature).get("_type")


def _classes(feature):
  names = _feature(feature).get("names")
  return tuple(map(str, names)) if isinstance(names, list) else ()


def _scan(files, columns, file):
  """Rows of the row groups of a file, and the labels; ConfigError that names file and row."""
  found = label_columns.Collected()
  with _described(files, file), opened(files, file) as table:
    footer, names, features = table.metadata, table.schema_arrow.names, _features(table.schema_arrow)
    if missing := {columns.image[0], columns.label} - set(names):
      raise ConfigError(f"{files.path(file)} has no column {min(missing)!r}; allowed: files of the same form", "path")
    if _classes(features.get(columns.label)) != columns.classes:
      raise ConfigError(f"{files.path(file)} has other classes than the first file; allowed: the same", "path")
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    row = 0
    for batch in table.iter_batches(columns=[columns.label], batch_size=2**16):
      for value in batch.column(0).to_pylist():
        try:
          found.add(value)
        except ValueError as error:
          raise ConfigError(f"{_where(files, file, None, row)}: {error}", "path") from error
        row += 1
  if not row:
    raise ConfigError(f"{files.path(file)} has no row; remove it", "path")
  largest = max(sum(group.column(i).total_uncompressed_size for i in range(group.num_columns)) for group in groups)
  if largest > LARGE_GROUP:
    logging.warning(
      "%s has a row group of %.1f GB, which each read of one of its images takes: write them again with about 100 rows",
      files.path(file), largest / 1e9,
    )  # fmt: skip
  return found.arrays() | {"rows": np.array([group.num_rows for group in groups], np.int64)}


@contextlib.contextmanager
def _described(files, file):
  """What pyarrow raises of a file that is no whole Parquet file becomes a line."""
  import pyarrow

  try:
    yield
  except ConfigError:
    raise
  except (pyarrow.ArrowException, ValueError, OSError) as error:
    if isinstance(error, OSError) and error.errno is not None:  # of the disk or the bucket
      raise
    raise ConfigError(f"{files.path(file)} is no whole Parquet file: {_line(error)}", "path") from error

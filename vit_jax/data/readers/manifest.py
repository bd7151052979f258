"""The reader of manifests: files of JSON lines, each with labels and the path or the content of an image file."""

import array
import base64
import binascii
import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data import local_files, sources
from vit_jax.data.class_names import NameOrder
from vit_jax.data.readers import copies, index, indexed, listing, locations
from vit_jax.data.readers.index import Arrays
from vit_jax.data.readers.indexed import IndexedRecords
from vit_jax.data.readers.labels import LabelCollector, MaxLabels, parse_class_names
from vit_jax.data.readers.listing import Files
from vit_jax.schema import ConfigError, format_amount, show
from vit_jax.storage import paths
from vit_jax.storage.files import JSON_BYTES, parse_json

SUFFIXES = (".jsonl", ".ndjson", ".json")
TOGETHER = 1000  # number of lines that are read together for the names of their images
BLOCK = 2**20  # bytes per read during a scan of a manifest


def manifest(
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
  labels: MaxLabels = 1,
) -> sources.Source:
  """Opens a split of JSON lines such as {"path": "a/1.jpg", "label": "cat"}.

  A line has the "path" of an image, or its "bytes" in base64. The "label" is a name or a number. If `labels` is above
  1, it can also be a list of names or numbers, which may be empty. Optional keys are:

  - "id": name of the record in predictions.
  - "split": split of the record. By default the split follows from the file's name (see `listing.parse_split`) if
  `path`
    specifies several files. Otherwise it is "train".

  Records have the order of the lines. It is an error if two lines of a split give different labels to the same image.
  All lines are read when the data are opened for the first time. 24 bytes per line remain in memory.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    split: "train", "val", "test" or a split string.
    path: a file, a directory with *.jsonl, or a pattern, on a disk or in a bucket. Paths of images are relative to the
      directory of the manifest, unless they start with / or gs://.
    train: split string for training.
    val: split string for validation.
    test: split string for testing.
    classes: a text file with one name per line, or the number of classes. Default: the used names, or the numbers up
      to the largest in the splits of the config. See `labels` for the meaning of labels.
    class_order: order of used names. "numeric" sorts numbers by value. "text" sorts "10" before "2".
    labels: largest number of labels of an image.

  Raises:
    AbsentError: if `path` contains no manifests.
    ConfigError: if a line is invalid, or if labels contradict each other.
    SplitError: if the split does not exist.
  """
  splits, named = sources.Splits(train, val, test), parse_class_names(classes)
  files = listing.list_files(path, SUFFIXES, "a manifest of JSON lines")
  known = _group_by_split(
    files, index.load_or_scan("manifest", files, functools.partial(_scan, files), len(files.names) > 1)
  )
  used = indexed.find_needed_splits(known, splits, split, named is None)
  names, records = indexed.resolve_labels(
    {part: known[part] for part in used}, named, labels, _locate_line, order=class_order
  )
  parts = splits.select(split, indexed.count_records(records, known))
  kinds = {str(kind) for part, _ in parts for arrays in records[part].arrays for kind in arrays["kinds"]}
  again = [_check_labels(names, records[part], part) for part in dict.fromkeys(part for part, _ in parts)]
  source = indexed.create_source(
    *(name, splits.spec(split), names, parts, records, labels, _locate_line),
    together=int(files.remote and kinds == {"bytes"}),
    remote=files.remote or "bucket" in kinds,
    content=lambda file, line: _resolve_image(file, _parse_line(line)),
    identify=_identify,
    list_extras=_list_local_images,
    objects=_list_objects,
  )
  return sources.add_notes(source, *again, *(_find_overlaps(splits, known) if split == "train" else ()))


def _identify(part: str, records: IndexedRecords, i: int) -> str:
  line = _parse_line(records.extents.read(i, i + 1)[0])
  return str(line.get("id", line.get("path", f"{part}/{i}")))


def _list_local_images(records: IndexedRecords, numbers: range) -> list[str]:
  """Returns the local images to which records refer.

  If the manifest is in a bucket, its lines are not read, and the result is empty.
  """
  if records.extents.files.remote:
    return []
  return [path for path in _list_images(records, numbers) if not path.startswith(paths.BUCKET)]


def _list_objects(records: IndexedRecords, numbers: range) -> list[tuple[object, ...]]:
  """Returns the versions of bucket objects to which records refer.

  Includes local images if the manifest is in a bucket.
  """
  named = _list_images(records, numbers)
  on_disk = [path for path in named if not path.startswith(paths.BUCKET)] if records.extents.files.remote else []
  objects = locations.read_versions([path for path in named if path.startswith(paths.BUCKET)])
  return [*objects, *((state or ()) for state in local_files.read_states(on_disk))]


def _list_images(records: IndexedRecords, numbers: range) -> list[str]:
  """Returns the complete paths of the images to which records refer."""
  kinds = {str(kind) for arrays in records.arrays for kind in arrays["kinds"]}
  if kinds.isdisjoint(("path", "bucket")):
    return []
  named = []
  for first in range(numbers.start, numbers.stop, TOGETHER):
    lines = records.extents.read(first, min(first + TOGETHER, numbers.stop))
    for i, line in enumerate(lines, first):
      about = _parse_line(line)
      if "path" in about:
        named.append(locations.resolve_manifest_path(records.extents.file(i), about["path"]))
  return named


def _resolve_image(manifest: str, about: Mapping[str, Any]) -> bytes:
  """Returns the image of a line of a manifest. Raises OSError."""
  if "bytes" in about:
    try:
      return base64.b64decode(about["bytes"], validate=True)
    except (binascii.Error, ValueError) as error:
      raise OSError(f"its bytes are not base64: {error}") from error
  return locations.read_content(locations.resolve_manifest_path(manifest, about["path"]))


def _parse_line(text: bytes) -> Any:
  try:
    return parse_json(text)
  except ValueError as error:  # the line was valid JSON when the manifest was opened
    raise OSError(f"its line in the manifest is not JSON ({error}): the file was changed") from error


def _locate_line(files: Files, file: int, arrays: Arrays, record: int) -> str:
  """Returns the file and line number of a record. The first line has number 1."""
  stop, at, line = int(arrays["starts"][record]), 0, 1
  while at < stop:
    block = files.read(file, at, min(stop, at + BLOCK))
    line, at = line + block.count(b"\n"), at + len(block)
  return f"{files.path(file)}, line {line:,}"


def _group_by_split(files: Files, arrays: Sequence[Arrays]) -> dict[str, tuple[Files, list[Arrays]]]:
  """Returns {split: (files with records of the split, arrays of its records in each file)}."""
  numbers = {}
  for file, each in enumerate(arrays):
    for code, split in enumerate(_list_split_names(each)):
      numbers.setdefault(split, []).append((file, code))
  return {
    split: (files.select([file for file, _ in some]), [_select_arrays(arrays[file], code) for file, code in some])
    for split, some in numbers.items()
  }


def _list_split_names(arrays: Arrays) -> list[str]:
  return bytes(arrays["splits"]).decode("utf-8", "surrogatepass").split("\n")


def _select_arrays(arrays: Arrays, code: int) -> Arrays:
  """Returns the arrays of the records of one split in a file."""
  if not len(arrays["split_codes"]):
    return arrays
  mine = arrays["split_codes"] == code
  counts = arrays["counts"]
  of_labels = np.repeat(mine, counts) if len(counts) else mine
  return arrays | {
    "starts": arrays["starts"][mine],
    "sizes": arrays["sizes"][mine],
    "keys": arrays["keys"][mine],
    "numbers": arrays["numbers"][of_labels],
    "counts": counts[mine] if len(counts) else counts,
  }


# Repeated images.


def _check_labels(classes: Sequence[str], records: IndexedRecords, split: str) -> str:
  """Returns a note on repeated images of a split. Raises ConfigError for an image with two different labels."""
  pairs = copies.find_repeats(_read_keys(records.arrays))
  if not len(pairs):
    return ""

  def list_labels(record: int) -> list[int]:
    labels = records.label(record)
    return sorted(set(labels)) if isinstance(labels, tuple) else [labels]

  def describe(record: int) -> str:
    names = ", ".join(show(classes[each]) for each in list_labels(record))
    return f"{_locate_line(*records.locate(record))} ({names or 'none'})"

  def read_key(record: int) -> Any:  # links to directories may have changed since the scan
    files, file, _, _ = records.locate(record)
    return _LineKey(files.path(file))(_parse_line(records.extents.read(record, record + 1)[0]))

  odd = [(one, other) for one, other in pairs.tolist() if list_labels(one) != list_labels(other)]
  first = next((pair for pair in odd if read_key(pair[0]) == read_key(pair[1])), None)
  if first:
    more = f". There are {format_amount(len(odd), 'such line')} in {split!r}" * (len(odd) > 1)
    raise ConfigError(
      f"{describe(first[0])} and {describe(first[1])} give the same image two labels{more}. Remove the wrong line. "
      "For an image of several classes, write one line with a list of them",
      "path",
    )
  one, other = (_locate_line(*records.locate(each)) for each in pairs[0].tolist())
  what = f"{format_amount(len(pairs), 'line')} of {split!r} {'repeats' if len(pairs) == 1 else 'repeat'} an image"
  return f"{what} with the same label, such as {other}, which repeats {one}"


def _find_overlaps(splits: sources.Splits, known: Mapping[str, tuple[listing.Files, Sequence[Arrays]]]) -> list[str]:
  """Returns notes on images that are both in the training data and in other data of the config."""

  def describe(record: tuple[str, int]) -> str:
    split, number = record
    files, arrays = known[split]
    file, i = index.locate(index.compute_firsts(len(each["starts"]) for each in arrays), number)
    return _locate_line(files, file, arrays[file], i)

  found = copies.find_overlaps(splits, {split: _read_keys(arrays) for split, (_, arrays) in known.items()})
  return [
    copies.describe_overlap(role, len(pairs), f"{describe(pairs[0].one)} and {describe(pairs[0].other)}")
    for role, pairs in found.items()
    if pairs
  ]


def _read_keys(arrays: Sequence[Arrays]) -> np.ndarray:
  return np.concatenate([np.zeros(0, np.int64), *(each["keys"] for each in arrays)])


# Scan of a manifest.


def _scan(files: Files, file: int) -> dict[str, Any]:
  """Returns positions, labels and splits of the lines of a manifest. Raises ConfigError with file and line."""
  starts, sizes, keys, labels = array.array("q"), array.array("q"), array.array("q"), LabelCollector()
  default = files.split(file) if len(files.names) > 1 else "train"
  at, splits, codes, kinds, key = 0, {}, array.array("H"), set(), _LineKey(files.path(file))
  with files.open_stream(file, BLOCK) as stream:
    for number in itertools.count(1):
      line = stream.readline(JSON_BYTES + 2)
      if not line:
        break
      if line.strip():
        try:
          about, split, kind = _check_line(line, labels)
          if split is not None and (not sources.is_split_name(split) or len(splits) >= 1000):
            raise ValueError(
              f"split {show(split)}. Allowed: up to 1,000 names of letters, digits and - . _ but for 'all', as 'train'"
            )
        except ValueError as error:
          raise ConfigError(f"{files.path(file)}, line {number:,}: {error}", "path") from error
        starts.append(at)
        sizes.append(len(line))
        keys.append(key(about))
        codes.append(splits.setdefault(split or default, len(splits)))
        kinds.add(kind)
      at += len(line)
  if not starts:
    raise ConfigError(f"{files.path(file)} has no line", "path")
  return labels.arrays() | {
    "starts": np.array(starts, np.int64),
    "sizes": np.array(sizes, np.uint32),
    "keys": np.array(keys, np.int64),
    "split_codes": np.array(codes if len(splits) > 1 else [], np.uint16),
    "splits": np.frombuffer("\n".join(splits).encode("utf-8", "surrogatepass"), np.uint8),
    "kinds": np.array(sorted(kinds)),
  }


class _LineKey:
  """Keys of lines. Lines have equal keys if their images have the same resolved path or the same bytes."""

  def __init__(self, manifest: str) -> None:
    self._manifest = manifest
    self._resolved = functools.lru_cache(2**16)(os.path.realpath)  # cached by directory, because many images share one

  def __call__(self, about: dict[str, Any]) -> int:
    """Returns the key of a line, see `copies`."""
    if "bytes" in about:
      return copies.compute_key(f"bytes {about['bytes']}")
    path = locations.resolve_manifest_path(self._manifest, about["path"])
    if path.startswith(paths.BUCKET) or "\0" in path:  # objects of a bucket have only one path
      return copies.compute_key(f"path {path}")
    folder, name = os.path.split(path)
    try:
      folder = self._resolved(folder)
    except (OSError, UnicodeEncodeError):  # errors are reported when the image is read
      folder = os.path.normpath(folder)
    return copies.compute_key(f"path {folder}/{name}")


def _check_line(line: bytes, labels: LabelCollector) -> tuple[Any, str | None, Any]:
  """Checks a line and adds its label to `labels`. Returns (content, split or None, location of the image)."""
  about = parse_json(line)
  if not isinstance(about, dict):
    raise ValueError(f'{show(about)} is not a JSON object. Write {{"path": ..., "label": ...}}')
  if ("path" in about) == ("bytes" in about):
    raise ValueError(f"it has {'both' if 'path' in about else 'neither of'} 'path' and 'bytes'. Give one of them")
  kind = "path" if "path" in about else "bytes"
  for key in (kind, "split"):
    if not isinstance(about.get(key, "a"), str) or not about.get(key, "a"):
      raise ValueError(f"{key!r} is {show(about[key])}. Allowed: a text")
  if "label" not in about:
    raise ValueError("it has no 'label'. Allowed: a number, a name or a list of them")
  labels.add(about["label"])
  return about, about.get("split"), "bucket" if about.get("path", "").startswith(paths.BUCKET) else kind

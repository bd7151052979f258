"""Manifests as sources: files of JSON lines, each of which names an image file or holds one, with its labels."""

import array
import base64
import binascii
import functools
import itertools
import os
import pathlib
from typing import Annotated

import numpy as np

from vit_jax import files as json_reading
from vit_jax import paths
from vit_jax.data import sources
from vit_jax.data.readers import index, listing, places
from vit_jax.data.readers import labels as label_columns
from vit_jax.schema import ConfigError, Range, show

SUFFIXES = (".jsonl", ".ndjson", ".json")
BLOCK = 2**20  # bytes that are read at a time while a manifest is looked through


def manifest(
  name: str,
  row: sources.Row,
  split: str,
  *,
  path: str,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  classes: str | None = None,
  labels: Annotated[int, Range(1, 4096)] = 1,
) -> sources.Source:
  """A split of JSON lines: {"path": "a/1.jpg", "label": "cat"}, or "bytes" in base64 instead of a path.

  A label is a name, a number, or with `labels` above 1 a list of either, also an empty one. A line may have an "id",
  which names it in predictions, and a "split"; without it the line is of the split that its file's name says (see
  `listing.split_of`) where `path` stands for several files, and of "train" where it is one. Records are in order of
  the lines. Every line is looked at when the data are opened the first time; what stays in memory is 16 bytes of it.

  Args:
    name: of the data.
    row: of the catalog.
    split: "train", "val", "test" or a split string.
    path: a file, a folder of *.jsonl, or a pattern, on a disk or in a bucket. Paths of images begin there, at the
      folder of their file, unless they begin with / or gs://.
    train: split string.
    val: split string.
    test: split string.
    classes: a text file with their names, one a line, or their number; by default the names in use, sorted, or the
      largest number in use in the splits of the config.
    labels: the most that one image has.
  """
  splits, named = sources.Splits(train, val, test), label_columns.class_names(classes)
  files = listing.listed(path, SUFFIXES, "a manifest of JSON lines")
  arrays = index.made("manifest", files, functools.partial(_scan, files), len(files.names) > 1)
  known = _by_split(files, arrays)
  used = index.used(known, splits, split, named is None)
  found, records = index.resolved({part: known[part] for part in used}, named, labels, _where)
  parts = splits.select(split, index.sizes(records, known))
  kinds = {str(kind) for part, _ in parts for each in known[part][1] for kind in each["kinds"]}
  remote = files.remote or "bucket" in kinds

  def about(part, i):
    return _parsed(records[part].extents.read(i, i + 1)[0])

  def place(part, i):
    file, number = records[part].extents.locate(i)
    of, arrays = known[part]
    return f" ({_where(of, file, arrays[file], number)})"

  def identify(part, i):
    line = about(part, i)
    return str(line.get("id", line.get("path", f"{part}/{i}")))

  def read(part, i):
    file, _ = records[part].extents.locate(i)
    return _image(known[part][0].path(file), about(part, i)), records[part].label(i)

  def parse(data):
    text, label = index.unpacked(data)
    return _image("", _parsed(text)), label

  together = files.remote and kinds == {"bytes"}
  return sources.assemble(
    name,
    splits.spec(split),
    found,
    parts,
    read,
    place,
    identify,
    lambda: index.fingerprint(parts, records),
    labels,
    read_label=lambda part, i: records[part].label(i),
    runs=sources.Runs(lambda part, first, stop: records[part].run(first, stop), parse) if together else None,
    remote=remote,
  )


def _image(manifest, about):
  """The image of a line of a manifest. Raises OSError."""
  if "bytes" in about:
    try:
      return base64.b64decode(about["bytes"], validate=True)
    except (binascii.Error, ValueError) as error:
      raise OSError(f"its bytes are no base64: {error}") from error
  there = about["path"]
  if "\0" in there:
    raise OSError("its path has a character of code 0")
  if not there.startswith(paths.BUCKET):
    there = os.path.join(os.path.dirname(manifest), there)
  if not there.startswith(paths.BUCKET):
    return sources.contents(pathlib.Path(there).expanduser())
  paths.prepare()
  data = places.file_system().cat_file(there, end=sources.LARGEST + 1)
  if len(data) > sources.LARGEST:
    raise OSError(f"it has more bytes than are allowed: {sources.LARGEST:,}")
  return data


def _parsed(text):
  try:
    return json_reading.parse_json(text)
  except ValueError as error:  # it was JSON when the manifest was opened
    raise OSError(f"its line in the manifest is no JSON ({error}): the file was changed") from error


def _where(files, file, arrays, record):
  """The line of a record, counted from 1."""
  stop, at, line = int(arrays["starts"][record]), 0, 1
  while at < stop:
    block = files.read(file, at, min(stop, at + BLOCK))
    line, at = line + block.count(b"\n"), at + len(block)
  return f"{files.path(file)}, line {line:,}"


def _by_split(files, arrays):
  """{split: (files that have it, what is known of its records in each)}."""
  numbers = {}
  for file, each in enumerate(arrays):
    for code, split in enumerate(_split_names(each)):
      numbers.setdefault(split, []).append((file, code))
  return {
    split: (files.chosen([file for file, _ in some]), [_chosen(arrays[file], code) for file, code in some])
    for split, some in numbers.items()
  }


def _split_names(arrays):
  return bytes(arrays["splits"]).decode("utf-8", "surrogatepass").split("\n")


def _chosen(arrays, code):
  """What is known of the records of one split, of all in a file."""
  if not len(arrays["split_codes"]):
    return arrays
  mine = arrays["split_codes"] == code
  counts = arrays["counts"]
  of_labels = np.repeat(mine, counts) if len(counts) else mine
  return arrays | {
    "starts": arrays["starts"][mine],
    "sizes": arrays["sizes"][mine],
    "numbers": arrays["numbers"][of_labels],
    "counts": counts[mine] if len(counts) else counts,
  }


# Looking through a manifest.


def _scan(files, file):
  """Where the lines of a manifest are, their labels and splits; ConfigError that names file and line."""
  starts, sizes, found = array.array("q"), array.array("q"), label_columns.Collected()
  default = files.split(file) if len(files.names) > 1 else "train"
  at, splits, codes, kinds = 0, {}, array.array("H"), set()
  with files.stream(file, BLOCK) as stream:
    for number in itertools.count(1):
      line = stream.readline(json_reading.JSON_BYTES + 2)
      if not line:
        break
      if line.strip():
        try:
          split, kind = _checked(line, found)
          if split is not None and (not split or "\n" in split or len(splits) >= 1000):
            raise ValueError(f"split {show(split)}: allowed are up to 1,000 names of one line")
        except ValueError as error:
          raise ConfigError(f"{files.path(file)}, line {number:,}: {error}", "path") from error
        starts.append(at)
        sizes.append(len(line))
        codes.append(splits.setdefault(split or default, len(splits)))
        kinds.add(kind)
      at += len(line)
  if not starts:
    raise ConfigError(f"{files.path(file)} has no line", "path")
  return found.arrays() | {
    "starts": np.array(starts, np.int64),
    "sizes": np.array(sizes, np.uint32),
    "split_codes": np.array(codes if len(splits) > 1 else [], np.uint16),
    "splits": np.frombuffer("\n".join(splits).encode("utf-8", "surrogatepass"), np.uint8),
    "kinds": np.array(sorted(kinds)),
  }


def _checked(line, found):
  """(split or None, where its image is) of a line, whose label goes to those that were found; ValueError."""
  about = json_reading.parse_json(line)
  if not isinstance(about, dict):
    raise ValueError(f'{show(about)} is no JSON object; write {{"path": ..., "label": ...}}')
  if ("path" in about) == ("bytes" in about):
    raise ValueError(f"it has {'both' if 'path' in about else 'neither of'} 'path' and 'bytes'; give one of them")
  kind = "path" if "path" in about else "bytes"
  for key in (kind, "split"):
    if not isinstance(about.get(key, "a"), str) or not about.get(key, "a"):
      raise ValueError(f"{key!r} is {show(about[key])}; allowed: a text")
  if "label" not in about:
    raise ValueError("it has no 'label'; allowed: a number, a name or a list of them")
  found.add(about["label"])
  return about.get("split"), "bucket" if about.get("path", "").startswith(paths.BUCKET) else kind

"""Files: replaced whole or not at all, read as JSON within bounds, written as CSV, cached."""

import contextlib
import csv
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence

from vit_jax import disk
from vit_jax.schema import ConfigError

JSON_BYTES, JSON_DEPTH = 2**24, 64  # more than any JSON of ours has, or of the codes whose weights are read


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A path beside `path` to write to, which takes its place at the end.

  A reader, or a restart after a kill, sees the old file or the new one, never a part; what raises leaves the old one.
  """
  partial = path.with_name(f".{path.name}.partial")
  with disk.writing(path):
    try:
      yield partial
      with partial.open("rb") as file:
        os.fsync(file.fileno())
      os.replace(partial, path)
    finally:
      with contextlib.suppress(OSError):  # of what went wrong before, if anything
        partial.unlink()


def write_text(path: pathlib.Path, text: str) -> None:
  """Replaces a file by the text, see `replacing`."""
  with replacing(path) as partial:
    partial.write_text(text)


def parse_json(data: bytes):
  """The value of a JSON text in UTF-8; ValueError for what is none, or longer or deeper than the bounds above."""
  if len(data) > JSON_BYTES:
    raise ValueError(f"it is longer than {JSON_BYTES:,} bytes")
  text = data.decode("utf-8-sig")
  if text.count("[") + text.count("{") > JSON_DEPTH:  # Python would recurse, in C and then wherever the value goes
    depth, bare = 0, re.sub(r'"[^"]*"', "", re.sub(r"\\.", "", text))  # without strings
    for bracket in re.finditer(r"[\[\]{}]", bare):
      depth += 1 if bracket[0] in "[{" else -1
      if depth > JSON_DEPTH:
        raise ValueError(f"it is nested deeper than {JSON_DEPTH} brackets")
  return json.loads(text)


def read_json(path: pathlib.Path) -> dict | None:
  """The JSON object in a file; None where there is no such file, or an empty object."""
  try:
    if not path.exists():
      return None
    if not path.is_file():
      raise ValueError("it is no file")
    with path.open("rb") as file:
      values = parse_json(file.read(JSON_BYTES + 1))
  except (ValueError, OSError) as error:
    raise ConfigError(f"{path} cannot be read as JSON ({error}); mend or remove it") from error
  if not isinstance(values, dict):
    raise ConfigError(f"{path} holds no JSON object; mend or remove it")
  return values or None


def write_csv(path: pathlib.Path, rows: Iterable[Sequence]) -> None:
  """Replaces a file by rows of cells, numbers and texts; of these, names that come from elsewhere are `csv_name`s."""
  # Names of files need not be UTF-8; Python carries such bytes as surrogates, and they go out as they came.
  with replacing(path) as partial, partial.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
    plain, quoted = (csv.writer(file, lineterminator="\n", quoting=q) for q in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
    for row in rows:  # before Python 3.13 a cell with \r alone is not quoted
      (quoted if any(isinstance(cell, str) and "\r" in cell for cell in row) else plain).writerow(row)


def csv_name(name: str) -> str:
  """A name as a cell: with ' in front where a spreadsheet would compute with it, or where it begins with ' itself.

  Whoever reads it takes the first ' away.
  """
  return f"'{name}" if name[:1] in tuple("=+-@\t\r\n'＝＋－＠") else name


def cache(kind: str) -> pathlib.Path:
  """Where things are kept that can be computed again: $XDG_CACHE_HOME/vit_jax, else ~/.cache/vit_jax."""
  folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
  return folder / "vit_jax" / kind


def check_path(path: pathlib.Path, suffixes: Sequence[str] = (".csv", ".npz")) -> None:
  """ConfigError for a path that nothing can be written to, before the work starts."""
  if path.suffix.lower() not in suffixes:
    raise ConfigError(f"{path}: {path.suffix or 'no suffix'} is not a format; end the name in {' or '.join(suffixes)}")
  if path.is_dir():
    raise ConfigError(f"{path} is a folder; name a file")
  if not path.parent.is_dir():
    raise ConfigError(f"{path}: there is no folder {path.parent}; make it, or name a file in one that exists")

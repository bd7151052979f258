"""Collection of image files from files, folders at any depth, manifests, and paths on standard input."""

import collections
import difflib
import logging
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

from vit_jax.data.readers import locations
from vit_jax.data.readers.tree import EXTENSIONS
from vit_jax.schema import ConfigError, show
from vit_jax.schema.errors import format_names
from vit_jax.storage import paths
from vit_jax.storage.files import get_local_path, parse_json

MANIFESTS = (".jsonl", ".ndjson")
STDIN = "-"


class Inputs(NamedTuple):
  """The image files that a command line names.

  Attributes:
    files: paths in the order in which they were named. The files of a folder are sorted by name.
    ignored: number of files in folders that are not images, by extension.
  """

  files: list[str]
  ignored: dict[str, int]


def collect_files(words: Iterable[str], stdin: BinaryIO) -> Inputs:
  """Returns the image files that the words of a command line name.

  Each word is one of the following:

  - A file, with any name.
  - A folder. All images below it are included, except files and folders with names that start with a dot.
  - A manifest of JSON lines. Each line has a "path" relative to the folder of the manifest.
  - "-" for standard input, which contains one path per line. Each path is a file, a folder or a manifest.

  A file from standard input or from a manifest that does not exist is reported later, when it is read.

  Args:
    words: words of the command line.
    stdin: the standard input, in binary.

  Raises:
    ConfigError: if a word does not exist, a line of a manifest has no path, standard input is empty, or no image was
      found.
  """
  ignored, words, came = collections.Counter(), list(words), []
  _check_existence(words)
  files = [file for word in words for file in _expand_word(word, stdin, ignored, came)]
  if not files and not came and set(words) == {STDIN}:
    raise ConfigError(
      "PATH: standard input contains no path. Specify files, folders or a manifest (.jsonl), or pipe paths, one per "
      "line"
    )
  if not files:
    other = ", ".join(f"{count:,} {suffix or 'without extension'}" for suffix, count in sorted(ignored.items()))
    raise ConfigError(
      f"no image in {show(list(words))}" + (f", only other files ({other})" if other else "") + ". Specify image "
      f"files, or folders with {', '.join(EXTENSIONS)}"
    )
  return Inputs(files, dict(ignored))


def _expand_word(word: str, stdin: BinaryIO, ignored: collections.Counter[str], came: list[str]) -> Iterator[str]:
  """Yields the files that a word of the command line names. `came` collects the paths from `stdin`."""
  if word != STDIN:
    yield from _find_files(word, ignored, explicit=True)
    return
  for line in stdin:
    if text := os.fsdecode(line.rstrip(b"\r\n")):
      came.append(text)
      yield from _find_files(text, ignored, explicit=False)


def _find_files(text: str, ignored: collections.Counter[str], explicit: bool) -> Iterator[str]:
  """Yields the files at a path. With `explicit`, raises an error if a path in a bucket does not exist."""
  path = paths.expand_home(paths.parse_path(text, bare=True))
  if path.suffix.lower() in MANIFESTS:
    yield from _read_manifest(path)
  elif paths.is_in_bucket(path):
    yield from _list_bucket(path, ignored, explicit)
  elif path.is_dir():
    yield from _list_folder(path, ignored)
  else:
    yield str(path)


def _check_existence(words: Iterable[str]) -> None:
  """Raises an error for local files and folders that do not exist. Manifests are checked when they are read."""
  found = {word: paths.expand_home(paths.parse_path(word, bare=True)) for word in words if word != STDIN}
  absent = {word: path for word, path in found.items() if not (_is_checked_later(path) or os.path.lexists(path))}
  if not absent:
    return
  word, path = next(iter(absent.items()))
  near = sorted(path.parent.iterdir()) if path.parent.is_dir() else []
  readable = [other for other in near if other.suffix.lower() in (*EXTENSIONS, *MANIFESTS) or other.is_dir()]
  advice = _suggest_path(path.stem.lower(), {other.stem.lower(): str(other) for other in readable})
  others = f" Also missing: {format_names(map(show, list(absent)[1:]))}" if len(absent) > 1 else ""
  raise ConfigError(f"{show(word)} does not exist.{advice}{others}")


def _is_checked_later(path: pathlib.Path) -> bool:
  return path.suffix.lower() in MANIFESTS or paths.is_in_bucket(path)


def _suggest_path(name: str, near: Mapping[str, str]) -> str:
  """Returns a suggestion of a path with a similar stem. `near` maps stems in lower case to paths."""
  close = difflib.get_close_matches(name, near, n=1)
  if close:
    return f" Did you mean {show(near[close[0]])}?"
  return " Specify files, folders, a manifest, or - for paths on stdin."


def _list_folder(root: pathlib.Path, ignored: collections.Counter[str]) -> Iterator[str]:
  """Yields the images below a folder, sorted by name. Each folder is read once, even if links form a loop."""
  seen, waiting = set(), [str(root)]
  while waiting:
    entry = waiting.pop()
    if not os.path.isdir(entry):
      if entry.lower().endswith(EXTENSIONS):
        yield entry
      else:
        ignored[pathlib.PurePath(entry).suffix.lower()] += 1
      continue
    status = os.stat(entry)
    if (status.st_dev, status.st_ino) in seen:
      logging.warning("%s is a link to a folder that is already read and is skipped", show(entry))
      continue
    seen.add((status.st_dev, status.st_ino))
    with os.scandir(entry) as inside:
      names = sorted((one.name for one in inside if not one.name.startswith(".")), reverse=True)
    waiting += [os.path.join(entry, name) for name in names]


def _list_bucket(path: pathlib.Path, ignored: collections.Counter[str], explicit: bool) -> Iterator[str]:
  """Yields the object itself, or the images below a folder of a bucket, sorted by name."""
  if path.suffix.lower() in EXTENSIONS or locations.call_storage(path, path.is_file):
    yield str(path)
    return
  names = sorted(locations.call_storage(path, lambda: locations.BucketFolder.read_listing(path)).objects)
  if not names and explicit:
    raise ConfigError(f"{show(str(path))} does not exist in the bucket. Specify an object, or a folder of objects")
  for name in names:
    if any(part.startswith(".") for part in name.split("/")):
      continue
    if name.lower().endswith(EXTENSIONS):
      yield f"{path}/{name}"
    else:
      ignored[pathlib.PurePath(name).suffix.lower()] += 1


def _read_manifest(path: pathlib.Path) -> Iterator[str]:
  """Yields the files that the lines of a manifest name."""
  if not path.is_file():
    raise ConfigError(f"the manifest {show(str(path))} does not exist")
  with get_local_path(path).open("rb") as lines:
    for number, line in enumerate(lines, 1):
      if not line.strip():
        continue
      try:
        about = parse_json(line)
        if not isinstance(about, dict) or not isinstance(about.get("path"), str) or not about["path"].strip("\0 "):
          raise ValueError(f'{show(about)} has no path. Write {{"path": "a.jpg"}}')
      except ValueError as error:
        raise ConfigError(f"{path}, line {number:,}: {error}") from error
      yield locations.resolve_manifest_path(str(path), about["path"])

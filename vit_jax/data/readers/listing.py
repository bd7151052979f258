"""Files of many records: which there are below a path, which split each is of, and bytes of them."""

import concurrent.futures
import contextvars
import dataclasses
import fnmatch
import functools
import io
import os
import pathlib
import re
import threading
from collections.abc import Sequence

from vit_jax import paths
from vit_jax.data import local_files, sources
from vit_jax.data.readers import places
from vit_jax.schema import ConfigError, at, show
from vit_jax.schema.errors import some

DEPTH = 4  # of folders below the one that is named
OPEN = 256  # files of a disk that are open at a time; a process may have 1,024
ALTERNATIVES = 10**6  # of braces
STREAMED = 2**23  # bytes of a request for what is read on and on: it takes as long to begin as for 4 MB
_SPECIAL = re.compile(r"[*?\[{]")


@dataclasses.dataclass(frozen=True)
class Files:
  """Files below one folder, on a disk or in a bucket, in order of name; for many threads at once."""

  root: pathlib.Path
  names: tuple[str, ...]  # from the root on
  stamps: tuple[tuple, ...]  # (bytes, time of last change) of each

  @property
  def remote(self) -> bool:
    """Whether they are in a bucket."""
    return paths.in_bucket(self.root)

  def path(self, file: int) -> str:
    """The whole name of a file."""
    return f"{self.root}/{self.names[file]}"

  def size(self, file: int) -> int:
    """Bytes of a file."""
    return self.stamps[file][0]

  def read(self, file: int, first: int, stop: int) -> bytes:
    """Bytes `first` to `stop` of a file. OSError that names it, without an errno where it is shorter than that."""
    if self.remote:
      data = places.file_system().cat_file(self.path(file), start=first, end=stop)
    else:
      opened, parts, at = self._open(file), [], first
      while at < stop and (part := os.pread(opened.fileno(), stop - at, at)):
        parts.append(part)
        at += len(part)
      data = b"".join(parts)
    if len(data) != stop - first:
      raise OSError(f"{self.path(file)} ends before byte {stop:,}: it is shorter than it was")
    return data

  def stream(self, file: int, block: int) -> io.BufferedReader:
    """A file to be read from its beginning, of a disk so many bytes at a time, of a bucket STREAMED."""
    return io.BufferedReader(self.opened(file), STREAMED if self.remote else block)

  def opened(self, file: int) -> io.RawIOBase:
    """A file of which each read is one."""
    return _Stream(self, file)

  def split(self, file: int) -> str:
    """The split that a file is of, by its name."""
    return split_of(self.names[file])

  def chosen(self, numbers: Sequence[int]) -> "Files":
    """Some of the files."""
    return Files(self.root, tuple(self.names[i] for i in numbers), tuple(self.stamps[i] for i in numbers))

  def each(self, function) -> list:
    """function(file) of all files, of many at once; the first error ends it."""
    with concurrent.futures.ThreadPoolExecutor(places.ASKED if self.remote else 8) as pool:
      # Errors name the key of the config that is around here, which a thread would not know.
      waiting = [pool.submit(contextvars.copy_context().run, function, file) for file in range(len(self.names))]
      return [each.result() for each in waiting]

  @functools.cached_property
  def _open(self):
    """file -> the open file; one that is closed here stays open for the threads that read from it."""
    lock = threading.Lock()

    @functools.lru_cache(maxsize=OPEN)
    def opened(file):
      return open(self.path(file), "rb", buffering=0)

    def locked(file):
      with lock:
        return opened(file)

    return locked


class _Stream(io.RawIOBase):
  """A file of a list as a stream."""

  def __init__(self, files, file):
    self._files, self._file, self._size, self._at = files, file, files.size(file), 0

  def readable(self):
    return True

  def seekable(self):
    return True

  def seek(self, offset, whence=os.SEEK_SET):
    self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
    return self._at

  def tell(self):
    return self._at

  def readinto(self, buffer):
    stop = min(self._at + len(buffer), self._size)
    data = self._files.read(self._file, self._at, stop) if stop > self._at else b""
    buffer[: len(data)] = data
    self._at += len(data)
    return len(data)


def listed(path: str, suffixes: Sequence[str], what: str) -> Files:
  """The files that `path` stands for: a file, those below a folder, or of a pattern like train-{0000..1023}.tar.

  Args:
    path: also in a bucket.
    suffixes: of the files that count below a folder.
    what: the files are, for errors.
  """
  with at("path"):
    named = paths.expand(paths.parse(path, bare=True))
  if not path:
    raise ConfigError(f"no path; name a folder or a file of {what}", "path")
  pattern = bool(_SPECIAL.search(path)) and (paths.in_bucket(named) or not named.exists())
  root, rest = _fixed(str(named)) if pattern else (named, "")
  entries = places.reached(root, lambda: _entries(root))
  if "" in entries:  # it is a file
    root, entries = root.parent, {root.name: entries[""]}
  if pattern:
    entries = _matching(entries, rest, path)
  else:
    entries = {name: about for name, about in entries.items() if name.lower().endswith(tuple(suffixes))}
  if not entries:
    raise sources.AbsentError(f"no {what} ({', '.join(suffixes)}) at {show(path)}; name their folder or a file", "path")
  names = tuple(sorted(entries))
  if empty := [name for name in names if not entries[name][0]]:
    raise ConfigError(f"{root}/{empty[0]} is empty; remove it or bring it back", "path")
  return Files(root, names, tuple(entries[name] for name in names))


def split_of(name: str) -> str:
  """The split that the name of a file says: the last word of the file without numbers, else of its folder.

  "train" of train-00000-of-00002.parquet (Hugging Face's), imagenet1k-train-0000.tar (timm's) and train/0000.tar; also
  of a file of which no word is left.
  """
  for part in reversed(pathlib.PurePosixPath(name).parts):
    stem = re.sub(r"[-_.]?\d+-of-\d+(-[0-9a-f]+)?$", "", re.sub(r"(\.[A-Za-z]+)+$", "", part))
    if word := re.split(r"[-_.]", re.sub(r"[-_.]*\d+$", "", stem))[-1]:
      return word
  return "train"


def by_split(files: Files) -> dict[str, Files]:
  """The files of each split; those of one split must be in one folder."""
  by_name = {}
  for file in range(len(files.names)):
    by_name.setdefault(files.split(file), []).append(file)
  for split, numbers in by_name.items():
    folders = sorted({os.path.dirname(files.names[i]) for i in numbers})
    if len(folders) > 1:
      raise ConfigError(
        f"files of split {split!r} are in several folders of {files.root}: {some(folders, 5)}; name one of them", "path"
      )
  return {split: files.chosen(numbers) for split, numbers in by_name.items()}


def alternatives(pattern: str) -> list[str]:
  """All that braces stand for: {a,b}, {0000..1023}; ConfigError for too many."""
  match = re.search(r"\{([^{}]*)\}", pattern)
  if not match:
    return [pattern]
  before, after = pattern[: match.start()], pattern[match.end() :]
  if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", match[1]):
    low, high = map(int, numbers.groups())
    if not 0 <= high - low < ALTERNATIVES:
      raise ConfigError(f"{show(match[0])} in a path is no range; allowed: {{0000..1023}}, up to a million", "path")
    words = [f"{number:0{len(numbers[1])}d}" for number in range(low, high + 1)]
  else:
    words = match[1].split(",")
  rests = alternatives(after)
  if len(words) * len(rests) > ALTERNATIVES:
    raise ConfigError(f"{show(pattern)} stands for more than a million files", "path")
  return [before + word + rest for word in words for rest in rests]


def _fixed(pattern):
  """(the folder above the first special character, the pattern from there on)."""
  start = pattern.rindex("/", 0, _SPECIAL.search(pattern).start()) if "/" in pattern.split("{")[0] else -1
  folder = pattern[:start] if start > 0 else "/" if start == 0 else "."
  return paths.parse(folder, bare=True), pattern[start + 1 :]


def _matching(entries, pattern, path):
  """The entries that a pattern stands for; each alternative without a * must be there."""
  chosen = {}
  for one in alternatives(pattern):
    if _SPECIAL.search(one):
      parts = one.split("/")
      fitting = [name for name in entries if _fits(name.split("/"), parts)]
    else:
      fitting = [one] if one in entries else []
      if not fitting:
        raise sources.AbsentError(f"there is no {show(one)}, one of {show(path)}; bring it back", "path")
    chosen |= {name: entries[name] for name in fitting}
  return chosen


def _fits(words, patterns):
  return len(words) == len(patterns) and all(map(fnmatch.fnmatchcase, words, patterns))


def _entries(root):
  """{name: (bytes, time of last change)} of files below a folder; the name of a file itself is ""."""
  if paths.in_bucket(root):
    start = str(root).removeprefix(paths.BUCKET)
    everything = places.file_system().find(str(root), detail=True)
    return {name.removeprefix(start).lstrip("/"): (e["size"], str(e["updated"])) for name, e in everything.items()}
  if root.is_file():
    return {"": local_files.stamp(root)}
  if not root.is_dir():
    raise sources.AbsentError(f"nothing is at {show(str(root))}; bring it back, or name what is there", "path")
  disk, names, folders = places.Disk(root), [], [""]
  for _ in range(DEPTH):
    below = [(folder, *entry) for folder in folders for entry in disk.entries(folder) if not entry[0].startswith(".")]
    names += [f"{folder}{name}" for folder, name, is_folder in below if not is_folder]
    folders = [f"{folder}{name}/" for folder, name, is_folder in below if is_folder]
  return {name: about for name, about in zip(names, disk.stamps(names), strict=True) if about[0] is not None}

"""The content of an image folder: images, other files, directories, and links that lead back to a parent directory."""

import collections
import dataclasses
import os
from collections.abc import Iterable
from typing import NamedTuple

from vit_jax.data.readers import locations
from vit_jax.schema import ConfigError, escape_line, format_amount

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SHOWN = 10  # number of extensions of ignored files that are reported


class FolderEntries(NamedTuple):
  """Sorted names of the entries of a directory, without hidden ones.

  Attributes:
    images: files with the extension of an image.
    others: other files.
    folders: directories.
  """

  images: list[str]
  others: list[str]
  folders: list[str]


@dataclasses.dataclass(frozen=True)
class FolderTree:
  """An image folder, which lists each of its directories only once.

  Attributes:
    root: the directory on a disk or in a bucket.
    listed: entries of the directories that were listed so far.
  """

  root: locations.DiskFolder | locations.BucketFolder
  listed: dict[str, FolderEntries] = dataclasses.field(default_factory=dict, compare=False, repr=False)

  def list_entries(self, folder: str = "") -> FolderEntries:
    """Returns the entries of a directory.

    Args:
      folder: path relative to the root.
    """
    if folder not in self.listed:
      names = sorted(entry for entry in self.root.list_entries(folder) if not entry[0].startswith("."))
      # Every file with the extension of an image is an image. A broken link or an unreadable file raises an
      # error when it is read.
      self.listed[folder] = FolderEntries(
        [name for name, is_folder in names if is_image(name) and not is_folder],
        [name for name, is_folder in names if not is_image(name) and not is_folder],
        [name for name, is_folder in names if is_folder],
      )
    return self.listed[folder]

  def folders(self, folder: str = "") -> list[str]:
    """Returns the names of the directories in a directory.

    Args:
      folder: path relative to the root.

    Raises:
      ConfigError: if one of them is a link to a directory that contains it.
    """
    names = self.list_entries(folder).folders
    for name in names:
      inner = os.path.join(folder, name)
      if self.root.contains_itself(inner):
        raise ConfigError(
          f"{f'{self.root.root}/{inner}'!r} is a link to a folder that contains it. Remove the link",
          "path",
        )
    return names

  def example(self, folder: str, deep: int) -> str | None:
    """Returns the first image in a directory or in its subdirectories, or None if they contain no image.

    Args:
      folder: path relative to the root.
      deep: number of levels of subdirectories to search.
    """
    entries = self.list_entries(folder)
    if entries.images:
      return f"{folder}/{entries.images[0]}"
    inner = [f"{folder}/{name}" for name in entries.folders] if deep else []
    inside = (self.example(each, deep - 1) for each in inner if not self.root.contains_itself(each))
    return next(filter(None, inside), None)

  def about(self, classes: Iterable[str], above: Iterable[str]) -> str:
    """Returns a one-line summary of the used and ignored files by extension.

    Args:
      classes: directories with used files.
      above: directories that contain the directories of classes.
    """
    used, ignored, inner = collections.Counter(), collections.Counter(), []
    for folder in classes:
      entries = self.list_entries(folder)
      used.update(map(extension, entries.images))
      ignored.update(map(extension, entries.others))
      inner += [f"{folder}/{name}" for name in entries.folders]
    loose = [name for folder in above for name in self.list_entries(folder).images]
    ignored.update(extension(name) for folder in above for name in self.list_entries(folder).others)
    words = format_counts(ignored, SHOWN)
    if loose:
      words.append(f"{format_amount(len(loose), 'image')} outside of classes, as {loose[0]!r}")
    if inner:
      words.append(f"{format_amount(len(inner), 'folder')} inside of classes, as {inner[0]!r}")
    return (
      f"{str(self.root.root)!r}: {format_amount(used.total(), 'image')}, {', '.join(format_counts(used, SHOWN))}; "
      f"ignored: {', '.join(words) or 'nothing'}"
    )


def is_image(name: str) -> bool:
  """Returns whether a file has the extension of an image."""
  return name.lower().endswith(EXTENSIONS)


def extension(name: str) -> str:
  """Returns the extension of a file in lower case, or "" without an extension."""
  return os.path.splitext(name)[1].lower()


def format_counts(extensions: collections.Counter[str], shown: int) -> list[str]:
  """Returns descriptions such as ["1,200 .jpg", "3 .heic"], the most frequent first.

  Args:
    extensions: number of files of each extension.
    shown: largest number of extensions. The files of all others are counted together.
  """
  known = extensions.most_common()
  words = [f"{count:,} {escape_line(kind) or 'without an extension'}" for kind, count in known[:shown]]
  rest = sum(count for _, count in known[shown:])
  return words + [format_amount(rest, "other")] * bool(rest)

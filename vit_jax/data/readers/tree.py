"""What is in the folders of an image folder: images, other files, folders; and links that lead back."""

import collections
import dataclasses
import os
from collections.abc import Iterable
from typing import NamedTuple

from vit_jax.data.readers import places
from vit_jax.schema import ConfigError, amount

EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
SHOWN = 10  # extensions of ignored files


class Entries(NamedTuple):
  """Names in one folder, in order; what is hidden is left out."""

  images: list[str]
  others: list[str]  # files that are not called images
  folders: list[str]


@dataclasses.dataclass(frozen=True)
class Tree:
  """An image folder; each folder in it is listed once."""

  root: places.Disk | places.Bucket
  listed: dict[str, Entries] = dataclasses.field(default_factory=dict, compare=False, repr=False)

  def entries(self, folder: str = "") -> Entries:
    """What a folder has, given from the root on."""
    if folder not in self.listed:
      names = sorted(entry for entry in self.root.entries(folder) if not entry[0].startswith("."))
      # Anything that is called an image is one: a dangling link or an unreadable file is an error when it is read.
      self.listed[folder] = Entries(
        [name for name, is_folder in names if is_image(name) and not is_folder],
        [name for name, is_folder in names if not is_image(name) and not is_folder],
        [name for name, is_folder in names if is_folder],
      )
    return self.listed[folder]

  def folders(self, folder: str = "") -> list[str]:
    """Those in a folder; ConfigError for one that contains itself."""
    names = self.entries(folder).folders
    for name in names:
      inner = os.path.join(folder, name)
      if self.root.contains_itself(inner):
        raise ConfigError(
          f"{f'{self.root.root}/{inner}'!r} is a link to a folder that contains it, so that it has no end; remove it",
          "path",
        )
    return names

  def example(self, folder: str, deep: int) -> str | None:
    """The first image in a folder, or in those inside of it, so many levels down; None without any."""
    entries = self.entries(folder)
    if entries.images:
      return f"{folder}/{entries.images[0]}"
    inner = [f"{folder}/{name}" for name in entries.folders] if deep else []
    inside = (self.example(each, deep - 1) for each in inner if not self.root.contains_itself(each))
    return next(filter(None, inside), None)

  def about(self, classes: Iterable[str], above: Iterable[str]) -> str:
    """How many files of each extension are used, those in the folders of `classes`, and what is ignored, on a line.

    `above`: the folders that these are in.
    """
    used, ignored, inner = collections.Counter(), collections.Counter(), []
    for folder in classes:
      entries = self.entries(folder)
      used.update(map(extension, entries.images))
      ignored.update(map(extension, entries.others))
      inner += [f"{folder}/{name}" for name in entries.folders]
    loose = [name for folder in above for name in self.entries(folder).images]
    ignored.update(extension(name) for folder in above for name in self.entries(folder).others)
    words = counted(ignored, SHOWN)
    if loose:
      words.append(f"{amount(len(loose), 'image')} outside of classes, as {loose[0]!r}")
    if inner:
      words.append(f"{amount(len(inner), 'folder')} inside of classes, as {inner[0]!r}")
    return (
      f"{str(self.root.root)!r}: {amount(used.total(), 'image')}, {', '.join(counted(used, SHOWN))}; "
      f"ignored: {', '.join(words) or 'nothing'}"
    )


def is_image(name: str) -> bool:
  """Whether a file is called an image."""
  return name.lower().endswith(EXTENSIONS)


def extension(name: str) -> str:
  """Of a file, in small letters; "" without one."""
  return os.path.splitext(name)[1].lower()


def counted(extensions: collections.Counter, shown: int) -> list[str]:
  """["1,200 .jpg", "3 .heic"], the most frequent first; of more than `shown` the others as one."""
  known = extensions.most_common()
  words = [f"{count:,} {ascii(kind)[1:-1] or 'without an extension'}" for kind, count in known[:shown]]
  rest = sum(count for _, count in known[shown:])
  return words + [amount(rest, "other")] * bool(rest)

"""Image folders as sources: which files are records, their classes, splits and order."""

import hashlib
import os
import pathlib

from vit_jax import schema
from vit_jax.data import sources

EXTENSIONS = (".jpg", ".jpeg", ".png")


def open_folder(
  path: str | None, spec: str, peers: tuple[str, ...], holdout: float, split_seed: int, where: str
) -> sources.Source:
  """A split of an image folder, `<split>/<class>/*.jpg` or `<class>/*.jpg`; classes are numbered in order of name.

  Files are drawn by hashes of (split_seed, class, file), in whatever order the file system lists them. Without split
  folders, each class gives the share `holdout` of its files to "test": those with the smallest hashes. The records of a
  split are in such an order that any slice of it is a stratified sample. `peers` are splits with the same classes.
  """
  if not path:
    raise schema.ConfigError("config.data.path: missing; a folder with <split>/<class>/*.jpg or <class>/*.jpg")
  root = pathlib.Path(path).expanduser()
  if not root.is_dir():
    raise schema.ConfigError(f"config.data.path: no folder {str(root)!r}")
  top = _folders(root)
  holding = [f for f in top if _images(root / f)]
  nested = [f for f in top if _folders(root / f)]
  if not nested and not holding:
    raise schema.ConfigError(
      f"config.data.path: no images ({', '.join(EXTENSIONS)}) in {str(root)!r}/<class> or /<split>/<class>"
    )
  if nested and holding:
    raise schema.ConfigError(
      f"config.data.path: {str(root)!r} mixes layouts: {holding[0]!r} holds images, {nested[0]!r} holds folders; "
      "use <split>/<class>/*.jpg or <class>/*.jpg"
    )
  if holding:
    classes, drawn = top, {"train": [], "test": []}
    for name in classes:
      found = _drawn(split_seed, root, name)
      held = round(len(found) * holdout)
      drawn["test"].append(found[:held])
      drawn["train"].append(found[held:])
  else:
    drawn, classes = _split_folders(root, top, (spec, *peers), split_seed)
  files = {split: _spread(found) for split, found in drawn.items()}
  parts = sources.select(spec, {split: len(records) for split, records in files.items()}, where)

  def stamps():
    for split, numbers in parts:
      for file, _ in (files[split][i] for i in numbers):
        try:
          yield file, *sources.stamp(root / file)
        except OSError:  # it shows when it is read
          yield file, None

  return sources.assemble(
    "folder",
    spec,
    classes,
    parts,
    lambda split, i: ((root / files[split][i][0]).read_bytes(), files[split][i][1]),
    lambda split, i: f" (file {str(root / files[split][i][0])!r})",
    lambda split, i: files[split][i][0],
    lambda: sources.digest(classes, stamps()),
    read_label=lambda split, i: files[split][i][1],
  )


def _split_folders(root, splits, specs, seed):
  """What is drawn of the splits that `specs` name, and the classes, which all of these splits must share."""
  names = sources.split_names(specs)
  used = [split for split in splits if split in names or "all" in names]
  classes = {split: _folders(root / split) for split in used}
  for split in used[1:]:
    if classes[split] != classes[used[0]]:
      odd = sorted(set(classes[split]) ^ set(classes[used[0]]))
      raise schema.ConfigError(
        f"config.data.path: splits {used[0]!r} and {split!r} of {str(root)!r} differ in classes {odd[:5]}"
      )
  drawn = {split: [] for split in splits}
  for split in used:
    drawn[split] = [_drawn(seed, root, name, f"{split}/") for name in classes[split]]
  return drawn, classes[used[0]] if used else []


def _drawn(seed, root, name, split=""):
  """(hash, file) of a class's images, in order of the hash."""

  def draw(file):
    return hashlib.blake2b(f"{seed}/{name}/{file}".encode("utf-8", "surrogateescape")).digest()

  folder = f"{split}{name}"
  images = _require(_images(root / folder), root / folder)
  return sorted((draw(file), f"{folder}/{file}") for file in images)


def _spread(drawn):
  """Records (file, label) of a split, in which the files of each class, as drawn, are evenly spaced."""
  placed = [
    ((rank + 0.5) / len(files), draw, file, label)
    for label, files in enumerate(drawn)
    for rank, (draw, file) in enumerate(files)
  ]
  return [(file, label) for _, _, file, label in sorted(placed)]


def _require(files, folder):
  if not files:
    raise schema.ConfigError(f"config.data.path: class folder {str(folder)!r} holds no image ({', '.join(EXTENSIONS)})")
  return files


def _folders(folder):
  with os.scandir(folder) as entries:
    return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())


def _images(folder):
  # Anything that is called an image is one: a dangling link or an unreadable file is an error when it is read.
  with os.scandir(folder) as entries:
    return sorted(
      e.name for e in entries if e.name.lower().endswith(EXTENSIONS) and not e.name.startswith(".") and not e.is_dir()
    )

"""The layout of an image folder: detection of directories of classes or splits, and advice for wrong paths."""

import collections
import os
import pathlib
from collections.abc import Container, Sequence

from vit_jax.data import sources
from vit_jax.data.readers import locations
from vit_jax.data.readers.tree import EXTENSIONS, FolderTree, extension, format_counts
from vit_jax.schema import ConfigError, format_amount, get_current_key
from vit_jax.schema.texts import format_flag

TRAINING, TESTING = "train", "test"  # default names of splits
VALIDATION = ("val", "valid", "validation", "dev")  # the first of these directories contains the validation images
DEEP, LOOKED = 3, 1000  # for advice in errors: number of levels and of directories to search for a better path


def contains_classes(tree: FolderTree, top: Sequence[str]) -> bool:
  """Returns whether the directories of the root are classes, because they contain images. Otherwise they are splits.

  Args:
    tree: the root.
    top: names of the directories in the root.

  Raises:
    ConfigError: if the expected directories contain no images, or if the layouts are mixed.
  """
  holding = [folder for folder in top if tree.list_entries(folder).images]
  nested = [folder for folder in top if tree.folders(folder)]
  where, above = repr(str(tree.root.root)), tree.root.root.parent
  if not nested and not holding:
    others = collections.Counter(extension(name) for folder in ("", *top) for name in tree.list_entries(folder).others)
    advice = ""
    if tree.list_entries().images:
      advice = f". The folder itself contains images. If it is a class, use {str(above)!r}"
    elif others:
      advice = f", but {', '.join(format_counts(others, 5))}. Convert photographs in other formats to .jpg"
    raise ConfigError(f"no images ({', '.join(EXTENSIONS)}) in {where}/<class> or /<split>/<class>{advice}", "path")
  loose = tree.list_entries().images
  if len(holding) == 1 and not nested and loose:
    own = pathlib.PurePath(str(tree.root.root)).name
    raise ConfigError(
      f"{where} holds {format_amount(len(loose), 'image')} itself, as {loose[0]!r}, and its only class would be "
      f"{holding[0]!r}. If {own!r} is a class, use {str(above)!r}. Otherwise move these images to another folder",
      "path",
    )
  if nested and holding:
    flat, deep = tree.example(holding[0], 0), tree.example(f"{nested[0]}/{tree.folders(nested[0])[0]}", 1)
    raise ConfigError(
      f"{where} mixes layouts: {holding[0]!r} contains images, such as {flat!r}, and {nested[0]!r} contains folders, "
      "such as "
      f"{deep or f'{nested[0]}/{tree.folders(nested[0])[0]}'!r}. Move the deeper folders, so that all "
      "images are in <class>/*.jpg, or all images are in <split>/<class>/*.jpg",
      "path",
    )
  return bool(holding)


def describe_unused_splits(root: locations.Folder, classes: Sequence[str]) -> str:
  """Returns a note about unused directories of splits next to `train`, or "" without such directories.

  Args:
    root: the directory of classes. In a bucket, other splits are not searched, because each search is a request.
    classes: names of the directories in it. A split has a directory with one of these names.
  """
  if not isinstance(root, locations.DiskFolder):
    return ""
  path = pathlib.Path(os.path.abspath(root.root))
  if path.name != TRAINING:
    return ""
  found = [
    name for name in (*VALIDATION, TESTING) if any(os.path.isdir(path.parent / name / label) for label in classes)
  ]
  if not found:
    return ""
  unused = [name for name in (choose_validation(found), TESTING) if name in found]
  flags = format_flag(get_current_key("path"), str(path.parent))
  if TESTING not in found:
    flags += f" {format_flag(get_current_key('test'), unused[0])}"
  named = ", ".join(map(repr, unused))
  return f"; not used: {named} in {str(path.parent)!r}. To use all splits, set {flags} and a new --workdir"


def choose_validation(folders: Container[str]) -> str | None:
  """Returns the name of the directory with the validation images, or None if there is none."""
  return next((name for name in VALIDATION if name in folders), None)


def suggest_subdirectory(tree: FolderTree, top: Sequence[str], splits: sources.Splits) -> str:
  """Returns advice to use a subdirectory, if exactly one directory on the highest possible level has splits or classes.

  Args:
    tree: the root.
    top: names of the directories in the root. They do not contain a split that the config names.
    splits: split strings of the config.

  Returns:
    The end of a message, which starts with a space. "" if no directory fits, or several fit.
  """
  wanted = sources.parse_split_names(splits.specs().values())
  level, looked = top, 0
  for _ in range(DEEP):
    found, below = [], []
    for name in level[: LOOKED - looked]:
      inner, path = tree.folders(name), f"{tree.root.root}/{name}"
      below += [f"{name}/{each}" for each in inner]
      if parts := [part for part in inner if part in wanted and tree.folders(f"{name}/{part}")]:
        found.append(
          (True, f" {path!r} has {', '.join(map(repr, parts))}: name that folder as {get_current_key('path')}")
        )
      elif image := next(filter(None, (tree.example(f"{name}/{each}", 0) for each in inner)), None):
        label = image.split("/")[-2]
        words = f" If {image!r} is an image of the class {label!r}, name {path!r} as {get_current_key('path')}"
        found.append((False, words))
    if found:
      surest = [words for has_splits, words in found if has_splits] or [words for _, words in found]
      return surest[0] if len(surest) == 1 else ""
    level, looked = below, looked + len(level)
  return ""


def list_images(tree: FolderTree, folder: str) -> list[str]:
  """Returns the names of the images of a class directory.

  Args:
    tree: the root.
    folder: path of the class directory, relative to the root.

  Raises:
    ConfigError: if the directory contains no images. The message contains the likely reason.
  """
  images, others, inner = tree.list_entries(folder)
  if images:
    return images
  message = f"class folder {f'{tree.root.root}/{folder}'!r} contains no image ({', '.join(EXTENSIONS)})"
  if not others and not inner:
    raise ConfigError(f"{message}. Remove the empty folder, or move images into it", "path")
  if others:
    message += f", but {', '.join(format_counts(collections.Counter(map(extension, others)), 5))}"
  if inner and (deep := tree.example(folder, 2)):
    above = f"{tree.root.root}/{folder.rpartition('/')[0] or folder}"
    message += f"; some images are in deeper folders, such as {deep!r}. Move them up"
    message += f", or set the path to {above!r} if all classes are at that depth"
  raise ConfigError(message, "path")

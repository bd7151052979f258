"""The reader of image folders: it finds the files, classes and splits, and determines the order of the records."""

import contextlib
import dataclasses
import difflib
import hashlib
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

from vit_jax.data import class_names, membership, sources
from vit_jax.data.class_names import NameOrder
from vit_jax.data.readers import folder_layout, locations, overlaps
from vit_jax.data.readers.tree import FolderTree
from vit_jax.data.sources import Fingerprint
from vit_jax.schema import ConfigError, Fraction, Range, enter_key, get_current_key, show
from vit_jax.schema.errors import AbsentError
from vit_jax.storage import paths

SHARE = 0.1  # default share of the training images of each class that a run holds out for validation
Drawn = dict[str, list[list[tuple[bytes, str]]]]  # {split: files of each class}
FEWEST = 3  # smallest number of files of a class that contributes to validation


def folder(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  path: str,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  holdout: Fraction = 0.2,
  validation: Annotated[float, Range(0, 0.5)] = 0.0,
  split_seed: Annotated[int, Range(0, 2**31 - 1)] = 0,
  class_order: class_names.NameOrder = "numeric",
) -> sources.Source:
  """Opens a split of the image folder `path`, which contains `<split>/<class>/*.jpg` or `<class>/*.jpg`.

  Names of class directories are compared in Unicode normalization form NFC.

  Files are drawn by hashes of (split_seed, class, file). The draw depends neither on the file system's order of files
  nor on the seed of the run. Records are ordered so that any slice of a split is a stratified sample. All splits that
  the config names must have the same classes.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    split: "train", "val", "test" or a split string.
    path: directory on a disk or in a bucket.
    train: split string for training.
    val: split string for validation. Default: a directory called val, valid, validation or dev, if `validation` is
      above 0.
    test: split string for testing.
    holdout: share of the files of each class that becomes "test", if `path` has no directories of splits.
    validation: share of the training files of each class that becomes "val". It is used if `val` is not set and `path`
      has no directory of validation images. A class of three files or more contributes at least one file and keeps at
      least one. Smaller classes contribute no files. Runs on a folder use 0.1 by default. 0: no validation images.
    split_seed: seed of the draws.
    class_order: order of the classes. "numeric" sorts numbers by value. "text" sorts "10" before "2".

  Raises:
    AbsentError: if `path` does not exist or is empty.
    ConfigError: if the layout is mixed, if another split has other classes, or if no file can be held out.
    SplitError: if the split does not exist.

  Example:
    import pathlib
    import tempfile

    import cv2
    import numpy as np
    from vit_jax.data import dataset_row
    from vit_jax.data.readers import folder

    with tempfile.TemporaryDirectory() as path:
      for file in ("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"):
        pathlib.Path(path, file).parent.mkdir(exist_ok=True)
        cv2.imwrite(f"{path}/{file}", np.zeros((32, 32, 3), np.uint8))
      source = folder.folder("pets", dataset_row.DatasetRow(folder.folder), "train", path=path, holdout=0.5)
    source.classes, len(source)  # ("cat", "dog"), 2
  """
  tree = FolderTree(_open_directory(path))
  found = _list_files(tree, sources.Splits(train, val, test), split, holdout, validation, split_seed, class_order)
  root, splits, files = tree.root, found.splits, found.files
  notes = overlaps.find_file_overlaps(root, splits, files) if split == "train" else ()
  parts = _select_records(found, split)

  def list_used_records() -> list[tuple[str, int]]:
    return [record for part, numbers in parts for record in files[part][numbers.start : numbers.stop]]

  def list_used_files() -> list[str]:
    return [file for file, _ in list_used_records()]

  def fingerprint() -> Fingerprint:
    records, digest = list_used_records(), sources.digest
    names = [file for file, _ in records]
    sizes, times = zip(*root.read_stamps(names), strict=True)
    return sources.Fingerprint(digest(records), digest(sorted(names)), digest(sizes), digest(times))

  source = sources.assemble(
    name,
    splits.spec(split),
    found.classes,
    parts,
    lambda part, i: (root.read(files[part][i][0]), files[part][i][1]),
    lambda part, i: f" (file {f'{root.root}/{files[part][i][0]}'!r})",
    lambda part, i: files[part][i][0],
    fingerprint,
    row.labels,
    read_label=lambda part, i: files[part][i][1],
    remote=isinstance(root, locations.BucketFolder),
  )
  source = dataclasses.replace(
    source,
    files=lambda: root.list_local_paths(list_used_files()),
    objects=lambda: root.read_versions(list_used_files()),
    membership=membership.create_membership(
      splits,
      lambda: {part: [file for file, _ in records] for part, records in files.items()},
      lambda file: _hash_file(split_seed, file).hex()[: membership.DIGITS],
    ),
  )
  return sources.add_notes(source, found.note, *notes)


class _Listing(NamedTuple):
  """The files of all splits of an image folder.

  Attributes:
    splits: split strings of the config. `val` is set if there is a folder of validation images.
    files: (path, label) of the records of each split.
    classes: names of the classes.
    note: description of the files.
    advice: end of the error message if a split does not exist, with the path to use instead.
  """

  splits: sources.Splits
  files: dict[str, list[tuple[str, int]]]
  classes: tuple[str, ...]
  note: str
  advice: str


def _list_files(
  tree: FolderTree,
  splits: sources.Splits,
  split: str,
  holdout: float,
  validation: float,
  seed: int,
  order: NameOrder,
) -> _Listing:
  """Lists the files of an image folder, and draws the files of splits that have no folder."""
  top = tree.folders()
  if folder_layout.contains_classes(tree, top):
    folders = {"": _find_class_folders(tree, "", order)}
    drawn, above, advice = _hold_out(tree, folders[""].values(), holdout, seed), [], ""
  else:
    if validation and splits.val is None:
      splits = dataclasses.replace(splits, val=folder_layout.choose_validation(top))
    folders = _find_split_folders(tree, top, (splits.spec(split), *splits.specs().values()), order)
    drawn = {part: [] for part in top} | {
      part: [_sort_by_hash(seed, tree, name, f"{part}/") for name in named.values()] for part, named in folders.items()
    }
    above = [part for part in drawn if drawn[part]]
    advice = "" if above else folder_layout.suggest_subdirectory(tree, top, splits)
  of_classes = [f"{part}/{name}" if part else name for part, named in folders.items() for name in named.values()]
  note = tree.about(of_classes or top, ("", *above))
  used = sources.parse_split_names([splits.spec(split)])
  if "" in folders and "all" not in used and (held := sum(map(len, drawn["test"]))):
    count = held + sum(map(len, drawn["train"]))
    note += f"; held out for testing as 'test': {held:,} of the {count:,} images (holdout={holdout:g})"
    note += folder_layout.describe_unused_splits(tree.root, top)
  absent = sources.parse_split_names([splits.train]) - drawn.keys()  # reported later, with the right directory
  if validation and splits.val is None and not absent:
    drawn, held = _split_validation(drawn, splits.train, validation)
    note += f"; held out for validation as 'val': {held:,} of the {splits.train} images (validation={validation:g})"
  files = {part: _interleave_classes(images) for part, images in drawn.items()}
  return _Listing(splits, files, tuple(next(iter(folders.values()), ())), note, advice)


def _select_records(found: _Listing, split: str) -> list[tuple[str, range]]:
  """Selects the records of a split. The SplitError for a missing split contains advice."""
  sizes = {part: len(records) for part, records in found.files.items()}
  try:
    return found.splits.select(split, sizes)
  except sources.SplitError as error:
    advice, names = found.advice, sources.parse_split_names([found.splits.spec("val")])
    if not advice and split == "val" and found.splits.train in sizes and not names <= sizes.keys():
      advice = (
        f" By default, a run holds out 'val' from 'train': remove {get_current_key('val')}, or set the share with "
        f"{get_current_key('validation')}={SHARE:g}"
        if found.splits.val
        else f" To hold out 'val' from 'train', set {get_current_key('validation')}={SHARE:g}"
      )
    if not advice:
      raise
    key = split if split in ("train", "val", "test") else ""
    # If the path is too high, its folders are not splits, so a list of them would mislead.
    message = error.message.partition(" Allowed: ")[0] if found.advice else error.message
    raise sources.SplitError(f"{message.removesuffix('.')}.{advice}", key) from None


def _open_directory(path: str) -> locations.DiskFolder | locations.BucketFolder:
  """Opens the directory `path`."""
  with enter_key("path"):
    root = paths.expand_home(paths.parse_path(path, bare=True))
  known = "<split>/<class>/*.jpg or <class>/*.jpg"
  if paths.is_in_bucket(root):
    bucket = locations.call_storage(root, lambda: locations.BucketFolder.read_listing(root))
    if not bucket.objects:
      raise AbsentError(f"{path!r} is empty. Copy images to {known}", "path")
    return bucket
  if path and not root.exists():
    whole = f" ({show(str(root))})" if path.startswith("~") else ""
    folders = []
    with contextlib.suppress(OSError):
      folders = [entry.name for entry in root.parent.iterdir() if entry.is_dir()]
    similar = difflib.get_close_matches(root.name, folders, n=1)
    advice = f" Did you mean {str(root.parent / similar[0])!r}?" if similar else ""
    raise AbsentError(f"no folder {path!r}{whole}.{advice} Name an existing folder with {known}", "path")
  if path and (root / "dataset_info.json").exists():
    raise ConfigError(f"{path!r} is a prepared dataset. Set config.data.name=tfds to read it", "path")
  if not path or not root.is_dir():
    kind = f"{path!r} is a file, not a folder" if path else f"no folder {path!r}"
    raise ConfigError(f"{kind}. Name a folder with {known}", "path")
  return locations.DiskFolder(root)


def _hold_out(tree: FolderTree, classes: Iterable[str], holdout: float, seed: int) -> Drawn:
  """Divides the files of each class into "test", with the share `holdout`, and "train"."""
  drawn = {"train": [], "test": []}
  for label in classes:
    images = _sort_by_hash(seed, tree, label)
    held = round(len(images) * holdout)
    drawn["test"].append(images[:held])
    drawn["train"].append(images[held:])
  return drawn


def _split_validation(drawn: Drawn, train: str, share: float) -> tuple[Drawn, int]:
  """Moves a share of each class of `train` to "val".

  Returns the files of each split, and the number of files in "val".
  """
  if train not in drawn:
    raise ConfigError(
      f"images can be held out only from a whole split, but `train` is {train!r}. Set {get_current_key('val')} to a "
      f"split, or {get_current_key('validation')}=0",
      "validation",
    )
  counts = [max(1, round(len(images) * share)) if len(images) >= FEWEST else 0 for images in drawn[train]]
  if drawn[train] and not any(counts):
    raise ConfigError(
      f"no class of {train!r} has {FEWEST} images, so validation images cannot be held out. Set "
      f"{get_current_key('validation')}=0, and do not choose settings by the test images",
      "validation",
    )
  pairs = list(zip(drawn[train], counts, strict=True))
  parts = {"val": [images[:count] for images, count in pairs], train: [images[count:] for images, count in pairs]}
  return drawn | parts, sum(counts)


def _find_split_folders(
  tree: FolderTree, splits: Sequence[str], specs: Sequence[str], order: NameOrder
) -> dict[str, dict[str, str]]:
  """Returns {split: {class: its directory}} of the splits in `specs`, which must have equal classes."""
  names = sources.parse_split_names(specs)
  used = [split for split in splits if split in names or "all" in names]
  folders = {split: _find_class_folders(tree, split, order) for split in used}
  for split in used[1:]:
    if odd := class_names.find_differing(folders[used[0]], folders[split]):
      raise ConfigError(
        f"splits {used[0]!r} and {split!r} of {str(tree.root.root)!r} differ in classes {odd[:5]}", "path"
      )
  return folders


def _find_class_folders(tree: FolderTree, split: str, order: NameOrder) -> dict[str, str]:
  """Returns {class: its directory} of a split, in class order. Raises ConfigError if a class has two directories."""
  folders = {}
  for name in tree.folders(split):
    other = folders.setdefault(class_names.normalise_name(name), name)
    if other != name:
      raise ConfigError(
        f"folders {other!a} and {name!a} in {str(tree.root.root / split)!r} have one name in two Unicode forms. Move "
        "the images of one folder into the other",
        "path",
      )
  return {name: folders[name] for name in class_names.sort_names(folders, order)}


def _sort_by_hash(seed: int, tree: FolderTree, name: str, split: str = "") -> list[tuple[bytes, str]]:
  """Returns (hash, path) of the images of a class, in the order of the hashes."""
  files = [f"{split}{name}/{file}" for file in folder_layout.list_images(tree, f"{split}{name}")]
  return sorted((_hash_file(seed, file), file) for file in files)


def _hash_file(seed: int, file: str) -> bytes:
  """Returns the hash of the last two names of a path, the class and the file."""
  _, label, name = f"/{file}".rsplit("/", 2)
  return hashlib.blake2b(f"{seed}/{label}/{name}".encode("utf-8", "surrogateescape")).digest()


def _interleave_classes(drawn: Sequence[Sequence[tuple[bytes, str]]]) -> list[tuple[str, int]]:
  """Returns the records (file, label) of a split. The files of each class are evenly spaced and keep their order."""
  placed = [
    ((rank + 0.5) / len(files), draw, file, label)
    for label, files in enumerate(drawn)
    for rank, (draw, file) in enumerate(files)
  ]
  return [(file, label) for _, _, file, label in sorted(placed)]

"""The reader of images with segmentation masks, `images/x.jpg` and `masks/x.png`, for dense probes."""

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from typing import Annotated, Any

from vit_jax.data import class_names, membership, sources
from vit_jax.data.readers import labels, locations, overlaps
from vit_jax.data.readers.tree import FolderTree
from vit_jax.data.sources import Fingerprint
from vit_jax.schema import ConfigError, Fraction, Range, enter_key, format_amount
from vit_jax.schema.errors import AbsentError
from vit_jax.storage import paths

Number = Annotated[int, Range(0, 255)]


def segmentation(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  path: str,
  classes: str | int,
  images: str = "images",
  masks: str = "masks",
  first: Number = 0,
  ignored: tuple[Number, ...] = (),
  train: str = "train",
  val: str | None = None,
  test: str = "test",
  holdout: Fraction = 0.2,
  split_seed: Annotated[int, Range(0, 2**31 - 1)] = 0,
) -> sources.Source:
  """Opens a split of a directory with images `images/[<split>/]x.jpg` and their masks `masks/[<split>/]x.png`.

  A mask has one channel of numbers, which may be indices of a palette. 255 means no class. Masks without an image and
  images without a mask are ignored and counted in a note. Images have no class of their own and have the label 0.

  Args:
    name: name of the dataset.
    row: row of the catalog.
    split: "train", "val", "test" or a split string.
    path: directory on a disk or in a bucket.
    classes: a text file with the names of the classes of pixels, one per line, or the number of classes.
    images: name of the directory of images in `path`. Pascal VOC uses JPEGImages.
    masks: name of the directory of masks in `path`. Pascal VOC uses SegmentationClass.
    first: pixel value of the first class. Use 1 with ignored=(0,) if 0 means no class, as in ADE20K.
    ignored: pixel values without a class, in addition to 255.
    train: split string for training.
    val: split string for validation.
    test: split string for testing.
    holdout: share of the images that becomes "test", if `path` has no directories of splits. Images with the smallest
      hashes are used.
    split_seed: seed of the hashes.

  Raises:
    AbsentError: if `path` does not exist.
    ConfigError: if a directory is missing, if no mask has an image, or if pixel values are ambiguous.
    SplitError: if the split does not exist.
  """
  with enter_key("path"):
    root = _open_directory(path)
  tree, splits = FolderTree(root), sources.Splits(train, val, test)
  names = labels.parse_class_names(classes)
  assert names is not None
  found, note = _find_pairs(tree, images, masks)
  is_drawn = "" in found
  if is_drawn:
    found = _hold_out(found[""], holdout, split_seed)
  parts = splits.select(split, {part: len(pairs) for part, pairs in found.items()})
  of_images = {part: [(image, 0) for image, _ in pairs] for part, pairs in found.items()}
  notes = overlaps.find_file_overlaps(root, splits, of_images) if split == "train" else ()
  values = _assign_values(names, first, ignored)

  def pair(i: int) -> tuple[str, str]:
    part, number = sources.locate_record(parts, i)
    return found[part][number]

  def list_used_files() -> list[str]:
    return [file for part, numbers in parts for both in found[part][numbers.start : numbers.stop] for file in both]

  def fingerprint() -> Fingerprint:
    names = list_used_files()
    sizes, times = zip(*root.read_stamps(names), strict=True)
    return sources.Fingerprint(*map(sources.digest, (names, sorted(names), sizes, times)))

  def key(image: str) -> Any:
    return _hash_image(split_seed, image).hex()[: membership.DIGITS] if is_drawn else os.path.splitext(image)[0]

  source = sources.assemble(
    name,
    splits.spec(split),
    ("image",),
    parts,
    lambda part, i: (root.read(found[part][i][0]), 0),
    lambda part, i: f" (files {found[part][i][0]!r} and {found[part][i][1]!r} in {str(root.root)!r})",
    lambda part, i: found[part][i][0],
    fingerprint,
    read_label=lambda part, i: 0,
    remote=isinstance(root, locations.BucketFolder),
  )
  of_pixels = sources.Masks(names, lambda i: root.read(pair(i)[1]), values, ignored)
  return sources.add_notes(
    dataclasses.replace(
      source,
      masks=of_pixels,
      files=lambda: root.list_local_paths(list_used_files()),
      objects=lambda: root.read_versions(list_used_files()),
      membership=membership.create_membership(
        splits, lambda: {part: [image for image, _ in pairs] for part, pairs in found.items()}, key
      ),
    ),
    *(note, class_names.describe_alike(names), *notes),
  )


def _assign_values(names: tuple[str, ...], first: int, ignored: Sequence[int]) -> tuple[int, ...]:
  """Returns the pixel value of each class. Raises ConfigError if a value has two meanings."""
  values = tuple(range(first, first + len(names)))
  if both := sorted(set(ignored) & set(values)):
    raise ConfigError(
      f"{both[0]} is also class {names[both[0] - first]!r}. A number cannot be both a class and ignored", "ignored"
    )
  if first + len(names) > 255:
    raise ConfigError(
      f"{format_amount(len(names), 'class', 'classes')} from {first} on, but the last number is 254, because 255 "
      f"means no class",
      "classes",
    )
  return values


def _open_directory(path: str) -> locations.DiskFolder | locations.BucketFolder:
  """Opens the directory `path`."""
  root = paths.expand_home(paths.parse_path(path, bare=True))
  if paths.is_in_bucket(root):
    return locations.call_storage(root, lambda: locations.BucketFolder.read_listing(root))
  if not path or not root.is_dir():
    raise AbsentError(f"no folder {path!r}. Name one with images/x.jpg and masks/x.png")
  return locations.DiskFolder(root)


def _find_pairs(tree: FolderTree, images: str, masks: str) -> tuple[dict[str, list[tuple[str, str]]], str]:
  """Returns (image, mask) pairs by split, and a note on ignored files. Without split directories, the split is ""."""
  top = tree.folders()
  for key, folder in (("images", images), ("masks", masks)):
    if folder.split("/")[0] not in top:
      raise ConfigError(
        f"no folder {folder!r} in {str(tree.root.root)!r}, which contains {top}. Set {key} to one of them",
        key,
      )
  inner = tree.folders(masks)
  result, alone = {}, [0, 0]
  for split in inner or [""]:
    of_images, of_masks = (_list_by_stem(tree, above, split) for above in (images, masks))
    both = sorted(of_images.keys() & of_masks.keys())
    alone[0], alone[1] = alone[0] + len(of_images) - len(both), alone[1] + len(of_masks) - len(both)
    result[split] = [(of_images[name], of_masks[name]) for name in both]
  if not any(result.values()):
    raise ConfigError(
      f"no mask in {masks!r} has the name of an image in {images!r}. Write images/x.jpg and masks/x.png, or "
      "images/train/x.jpg and masks/train/x.png",
      "path",
    )
  note = f"{str(tree.root.root)!r}: {format_amount(sum(map(len, result.values())), 'image')} with masks; left out: "
  return (
    result,
    f"{note}{format_amount(alone[0], 'image')} without a mask, {format_amount(alone[1], 'mask')} without an image",
  )


def _list_by_stem(tree: FolderTree, above: str, split: str) -> dict[str, str]:
  """Returns {name without suffix: file} of the images of a split, or {} if the split has no directory."""
  if split and split not in tree.folders(above):
    return {}
  files, result = tree.list_entries(os.path.join(above, split)).images, {}
  for name in files:
    other = result.setdefault(os.path.splitext(name)[0], os.path.join(above, split, name))
    if os.path.basename(other) != name:
      raise ConfigError(f"{other!r} and {name!r} differ only in their suffix and would be one pair. Rename one", "path")
  return result


def _hold_out(pairs: Sequence[tuple[str, str]], holdout: float, seed: int) -> dict[str, list[tuple[str, str]]]:
  """Divides the pairs into "test", with the share `holdout`, and "train". Both are in the order of their hashes."""
  drawn = sorted(pairs, key=lambda pair: _hash_image(seed, pair[0]))
  held = round(len(drawn) * holdout)
  return {"train": drawn[held:], "test": drawn[:held]}


def _hash_image(seed: int, image: str) -> bytes:
  """Returns the hash of the path of an image."""
  return hashlib.blake2b(f"{seed}/{image}".encode("utf-8", "surrogateescape")).digest()

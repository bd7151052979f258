"""A check that outputs are not written into the image folders that a command reads.

A workdir inside an image folder would become a class or a split, and a restart would find other data.
"""

import pathlib

from vit_jax.data import catalog
from vit_jax.data.readers import folder, segmentation
from vit_jax.schema import ConfigError, to_plain
from vit_jax.storage import paths


def find_image_folders(value: object) -> list[pathlib.Path]:
  """Returns the image folders that a config reads. Every image and every directory in these folders counts as data.

  Args:
    value: a config, a data choice, or their JSON values. Choices may be nested.
  """
  return _find_image_folders(to_plain(value))


def _find_image_folders(value: object) -> list[pathlib.Path]:
  inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
  return _find_own_folders(value) + [path for each in inner for path in _find_image_folders(each)]


def _find_own_folders(value: object) -> list[pathlib.Path]:
  """Returns the folders of a choice, without those of nested choices."""
  if not isinstance(value, dict) or not isinstance(value.get("path"), str) or value.get("name") not in catalog.CATALOG:
    return []
  root = paths.expand_home(paths.parse_path(value["path"], bare=True))
  match catalog.CATALOG[value["name"]].reader:
    case folder.folder:
      return [root]
    case segmentation.segmentation:
      return [root / value.get("images", "images"), root / value.get("masks", "masks")]
  return []


def check_output_location(target: pathlib.Path, value: object, flag: str) -> None:
  """Raises ConfigError if an output is inside an image folder that is read.

  Args:
    target: the file or directory to write.
    value: see `find_image_folders`.
    flag: name of the target in the message.
  """
  for root in find_image_folders(value):
    if _is_inside(target, root):
      raise ConfigError(
        f"{flag}: {str(target)!r} is inside the image folder {str(root)!r}, and its files would count as data. Choose "
        "a path outside of this folder"
      )


def _is_inside(path: pathlib.Path, root: pathlib.Path) -> bool:
  if paths.is_in_bucket(path) != paths.is_in_bucket(root):
    return False
  if paths.is_in_bucket(path):
    return pathlib.PurePosixPath(str(path)).is_relative_to(str(root))
  return path.resolve().is_relative_to(root.resolve())

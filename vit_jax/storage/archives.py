"""Reading of array archives (.npz). Files that contain two members with the same name are refused.

If two members have the same name, readers differ: NumPy reads the last one, and `unzip` asks the user.
"""

import os
import zipfile
from typing import BinaryIO

import numpy as np

from vit_jax.schema import show


def array_name(member: zipfile.ZipInfo) -> str:
  """Returns the name of the array that a member contains."""
  return member.filename.removesuffix(".npy")


def find_repeated_name(members: list[zipfile.ZipInfo]) -> str | None:
  """Returns the first name that belongs to two arrays, or None if all names differ."""
  names = set()
  for member in members:
    name = array_name(member)
    if name in names:
      return name
    names.add(name)
  return None


def load(file: str | os.PathLike[str] | BinaryIO, *names: str) -> tuple[np.ndarray, ...]:
  """Reads arrays of an .npz file. Pickled objects are refused.

  Args:
    file: path on a disk, or a file that is open for reading.
    *names: names of the arrays.

  Returns:
    The arrays, in the order of `names`.

  Raises:
    ValueError: two members have the same name, or an array is a pickled object.
    OSError: the file cannot be read.
    Exception: the file is damaged. The exception has one of the types in `files.DAMAGE`.
  """
  with zipfile.ZipFile(file) as archive:
    if again := find_repeated_name(archive.infolist()):
      raise ValueError(f"two members are named {show(again)}, so the content is ambiguous. Write each array once")
  if not isinstance(file, str | os.PathLike):
    file.seek(0)
  with np.load(file, allow_pickle=False) as arrays:
    return tuple(arrays[name] for name in names)

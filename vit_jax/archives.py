"""Archives of arrays (.npz): files in which two members have one name are refused.

Readers differ in which of two members of one name they take: NumPy takes the last one, `unzip` asks.
"""

import os
import zipfile
from typing import BinaryIO

import numpy as np

from vit_jax.schema import show


def array_name(member: zipfile.ZipInfo) -> str:
  """Returns the name of the array that a member contains."""
  return member.filename.removesuffix(".npy")


def repeated(members: list[zipfile.ZipInfo]) -> str | None:
  """Returns the first name of an array that two members have; None if there is none."""
  names = set()
  for member in members:
    name = array_name(member)
    if name in names:
      return name
    names.add(name)
  return None


def load(file: str | os.PathLike | BinaryIO, *names: str) -> tuple[np.ndarray, ...]:
  """Reads arrays of an .npz file. Nothing is unpickled.

  Args:
    file: on a disk, or open for reading.
    names: of the arrays.

  Returns:
    The arrays, in the order of `names`.

  Raises:
    ValueError: two members have one name. For damaged files also the other exceptions in `files.DAMAGE`.
    OSError: the file cannot be read.
  """
  with zipfile.ZipFile(file) as archive:
    if again := repeated(archive.infolist()):
      raise ValueError(f"two members are called {show(again)}, and readers differ in which they take")
  if not isinstance(file, str | os.PathLike):
    file.seek(0)
  with np.load(file, allow_pickle=False) as arrays:
    return tuple(arrays[name] for name in names)

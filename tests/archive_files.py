"""Archives of arrays in which a name occurs twice."""

import io
import pathlib
import warnings
import zipfile

import numpy as np


def archive(*names: str) -> bytes:
  """An archive whose members have these names, duplicates included."""
  array = io.BytesIO()
  np.save(array, np.ones(3, np.float32))
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as made:
    for name in names:
      _add(made, name, array.getvalue())
  return file.getvalue()


def repeat(file: pathlib.Path, name: str) -> None:
  """Adds a second array of a name that a file has, with the same values."""
  with zipfile.ZipFile(file, "a") as made:
    _add(made, f"{name}.npy", made.read(f"{name}.npy"))


def _add(made, name, content):
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of zipfile, about a name that occurs twice
    made.writestr(name, content)

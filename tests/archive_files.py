"""Archives of arrays with duplicate names."""

import io
import pathlib
import warnings
import zipfile

import numpy as np


def archive(*names: str) -> bytes:
  """Returns an archive with members of these names, including duplicates."""
  array = io.BytesIO()
  np.save(array, np.ones(3, np.float32))
  file = io.BytesIO()
  with zipfile.ZipFile(file, "w") as made:
    for name in names:
      _add(made, name, array.getvalue())
  return file.getvalue()


def repeat(file: pathlib.Path, name: str) -> None:
  """Adds a copy of an array to a file under the same name."""
  with zipfile.ZipFile(file, "a") as made:
    _add(made, f"{name}.npy", made.read(f"{name}.npy"))


def _add(made, name, content):
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # zipfile warns about duplicate names
    made.writestr(name, content)

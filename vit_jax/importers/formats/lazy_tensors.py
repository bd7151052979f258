"""Lazy tensors of files, and the conversion of errors from damaged or hostile files."""

import contextlib
import math
import pathlib
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from vit_jax.schema import ConfigError
from vit_jax.storage import files

# A file is rejected before allocation if its claimed size exceeds PACKED times the file size and FEW bytes.
PACKED, FEW = 10, 2**28


class Tensor:
  """Shape and type of an array, with a function that reads its values. NumPy functions accept it as an array.

  Args:
    shape: shape of the array.
    dtype: type of the elements.
    read: function that returns the array.
  """

  def __init__(self, shape: tuple[int, ...], dtype: np.dtype, read: Callable[[], np.ndarray]) -> None:
    self.shape, self.dtype, self.read = tuple(shape), np.dtype(dtype), read

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return np.asarray(self.read(), dtype)

  def __getitem__(self, key: Any) -> np.ndarray:
    return np.asarray(self)[key]


Tensors = Mapping[str, np.ndarray | Tensor]  # by name


def join_tensors(parts: Sequence[Any]) -> Tensor:
  """Returns the concatenation of tensors along their first axis, without reading them."""
  first, *rest = parts[0].shape
  length = first + sum(part.shape[0] for part in parts[1:])
  return Tensor((length, *rest), parts[0].dtype, lambda: np.concatenate(parts))


@contextlib.contextmanager
def convert_read_errors(path: pathlib.Path) -> Iterator[None]:
  """Converts errors of a damaged or hostile file to a ConfigError with one line, inside a `with` block.

  Warnings of libraries are suppressed.

  Args:
    path: the file, for the message.
  """
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      yield
  except (OSError, *files.DAMAGE, pickle.UnpicklingError, safetensors.SafetensorError) as error:
    if isinstance(error, ConfigError):
      raise
    what = " ".join(str(error).split())[:200] or type(error).__name__
    raise ConfigError(f"{path}: cannot be read: {what}") from error


def guard_read(path: pathlib.Path, function: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
  """Returns a function that converts the errors of another function as `convert_read_errors` does.

  Args:
    path: the file, for the message.
    function: the function that reads an array.
  """

  def read() -> np.ndarray:
    with convert_read_errors(path):
      return function()

  return read


def count_bytes(tensors: Tensors) -> int:
  """Returns the total bytes of all tensors."""
  return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors.values())


def check_size(path: pathlib.Path, claimed: int) -> None:
  """Raises ConfigError for a file that claims far more bytes than it contains.

  Such a file uses extreme compression, or refers to one value many times.

  Args:
    path: the file.
    claimed: total bytes of its tensors.
  """
  held = path.stat().st_size
  if claimed > max(FEW, PACKED * held):
    raise ConfigError(
      f"{path}: the file has {held:,} bytes, but its tensors claim {claimed:,}. Weights are never compressed so much"
    )

"""Tensors of files, read when their values are needed; and what files raise that are damaged or lie."""

import contextlib
import math
import pathlib
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import safetensors

from vit_jax import files
from vit_jax.schema import ConfigError

# Files that hold more bytes than weights are packed into, unless it is few, are refused before anything is allocated.
PACKED, FEW = 10, 2**28


class Tensor:
  """Shape and type of an array, and a function that reads it; NumPy's functions take it for the array."""

  def __init__(self, shape: tuple[int, ...], dtype: np.dtype, read: Callable[[], np.ndarray]):
    self.shape, self.dtype, self.read = tuple(shape), np.dtype(dtype), read

  def __array__(self, dtype=None, copy=None):
    return np.asarray(self.read(), dtype)

  def __getitem__(self, key):
    return np.asarray(self)[key]


Tensors = Mapping[str, Any]  # name -> np.ndarray or Tensor


def joined(parts: Sequence[Any]) -> Tensor:
  """Tensors one after the other along their first axis."""
  first, *rest = parts[0].shape
  length = first + sum(part.shape[0] for part in parts[1:])
  return Tensor((length, *rest), parts[0].dtype, lambda: np.concatenate(parts))


@contextlib.contextmanager
def reading(path: pathlib.Path):
  """Turns what a damaged or hostile file, or its name, raises into one line, and leaves out what libraries warn of."""
  try:
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      yield
  except (OSError, *files.DAMAGE, pickle.UnpicklingError, safetensors.SafetensorError) as error:
    if isinstance(error, ConfigError):
      raise
    what = " ".join(str(error).split())[:200] or type(error).__name__
    raise ConfigError(f"{path}: cannot be read: {what}") from error


def guarded(path: pathlib.Path, function: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
  """`function` with its failures reported as the file's."""

  def read():
    with reading(path):
      return function()

  return read


def bytes_of(tensors: Tensors) -> int:
  """Bytes of all tensors."""
  return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors.values())


def check_size(path: pathlib.Path, claimed: int) -> None:
  """ConfigError for a file that inflates, or that names one value many times, to more than weights are packed."""
  held = path.stat().st_size
  if claimed > max(FEW, PACKED * held):
    raise ConfigError(f"{path}: {held:,} bytes claim to hold {claimed:,}; no weights are packed like that")

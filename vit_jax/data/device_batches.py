"""Batches of this process's rows as global arrays, spread over the devices of a mesh."""

from collections.abc import Iterator

import jax
import numpy as np

from vit_jax import mesh
from vit_jax.data import loader
from vit_jax.data.images import ImageError


class DeviceBatches(Iterator):
  """Batches as global arrays, of the rows that a stream makes in this process; `close` ends its threads."""

  def __init__(self, batches: loader.Batches, rows: np.ndarray, size: int, sharding: jax.sharding.Sharding):
    """`rows` are the numbers, in a batch of `size`, of the rows that `batches` makes."""
    self._batches, self._rows, self._size, self._sharding = batches, rows, size, sharding

  def __next__(self) -> dict[str, jax.Array]:
    local = next(self._batches)
    return {name: mesh.global_array(value, self._rows, self._size, self._sharding) for name, value in local.items()}

  @property
  def skipped(self) -> int:
    """Images that could not be decoded, so far, in this process."""
    return self._batches.skipped

  def waiting(self) -> str:
    """What a batch that does not come waits for, in words."""
    reads = [f"{place}, for {seconds:.0f} s" for place, seconds in self._batches.reading()[:3]]
    return f"reading {'; '.join(reads)}" if reads else ""

  @property
  def problem(self) -> ImageError | None:
    """The first bad image that was met, in a batch to come perhaps."""
    return self._batches.problem

  def close(self) -> None:
    """Ends the threads that read ahead."""
    self._batches.close()

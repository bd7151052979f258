"""Batches as global arrays, which are distributed over the devices of a mesh."""

from collections.abc import Iterator

import jax
import numpy as np

from vit_jax.data import loader
from vit_jax.data.images import ImageError
from vit_jax.parallel import sharding


class DeviceBatches(Iterator[dict[str, jax.Array]]):
  """An iterator over batches as global arrays. `close` stops its threads.

  Args:
    batches: batches that contain only the rows that this process makes.
    rows: numbers of these rows in the global batch.
    size: number of rows of the global batch.
    sharding: sharding of the global arrays.
  """

  def __init__(
    self, batches: loader.Batches, rows: np.ndarray, size: int, sharding: jax.sharding.NamedSharding
  ) -> None:
    self._batches, self._rows, self._size, self._sharding = batches, rows, size, sharding

  def __next__(self) -> dict[str, jax.Array]:
    local = next(self._batches)
    return {
      name: sharding.make_global_array(value, self._rows, self._size, self._sharding) for name, value in local.items()
    }

  @property
  def skipped(self) -> int:
    """Number of images that this process has skipped so far because they could not be decoded."""
    return self._batches.skipped

  def describe_waiting(self) -> str:
    """Returns a description of the reads that delay the next batch, or "" if no image is being read."""
    reads = [f"{place}, for {seconds:.0f} s" for place, seconds in self._batches.reading()[:3]]
    return f"reading {'; '.join(reads)}" if reads else ""

  @property
  def problem(self) -> ImageError | None:
    """First bad image that was found, possibly in a future batch. None: no bad image."""
    return self._batches.problem

  def close(self) -> None:
    """Stops the threads that read in advance."""
    self._batches.close()

"""Batches of a stream of examples, made in advance by threads of this process or by worker processes.

A batch is a dict of arrays `(b, ...)`, one for each array of an example. Each process requests the rows of the global
batches that its devices need. The stream is therefore the same for any number of processes, workers and threads.
"""

import collections
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from vit_jax import schema
from vit_jax.data import sources
from vit_jax.data.decoding import count_usable_cores
from vit_jax.data.images import BAD_SHARE, ImageError, Images
from vit_jax.data.prefetch import Prefetch
from vit_jax.data.readahead import ReadAhead
from vit_jax.data.sources import Fingerprint, Source
from vit_jax.data.stream import Examples
from vit_jax.data.workers import WorkerPool

Threads = Annotated[int, schema.Range(1, 256)]
Pixels = Annotated[int, schema.Range(1, 2**30)]  # limit of OpenCV
OnError = Literal["raise", "skip"]

# Rows per task of a thread: enough to make the overhead of a task negligible, and few enough to share a batch.
CHUNK = 32

# Threads if each image is a request. With requests of 50 ms, they read 640 images per second.
REQUESTS = 32

# MANY is the number of training records from which worker processes are the default. Each worker has three cores. An
# image of 224 pixels takes 2.3 ms of a core and holds Python's lock for 0.39 ms (`python -m benchmarks.input_pipeline
# --gil`). With six cores per process the lock would always be held. With three cores the lock is free half of the
# time.
MANY, CORES_OF_A_WORKER = 2**17, 3


@dataclasses.dataclass(frozen=True)
class Chunks:
  """Batches in chunks of up to `CHUNK` rows, which are numbered from step 0 on. Each chunk is made by one task.

  Attributes:
    examples: examples of the batches.
    size: number of examples of a global batch.
    rows: rows of each global batch that this process needs.
    images: decoded images of the source of the examples.
    ahead: reader that requests remote files in advance.
  """

  examples: Examples
  size: int
  rows: Sequence[int]
  images: Images
  ahead: ReadAhead

  @functools.cached_property
  def parts(self) -> list[np.ndarray]:
    """Rows of each chunk of a batch. Rows whose records are read together are in the same chunk."""
    count, unit = len(self.rows), self.examples.order.rows
    chunks = max(1, -(-count // max(CHUNK, unit)))
    return np.split(
      np.asarray(self.rows, np.int64), [round(i * count / unit / chunks) * unit for i in range(1, chunks)]
    )

  @property
  def steps(self) -> int | None:
    """Number of batches for examples with an end, including a last batch that is filled up. None: without end."""
    return None if self.examples.length is None else -(-self.examples.length // self.size)

  def empty(self, rows: int) -> dict[str, np.ndarray]:
    """Returns uninitialised arrays for `rows` examples, by name."""
    return {name: np.empty((rows, *shape), kind) for name, (shape, kind) in self.examples.shapes.items()}

  def fill(self, index: int, arrays: dict[str, np.ndarray], ended: Callable[[], bool]) -> None:
    """Makes a chunk in the given arrays.

    Args:
      index: number of the chunk.
      arrays: arrays of the chunk's rows, by name.
      ended: function that returns whether to stop before the chunk is complete.

    Raises:
      ImageError: if an image is bad and bad images are not skipped.
    """
    step, part = divmod(index, len(self.parts))
    positions = [step * self.size + int(row) for row in self.parts[part]]
    self.ahead.expect(positions, self.images.kept)
    for i, position in enumerate(positions):
      if ended():
        return
      values = self.examples.example(self.images.read_prepared, position)
      for array, value in zip(arrays.values(), values, strict=True):
        array[i] = value

  def place(self, index: int) -> str:
    """Returns a description of a chunk for messages."""
    return f"images of step {index // len(self.parts)}"


def batches(
  examples: Examples,
  size: int,
  rows: Sequence[int],
  start: int = 0,
  workers: "Workers | None" = None,
  *,
  on_error: OnError = "raise",
  max_pixels: Pixels = 178_956_970,
  max_aspect: Annotated[float, schema.Range(1, 2**30)] = 100.0,
  max_bad: schema.Fraction = BAD_SHARE,
  exif: bool = False,
  threads: Threads | None = None,
  prefetch: Annotated[int, schema.Range(1, 256)] | None = None,
) -> "Batches":
  """Returns an iterator over batches from step `start` on, with the given rows of each global batch.

  If the examples have an end, the last batch is filled up. All processes therefore get the same number of batches.

  Args:
    examples: examples of the batches.
    size: number of examples of a global batch.
    rows: rows of the global batch that this process needs.
    start: first step.
    workers: processes that make the batches. None: threads of this process make them.
    on_error: treatment of a bad image, which cannot be read, decoded or prepared. "raise" stops the run and names the
      image. "skip" counts the image in `skipped`, and the examples replace it.
    max_pixels: largest number of pixels of an image. Larger images are bad. The default decodes to 512 MiB, as in
      Pillow.
    max_aspect: largest ratio of the longer to the shorter side. Other images are bad. Panoramas have ratios up to 20.
    max_bad: largest fraction of a split's records that may be skipped. Five records may always be skipped, but never
      all.
    exif: whether images are rotated and mirrored according to their EXIF data. If False, images are used as stored,
      like in TensorFlow and torchvision. Published results on ImageNet used images as stored.
    threads: number of threads that read and decode, in all workers together. Default: the number of cores, or at least
      `REQUESTS` if each image is a request. More threads than cores slow a process down, because they wait for
      Python's lock.
    prefetch: number of batches that are made in advance to hide pauses of a disk or a bucket. Default: 2, or up to 16
      if fewer do not keep all threads busy.

  Returns:
    The iterator. Call its method `close` at the end.

  Example:
    from vit_jax import schema
    from vit_jax.data import catalog, loader, stream

    choice = schema.bind(schema.Choice("digits"), catalog.DATA["digits"], catalog.DATA)
    examples = stream.eval_examples(catalog.open_split(choice, "test"), image_size=32)
    batches = loader.batches(examples, size=8, rows=range(8))
    next(batches)["image"].shape  # (8, 32, 32, 3)
    batches.close()
  """
  threads = choose_thread_count(threads, examples.requests)
  assert getattr(examples.order, "batch", size) == size
  options = size, tuple(map(int, rows)), start, (on_error, max_pixels, max_aspect, exif, max_bad)
  chunks = _open_chunks(lambda: examples, *options)
  if workers is None:
    return Batches(chunks, start, threads, prefetch)
  source = examples.source
  known = source.fingerprint(), sources.digest(source.classes)
  opened = functools.partial(_open_chunks, workers.opened, *options, workers.count, known)
  return Batches(chunks, start, threads, prefetch, WorkerPool(opened, chunks, workers.count, threads))


def _open_chunks(
  opened: Callable[[], Examples],
  size: int,
  rows: Sequence[int],
  start: int,
  bounds: tuple[Any, ...],
  workers: int = 1,
  known: tuple[Fingerprint, str] | None = None,
) -> Chunks:
  """Opens the examples and returns their chunks.

  Raises ConfigError if the data differ from `known`, the trainer's data.
  """
  examples = opened()
  if known is not None:
    _check_same(examples.source, *known)
  ahead = ReadAhead(examples.source, examples.order, start * size, workers)
  return Chunks(examples, size, rows, Images(ahead.source, *bounds), ahead)


def cache_fingerprint(source: sources.Source) -> sources.Source:
  """Returns a source that computes its fingerprint only once, because this is slow for many files on a file server."""
  return dataclasses.replace(source, fingerprint=functools.cache(source.fingerprint))


def _check_same(source: Source, fingerprint: Fingerprint, classes: str) -> None:
  """Raises ConfigError if the data differ from those that the trainer opened seconds ago."""
  changes = fingerprint.changes(source.fingerprint())
  if sources.digest(source.classes) != classes:
    changes.append("classes")
  if changes:
    raise schema.ConfigError(
      f"the data changed while the run started: {', '.join(changes)}. Stop other programs from changing them. Restore "
      f"them "
      f"as they were, or use another --workdir"
    )


@dataclasses.dataclass(frozen=True)
class Workers:
  """The worker processes that make batches.

  Attributes:
    opened: function that returns the examples in a worker. It can be pickled.
    count: number of processes.
  """

  opened: Callable[[], Examples]
  count: int


def processes(
  opened: Callable[[], Examples], records: int, *, workers: Annotated[int, schema.Range(0, 256)] | None = None
) -> Workers | None:
  """Returns the worker processes that make training batches, or None if this process makes them.

  Workers help if Python's lock limits one process. Each worker needs 2.3 s of a core to start and 220 MB for a Python
  process with JAX. The images do not depend on the number of workers.

  Args:
    opened: function that returns the examples in a worker. It can be pickled.
    records: number of records of the training set.
    workers: number of processes. 0: no worker processes. Default: 0 with fewer than `MANY` records or fewer than 8
      cores, else one worker for three cores.
  """
  if workers is not None and workers > 2 * count_usable_cores():
    logging.warning("%d data.workers on %d cores: more workers than cores will not help", workers, count_usable_cores())
  count = choose_worker_count(workers, records)
  return Workers(opened, count) if count else None


def choose_thread_count(threads: int | None, requests: bool) -> int:
  """Returns the number of threads that read and decode.

  Args:
    threads: number of threads. None: the default.
    requests: whether each image is a request to a server.
  """
  return threads or max(REQUESTS if requests else 2, count_usable_cores())


def choose_worker_count(workers: int | None, records: int) -> int:
  """Returns the number of worker processes that make batches.

  Args:
    workers: number of processes. None: the default.
    records: number of records of the training set.
  """
  if workers is None:
    workers = count_usable_cores() // CORES_OF_A_WORKER if records >= MANY and count_usable_cores() >= 8 else 0
  return min(workers, 256)


def suggest_settings(threads: int, workers: int, requests: bool) -> str:
  """Returns advice for a run that waits for its data: the current settings, and the settings that can be raised.

  Args:
    threads: current number of threads, in all workers together.
    workers: current number of worker processes.
    requests: whether each image is a request to a server. Threads then mostly wait for answers.
  """
  numbers = [
    schema.format_amount(*each) for each in ((workers, "worker"), (threads, "thread"), (count_usable_cores(), "core"))
  ]
  present = "{} and {} on {}".format(*numbers)
  limits = {
    "workers": (workers, count_usable_cores() // CORES_OF_A_WORKER),
    "threads": (threads, 256 if requests else count_usable_cores()),
  }
  higher = [f"--config.data.{key} to up to {most}" for key, (now, most) in limits.items() if now < most]
  if higher:
    return f"{present}. Raise {' and '.join(higher)}; a restart may change both"
  return (
    f"{present}. More of either will not help. Make the image files smaller once (`prepare --size`), or use a cheaper "
    "augmentation"
  )


class Batches(Iterator[dict[str, np.ndarray]]):
  """An iterator over batches that threads or worker processes make in advance. `close` stops them.

  Args:
    chunks: chunks of the batches.
    start: first step.
    threads: number of threads without a pool.
    prefetch: number of batches that are made in advance. None: 2, or up to 16 if fewer do not keep all threads busy.
    pool: worker processes that make the chunks.
  """

  def __init__(
    self, chunks: Chunks, start: int, threads: int, prefetch: int | None, pool: WorkerPool | None = None
  ) -> None:
    self._chunks, self._pool, self._step, count = chunks, pool, start, len(chunks.parts)
    self._batches = collections.defaultdict(lambda: chunks.empty(len(chunks.rows)))  # unfinished batches by step
    self._lock = threading.Lock()
    ends = np.cumsum([0, *map(len, chunks.parts)])
    fill = pool.fill if pool else chunks.fill

    def work(index: int, ended: threading.Event) -> None:
      step, part = divmod(index, count)
      with self._lock:
        batch = self._batches[step]
      fill(index, {name: array[ends[part] : ends[part + 1]] for name, array in batch.items()}, ended.is_set)

    threads = len(pool.lines) if pool else threads
    stop = 2**62 if chunks.steps is None else chunks.steps * count
    # Up to 16 batches are in progress, so that all threads are busy even if a batch has few chunks.
    ahead = prefetch * count if prefetch else max(2 * count, min(threads, 16 * count))
    self._filled = Prefetch(work, range(start * count, stop), min(threads, ahead), ahead)

  def __next__(self) -> dict[str, np.ndarray]:
    for _ in self._chunks.parts:
      next(self._filled)
    self._step += 1
    with self._lock:
      return self._batches.pop(self._step - 1)

  @property
  def skipped(self) -> int:
    """Number of different bad records among those that this process has read so far."""
    return len(self._chunks.images.reasons)

  @property
  def problem(self) -> ImageError | None:
    """First error of any thread, even if the batch with the error was not requested yet. None: no error."""
    return self._chunks.images.problem

  def reading(self) -> list[tuple[str, float]]:
    """Returns (description, seconds) of the images that are being read and prepared, the longest-running first."""
    return self._pool.reading() if self._pool else self._chunks.images.reading()

  def close(self) -> None:
    """Stops threads and processes, except those that never return from a read.

    The iterator cannot be used afterwards.
    """
    if self._pool:
      self._pool.close()
    self._filled.close()
    self._chunks.ahead.close()

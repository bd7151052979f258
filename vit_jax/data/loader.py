"""Batches of a stream of examples, made ahead by threads, of this process or of worker processes.

A batch is a dict of arrays [b, ...] of what an example has. A process asks for the rows of the global batches that its
devices need, so the stream is the same for any number of processes, workers and threads.
"""

import collections
import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np

from vit_jax import schema
from vit_jax.data import sources
from vit_jax.data.decoding import cores
from vit_jax.data.images import BAD_SHARE, ImageError, Images
from vit_jax.data.prefetch import Prefetch
from vit_jax.data.readahead import ReadAhead
from vit_jax.data.stream import Examples
from vit_jax.data.workers import Pool

Threads = Annotated[int, schema.Range(1, 256)]
Pixels = Annotated[int, schema.Range(1, 2**30)]  # OpenCV decodes no more
OnError = Literal["raise", "skip"]

# Rows that one task of a thread makes: many enough to drown what handing it over costs, few enough to share a batch.
CHUNK = 32

# Threads where each image is a request: of 50 ms they bring 640 a second.
REQUESTS = 32

# Records of a training set from which on worker processes are the default, and the cores of each. An image of 224
# pixels takes 2.3 ms of a core, and Python's lock is held 0.39 ms of it (`python -m benchmarks.input_pipeline --gil`):
# six cores would share a lock that is always held, three find it free half of the time.
MANY, CORES_OF_A_WORKER = 2**17, 3


@dataclasses.dataclass(frozen=True)
class Chunks:
  """Batches in chunks of up to CHUNK rows, numbered from the first one of step 0 on: each is made at one go.

  `rows` are those wanted of each global batch of `size` examples; `images` are those of the source of the examples,
  whose files are read `ahead` where these are far away.
  """

  examples: Examples
  size: int
  rows: tuple[int, ...]
  images: Images
  ahead: ReadAhead

  @functools.cached_property
  def parts(self) -> list[np.ndarray]:
    """The rows of each chunk of a batch: those that share what is read together stay together."""
    count, unit = len(self.rows), self.examples.order.rows
    chunks = max(1, -(-count // max(CHUNK, unit)))
    return np.split(
      np.asarray(self.rows, np.int64), [round(i * count / unit / chunks) * unit for i in range(1, chunks)]
    )

  @property
  def steps(self) -> int | None:
    """Of examples with an end: the batches that hold them; the last one is filled up."""
    return None if self.examples.length is None else -(-self.examples.length // self.size)

  def empty(self, rows: int) -> dict[str, np.ndarray]:
    """Arrays for so many rows."""
    return {name: np.empty((rows, *shape), kind) for name, (shape, kind) in self.examples.shapes.items()}

  def fill(self, index: int, arrays: dict[str, np.ndarray], ended: Callable[[], bool]) -> None:
    """Makes a chunk in these arrays, unless it has `ended` before. Raises ImageError."""
    step, part = divmod(index, len(self.parts))
    positions = [step * self.size + int(row) for row in self.parts[part]]
    self.ahead.expect(positions, self.images.kept)
    for i, position in enumerate(positions):
      if ended():
        return
      values = self.examples.example(self.images.prepared, position)
      for array, value in zip(arrays.values(), values, strict=True):
        array[i] = value

  def place(self, index: int) -> str:
    """What a chunk is, in words."""
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
  """Batches from step `start` on: the given rows of each global batch of `size` examples.

  Of examples with an end, the last batch is filled up, so that all processes see equally many batches.

  Args:
    examples: what the batches are made of.
    size: of a global batch.
    rows: those of it that are wanted here.
    start: step.
    workers: processes that make them; without any this one does.
    on_error: a bad image, which cannot be read, decoded or prepared, stops the run with its name; with "skip" it is
      left to the examples, and `skipped` counts it.
    max_pixels: an image with more is bad. The default is what decodes to 512 MiB, as in Pillow.
    max_aspect: an image whose one side is more times the other is bad; panoramas reach 20.
    max_bad: the share of a split's records that may be skipped; five always may, and not all.
    exif: an image that its camera calls turned or mirrored is made upright, as people see it; else it is as it is
      stored, as TensorFlow and torchvision see it, with which results on ImageNet were published.
    threads: that read and decode, of all workers together; as many as the process has cores, or REQUESTS where each
      image is a request, unless given. With more than it has cores a process is slower: they wait for Python's lock.
    prefetch: batches made before they are asked for, which hide pauses of a disk or a bucket; 2, or up to 16 where
      fewer do not keep all threads busy, unless given.
  """
  threads = thread_count(threads, examples.requests)
  assert getattr(examples.order, "batch", size) == size
  options = size, tuple(map(int, rows)), start, (on_error, max_pixels, max_aspect, exif, max_bad)
  chunks = _chunks(lambda: examples, *options)
  if workers is None:
    return Batches(chunks, start, threads, prefetch)
  source = examples.source
  known = source.fingerprint(), sources.digest(source.classes)
  opened = functools.partial(_chunks, workers.opened, *options, workers.count, known)
  return Batches(chunks, start, threads, prefetch, Pool(opened, chunks, workers.count, threads))


def _chunks(opened, size, rows, start, bounds, workers=1, known=None):
  """The chunks of the examples that are opened, here or in one of so many workers, to which their data are `known`."""
  examples = opened()
  if known is not None:
    _check_same(examples.source, *known)
  ahead = ReadAhead(examples.source, examples.order, start * size, workers)
  return Chunks(examples, size, rows, Images(ahead.source, *bounds), ahead)


def stamped_once(source: sources.Source) -> sources.Source:
  """A source whose fingerprint is that of when it was asked for first: a file server takes its time for many files."""
  return dataclasses.replace(source, fingerprint=functools.cache(source.fingerprint))


def _check_same(source, fingerprint, classes):
  """ConfigError for data that are others than when the trainer opened them, seconds ago."""
  changes = fingerprint.changes(source.fingerprint())
  if sources.digest(source.classes) != classes:
    changes.append("classes")
  if changes:
    raise schema.ConfigError(
      f"the data changed while the run began: {', '.join(changes)}. Let nothing write to them; bring them back as they "
      "were, or take another --workdir"
    )


class Workers(NamedTuple):
  """How many processes make batches, and what gives them the examples: `opened` can be pickled."""

  opened: Callable[[], Examples]
  count: int


def processes(
  opened: Callable[[], Examples], records: int, *, workers: Annotated[int, schema.Range(0, 256)] | None = None
) -> Workers | None:
  """The `workers` that make batches for training, where one process's Python is too slow; None for 0.

  Each takes 2.3 s of a core to start and 220 MB, those of a Python with JAX. The images are the same. Unless given,
  there are none for fewer than MANY records or on less than 8 cores, else one for three cores.
  """
  if workers is not None and workers > 2 * cores():
    logging.warning("%d data.workers on %d cores: more than one a core only wait for each other", workers, cores())
  count = worker_count(workers, records)
  return Workers(opened, count) if count else None


def thread_count(threads: int | None, requests: bool) -> int:
  """Returns the number of threads that read and decode: `threads`, or the default if it is None."""
  return threads or max(REQUESTS if requests else 2, cores())


def worker_count(workers: int | None, records: int) -> int:
  """Returns the number of processes that make batches: `workers`, or the default if it is None."""
  if workers is None:
    workers = cores() // CORES_OF_A_WORKER if records >= MANY and cores() >= 8 else 0
  return min(workers, 256)


def remedy(threads: int, workers: int, requests: bool) -> str:
  """Returns what helps a run that waits for its data: the present numbers, and those that can be raised.

  Args:
    threads: present number, of all workers together.
    workers: present number.
    requests: whether each image is a request to a server, so that threads mostly wait for answers.
  """
  numbers = [schema.amount(*each) for each in ((workers, "worker"), (threads, "thread"), (cores(), "core"))]
  present = "{} and {} on {}".format(*numbers)
  limits = {"workers": (workers, cores() // CORES_OF_A_WORKER), "threads": (threads, 256 if requests else cores())}
  higher = [f"--config.data.{key} to up to {most}" for key, (now, most) in limits.items() if now < most]
  if higher:
    return f"{present}. Raise {' and '.join(higher)}; a restart may change both"
  return (
    f"{present}. More of either do not help. Make the image files smaller once (`prepare --size`), or use a cheaper "
    "augmentation"
  )


class Batches(Iterator):
  """Batches made ahead by threads, or by a pool of processes, which `close` ends."""

  def __init__(self, chunks: Chunks, start: int, threads: int, prefetch: int | None, pool: Pool | None = None):
    self._chunks, self._pool, self._step, count = chunks, pool, start, len(chunks.parts)
    self._batches = collections.defaultdict(lambda: chunks.empty(len(chunks.rows)))  # by step, those under way
    self._lock = threading.Lock()
    ends = np.cumsum([0, *map(len, chunks.parts)])
    fill = pool.fill if pool else chunks.fill

    def work(index, ended):
      step, part = divmod(index, count)
      with self._lock:
        batch = self._batches[step]
      fill(index, {name: array[ends[part] : ends[part + 1]] for name, array in batch.items()}, ended.is_set)

    threads = len(pool.lines) if pool else threads
    stop = 2**62 if chunks.steps is None else chunks.steps * count
    # All threads are busy, with up to 16 batches, also where a batch is few chunks.
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
    """Different records that were bad, among those that this process has read ahead so far."""
    return len(self._chunks.images.reasons)

  @property
  def problem(self) -> ImageError | None:
    """The first error that any thread met, also if the batch that it belongs to was not asked for yet."""
    return self._chunks.images.problem

  def reading(self) -> list[tuple[str, float]]:
    """(place, seconds) of what is being read and prepared now, what takes longest first."""
    return self._pool.reading() if self._pool else self._chunks.images.reading()

  def close(self) -> None:
    """Ends threads and processes, except for those that never come back from a read; the iterator is then of no use."""
    if self._pool:
      self._pool.close()
    self._filled.close()
    self._chunks.ahead.close()

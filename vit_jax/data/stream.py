"""Batches as a pure function of (seed, step): shuffled without end for training, once in order for evaluation.

A batch is a dict: image uint8 [b, S, S, 3] and label int32 [b], or [b, K] padded with -1 where an image has up to K
labels. For training also draw uint32 [b], which augmentation on the device follows from; for evaluation mask float32
[b]. The global stream has one position per example, step * batch + row. A process asks for the rows it needs, so the
stream is the same for any number of them.
"""

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import grain
import numpy as np
from einops import rearrange
from grain.experimental import index_shuffle

from vit_jax import rng, schema
from vit_jax.data import crops, randaugment
from vit_jax.data.sources import Source
from vit_jax.schema import Choice, at, make

Shapes = dict[str, tuple[tuple[int, ...], type]]  # shape and type of what a batch holds of each example
Threads = Annotated[int, schema.Range(1, 256)]
OnError = Literal["raise", "skip"]

# Rows that one task of the pool makes: many enough to drown Grain's 40 us per element, few enough to share a batch.
CHUNK = 32
BAD_SHARE = 0.001  # of a split's records; more of them stop the run
# Bytes of decoded images a split may take to be kept in memory: CIFAR's 150 MB are, so that they are decoded only once.
KEEP = 2**28


class ImageError(ValueError):
  """An image of a dataset that cannot be decoded, or too many of them: says which."""


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples by position, a pure function of it and of the records of a source."""

  source: Source
  record: Callable[[int], int]  # of a position
  example: Callable  # (record -> (image, label) or None, position) -> values of what `shapes` names, in its order
  shapes: Shapes
  length: int | None  # None: without end


def train_examples(
  source: Source,
  seed: int,
  patch: int | None = None,
  *,
  image_size: crops.Size = 224,
  crop: Annotated[Choice, crops.CROPS] = Choice("inception"),
  flip: bool = True,
  policy: Annotated[Choice, randaugment.POLICIES] = Choice("none"),
) -> Examples:
  """Epochs without end, each a new permutation of the records.

  An example is cropped, mirrored half of the time with `flip`, then changed by the `policy`, and with `patch` P cut
  into patches: images are [S, S, 3], or [N, P*P*3], patches row by row, each as row, column, channel. All of it, and
  `draw`, follows from (seed, epoch, record). So does the record that replaces one that cannot be decoded.
  """
  with at("crop"):
    cut = make(crop, crops.CROPS, image_size)
  with at("policy"):
    change = make(policy, randaugment.POLICIES)

  def record_of(position):
    epoch, place = divmod(position, len(source))
    return index_shuffle(place, max_index=len(source) - 1, seed=_epoch_seed(seed, epoch), rounds=4)

  def example(decode, position):
    epoch, record = position // len(source), record_of(position)
    decoded = decode(record)
    if decoded is None:
      others = rng.generator(seed, "replace", epoch, record)
      while decoded is None:
        decoded = decode(int(others.integers(len(source))))
    image = cut(decoded[0], functools.partial(rng.generator, seed, "crop", epoch, record))
    if flip and rng.generator(seed, "flip", epoch, record).random() < 0.5:
      image = image[:, ::-1]
    image = change(image, functools.partial(rng.generator, seed, "policy", epoch, record))
    if patch is not None:
      image = rearrange(image, "(h i) (w j) c -> (h w) (i j c)", i=patch, j=patch)
    return image, decoded[1], rng.generator(seed, "device", epoch, record).integers(2**32, dtype=np.uint32)

  image = (image_size, image_size, 3)
  if patch is not None:
    assert image_size % patch == 0
    image = ((image_size // patch) ** 2, patch**2 * 3)
  shapes = {"image": (image, np.uint8), "label": (_label_shape(source), np.int32), "draw": ((), np.uint32)}
  return Examples(source, record_of, example, shapes, None)


def eval_examples(
  source: Source,
  *,
  image_size: crops.Size = 224,
  test_crop: Annotated[Choice, crops.TEST_CROPS] = Choice("resize"),
) -> Examples:
  """Each record once, in order. One that cannot be decoded has mask 0: nothing can stand in for a test image."""
  with at("test_crop"):
    cut = make(test_crop, crops.TEST_CROPS, image_size)
  image, label = (image_size, image_size, 3), _label_shape(source)
  shapes = {"image": (image, np.uint8), "label": (label, np.int32), "mask": ((), np.float32)}
  nothing = np.zeros(image, np.uint8), np.full(label, -1 if label else 0), 0.0

  def example(decode, position):
    decoded = decode(position) if position < len(source) else None
    return nothing if decoded is None else (cut(decoded[0], None), decoded[1], 1.0)

  return Examples(source, lambda position: position, example, shapes, len(source))


def _label_shape(source):
  return () if source.labels == 1 else (source.labels,)


def batches(
  examples: Examples,
  size: int,
  rows: Sequence[int],
  start: int = 0,
  *,
  on_error: OnError = "raise",
  threads: Threads = 8,
) -> "Batches":
  """Batches from step `start` on: the given rows of each global batch of `size` examples.

  Of examples with an end, the last batch is filled up, so that all processes see equally many batches. With
  on_error="skip" a record that cannot be decoded is left to the examples, and `skipped` counts it.
  """
  return Batches(examples, size, rows, start, _Decoder(examples.source, on_error), threads)


@functools.lru_cache(maxsize=16)
def _epoch_seed(seed, epoch):
  return int(rng.generator(seed, "order", epoch).integers(2**32))


class Batches(Iterator):
  """Batches made ahead by a pool of threads, which `close` ends; `skipped` counts the bad records met so far."""

  def __init__(self, examples, size, rows, start, decoder, threads):
    rows = np.asarray(rows, np.int64)
    chunks = np.array_split(rows, max(1, -(-len(rows) // CHUNK)))

    def work(index):
      step, chunk = divmod(index, len(chunks))
      filled = {name: np.empty((len(chunks[chunk]), *shape), kind) for name, (shape, kind) in examples.shapes.items()}
      for i, row in enumerate(chunks[chunk]):
        values = examples.example(decoder.decode, step * size + int(row))
        for array, value in zip(filled.values(), values, strict=True):
          array[i] = value
      return filled

    stop = 2**62 if examples.length is None else -(-examples.length // size) * len(chunks)
    tasks = grain.MapDataset.range(start * len(chunks), stop).map(work)
    ahead = max(2 * len(chunks), min(threads, 4 * len(chunks)))
    self._tasks = iter(
      tasks.to_iter_dataset(grain.ReadOptions(num_threads=min(threads, ahead), prefetch_buffer_size=ahead))
    )
    self._chunks = len(chunks)
    self._decoder = decoder

  def __next__(self) -> dict[str, np.ndarray]:
    parts = [next(self._tasks) for _ in range(self._chunks)]
    if len(parts) == 1:
      return parts[0]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

  @property
  def skipped(self) -> int:
    """Different records that could not be decoded, among those that this process has read ahead so far."""
    return len(self._decoder.reasons)

  def close(self):
    """Ends the threads; the iterator cannot be used afterwards."""
    self._tasks.close()


class _Decoder:
  """Decodes records, keeps small ones, and keeps account of those that cannot be decoded; for many threads at once."""

  def __init__(self, source, on_error):
    self.source, self.on_error = source, on_error
    self.reasons, self.lock = {}, threading.Lock()
    self.kept = {}

  def decode(self, record):
    """(image, label or labels [K]), or None for a bad record where these are skipped. Raises ImageError."""
    if record in self.kept:
      return self.kept[record]
    try:
      data, label = self.source.read(record)
      image = crops.decode(data)
    except (crops.DecodeError, OSError) as error:
      reason = f"{self.source.place(record)}: {error}"
      if self.on_error == "raise":
        raise ImageError(f"{reason}. Mend or remove it, or set data.on_error='skip'") from error
      self._count(record, reason)
      return None
    label = self._label(record, label)
    if image.nbytes * len(self.source) <= KEEP:
      self.kept[record] = image, label
    return image, label

  def _label(self, record, label):
    """A label as it is, or where images may have several an array of them, padded with -1."""
    most, classes = self.source.labels, len(self.source.classes)
    labels = label if isinstance(label, tuple) else (label,)
    outside = [number for number in labels if not 0 <= number < classes]
    if outside:
      raise ImageError(f"{self.source.place(record)}: label {outside[0]} is not one of {classes} classes")
    if len(labels) > most:
      raise ImageError(
        f"{self.source.place(record)}: {len(labels)} labels, allowed are {most}; set data.labels to {len(labels)} or "
        "more"
      )
    if most > 1:
      return np.array(labels + (-1,) * (most - len(labels)), np.int32)
    if not labels:
      raise ImageError(f"{self.source.place(record)}: no label; set data.labels above 1 to allow that")
    return labels[0]

  def _count(self, record, reason):
    with self.lock:
      if record not in self.reasons:
        logging.warning("skipped: %s", reason)
      self.reasons[record] = reason
      if len(self.reasons) > BAD_SHARE * len(self.source):
        some = "; ".join(list(self.reasons.values())[:5])
        raise ImageError(
          f"{len(self.reasons)} of {len(self.source)} records are bad, over the limit of {BAD_SHARE:.1%}: {some}"
        )

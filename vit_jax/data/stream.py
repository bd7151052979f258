"""Batches as a pure function of (seed, step): shuffled without end for training, once in order for evaluation.

A batch is a dict: image uint8 [b, S, S, 3] and label int32 [b], or [b, K] padded with -1 where an image has up to K
labels. For training also draw uint32 [b], which augmentation on the device follows from; for evaluation mask float32
[b]. The global stream has one position per example, step * batch + row. A process asks for the rows it needs, so the
stream is the same for any number of them.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Literal

import numpy as np
from einops import rearrange

from vit_jax import rng, schema
from vit_jax.data import crops, randaugment
from vit_jax.data.images import ImageError, Images
from vit_jax.data.order import ORDERS, InOrder, Order
from vit_jax.data.prefetch import Prefetch
from vit_jax.data.readahead import ReadAhead
from vit_jax.data.sources import Source
from vit_jax.schema import Choice, at, make

Shapes = dict[str, tuple[tuple[int, ...], type]]  # shape and type of what a batch holds of each example
Threads = Annotated[int, schema.Range(1, 256)]
Pixels = Annotated[int, schema.Range(1, 2**30)]  # OpenCV decodes no more
OnError = Literal["raise", "skip"]

# Rows that one task of a thread makes: many enough to drown what handing it over costs, few enough to share a batch.
CHUNK = 32


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples by position, a pure function of it and of the records of a source."""

  source: Source
  order: Order  # of the records
  example: Callable  # (`Images.prepared`, position) -> values of what `shapes` names, in its order
  shapes: Shapes
  length: int | None  # None: without end

  def record(self, position: int) -> int:
    """The record at a position."""
    return self.order.record(position)


def train_examples(
  source: Source,
  seed: int,
  patch: int | None = None,
  batch: int = 1,
  *,
  order: Annotated[Choice, ORDERS] = Choice("auto"),
  image_size: crops.Size = 224,
  crop: Annotated[Choice, crops.CROPS] = Choice("inception"),
  flip: bool = True,
  policy: Annotated[Choice, randaugment.POLICIES] = Choice("none"),
) -> Examples:
  """Epochs without end, each a new permutation of the records, in an order that may depend on the size of the `batch`.

  An example is cropped, mirrored half of the time with `flip`, then changed by the `policy`, and with `patch` P cut
  into patches: images are [S, S, 3], or [N, P*P*3], patches row by row, each as row, column, channel. All of it, and
  `draw`, follows from (seed, epoch, record). So does the record that replaces a bad one.
  """
  with at("order"):
    ordered = make(order, ORDERS, len(source), batch, seed, source.runs is not None)
  with at("crop"):
    cut = make(crop, crops.CROPS, image_size)
  with at("policy"):
    change = make(policy, randaugment.POLICIES)

  def example(prepared, position):
    epoch, record = position // len(source), ordered.record(position)

    def prepare(image):
      image = cut(image, functools.partial(rng.generator, seed, "crop", epoch, record))
      if flip and rng.generator(seed, "flip", epoch, record).random() < 0.5:
        image = image[:, ::-1]
      image = change(image, functools.partial(rng.generator, seed, "policy", epoch, record))
      if patch is not None:
        image = rearrange(image, "(h i) (w j) c -> (h w) (i j c)", i=patch, j=patch)
      return image

    values = prepared(record, prepare)
    if values is None:
      others = rng.generator(seed, "replace", epoch, record)
      while values is None:
        values = prepared(int(others.integers(len(source))), prepare)
    return *values, rng.generator(seed, "device", epoch, record).integers(2**32, dtype=np.uint32)

  image = (image_size, image_size, 3)
  if patch is not None:
    assert image_size % patch == 0
    image = ((image_size // patch) ** 2, patch**2 * 3)
  shapes = {"image": (image, np.uint8), "label": (_label_shape(source), np.int32), "draw": ((), np.uint32)}
  return Examples(source, ordered, example, shapes, None)


def eval_examples(
  source: Source,
  *,
  image_size: crops.Size = 224,
  test_crop: Annotated[Choice, crops.TEST_CROPS] = Choice("resize"),
) -> Examples:
  """Each record once, in order. A bad one has mask 0: nothing can stand in for a test image."""
  with at("test_crop"):
    cut = make(test_crop, crops.TEST_CROPS, image_size)
  image, label = (image_size, image_size, 3), _label_shape(source)
  shapes = {"image": (image, np.uint8), "label": (label, np.int32), "mask": ((), np.float32)}
  nothing = np.zeros(image, np.uint8), np.full(label, -1 if label else 0), 0.0

  def prepare(image):
    return cut(image, None)

  def example(prepared, position):
    values = prepared(position, prepare) if position < len(source) else None
    return nothing if values is None else (*values, 1.0)

  return Examples(source, InOrder(len(source)), example, shapes, len(source))


def _label_shape(source):
  return () if source.labels == 1 else (source.labels,)


def batches(
  examples: Examples,
  size: int,
  rows: Sequence[int],
  start: int = 0,
  *,
  on_error: OnError = "raise",
  max_pixels: Pixels = 178_956_970,
  max_aspect: Annotated[float, schema.Range(1, 2**30)] = 100.0,
  threads: Threads = 8,
) -> "Batches":
  """Batches from step `start` on: the given rows of each global batch of `size` examples.

  Of examples with an end, the last batch is filled up, so that all processes see equally many batches.

  Args:
    examples: what the batches are made of.
    size: of a global batch.
    rows: those of it that are wanted here.
    start: step.
    on_error: a bad image, which cannot be read, decoded or prepared, stops the run with its name; with "skip" it is
      left to the examples, and `skipped` counts it.
    max_pixels: an image with more is bad. The default is what decodes to 512 MiB, as in Pillow.
    max_aspect: an image whose one side is more times the other is bad; panoramas reach 20.
    threads: that read and decode.
  """
  assert getattr(examples.order, "batch", size) == size
  ahead = ReadAhead(examples.source, examples.order, start * size)
  images = Images(ahead.source, on_error, max_pixels, max_aspect)
  return Batches(examples, size, rows, start, images, ahead, threads)


class Batches(Iterator):
  """Batches made ahead by threads, which `close` ends."""

  def __init__(
    self,
    examples: Examples,
    size: int,
    rows: Sequence[int],
    start: int,
    images: Images,
    ahead: ReadAhead,
    threads: int,
  ):
    """`images` are those of the source of the examples, read `ahead`; the rest as for `batches`."""
    rows = np.asarray(rows, np.int64)
    chunks = np.array_split(rows, max(1, -(-len(rows) // CHUNK)))

    def work(index, ended):
      step, chunk = divmod(index, len(chunks))
      filled = {name: np.empty((len(chunks[chunk]), *shape), kind) for name, (shape, kind) in examples.shapes.items()}
      positions = [step * size + int(row) for row in chunks[chunk]]
      ahead.expect(positions, images.kept)
      for i, position in enumerate(positions):
        if ended.is_set():
          break
        values = examples.example(images.prepared, position)
        for array, value in zip(filled.values(), values, strict=True):
          array[i] = value
      return filled

    stop = 2**62 if examples.length is None else -(-examples.length // size) * len(chunks)
    most = max(2 * len(chunks), min(threads, 4 * len(chunks)))
    self._parts = Prefetch(work, range(start * len(chunks), stop), min(threads, most), most)
    self._chunks = len(chunks)
    self._images, self._reading_ahead = images, ahead

  def __next__(self) -> dict[str, np.ndarray]:
    parts = [next(self._parts) for _ in range(self._chunks)]
    if len(parts) == 1:
      return parts[0]
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

  @property
  def skipped(self) -> int:
    """Different records that were bad, among those that this process has read ahead so far."""
    return len(self._images.reasons)

  @property
  def problem(self) -> ImageError | None:
    """The first error that any thread met, also if the batch that it belongs to was not asked for yet."""
    return self._images.problem

  def reading(self) -> list[tuple[str, float]]:
    """(place, seconds) of the records that are being read and prepared now, those that take longest first."""
    return self._images.reading()

  def close(self) -> None:
    """Ends the threads, except for those that never come back from a read; the iterator cannot be used afterwards."""
    self._parts.close()
    self._reading_ahead.close()

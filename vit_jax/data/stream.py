"""Examples as a pure function of (seed, position): shuffled without end for training, once in order for evaluation.

An example has image uint8 [S, S, 3] and label int32 [], or [K] padded with -1 where an image has up to K labels. For
training also draw uint32 [], which augmentation on the device follows from, and where labels count in parts share
float32 [K], how much each does; for evaluation mask float32 []. The global stream has one position per example,
step * batch + row.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Annotated

import cv2
import numpy as np
from einops import rearrange

from vit_jax import rng
from vit_jax.data import crops, mixed, policies
from vit_jax.data.mixed import Mixed
from vit_jax.data.order import ORDERS, InOrder, Order, Records
from vit_jax.data.repeats import Repeated
from vit_jax.data.sources import Source
from vit_jax.schema import Choice, ConfigError, Range, at, make

TRIES = 100  # of images of the same corpus that might stand in for a bad one
Shapes = dict[str, tuple[tuple[int, ...], type]]  # shape and type of what a batch holds of each example


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples by position, a pure function of it and of the records of a source."""

  source: Source
  order: Order | Mixed | Repeated  # of the records
  example: Callable  # (`Images.prepared`, position) -> values of what `shapes` names, in its order
  shapes: Shapes
  length: int | None  # None: without end

  def record(self, position: int) -> int:
    """The record at a position."""
    return self.order.record(position)

  def epochs(self, position: int) -> dict[str, float]:
    """How many epochs each corpus of a mixture has seen before a position, by name."""
    return mixed.epochs(self.source.corpora, position)

  @property
  def requests(self) -> bool:
    """Whether each record is a request to a server."""
    order = self.order.inner if isinstance(self.order, Repeated) else self.order
    orders = order.orders if isinstance(order, Mixed) else (order,)
    return self.source.remote and (self.source.runs is None or any(isinstance(each, Records) for each in orders))


def train_examples(
  source: Source,
  seed: int,
  patch: int | None = None,
  batch: int = 1,
  *,
  order: Annotated[Choice, ORDERS] = Choice("auto"),
  repeats: Annotated[int, Range(1, 256)] = 1,
  image_size: crops.Size = 224,
  crop: Annotated[Choice, crops.CROPS] = Choice("inception"),
  flip: bool = True,
  policy: Annotated[Choice, policies.POLICIES] = Choice("none"),
) -> Examples:
  """Epochs without end, each a new permutation of the records, in an order that may depend on the size of the `batch`.

  Of a mixture each corpus has epochs of its own, and so has its part in what follows.

  An example is cropped, mirrored half of the time with `flip`, then changed by the `policy`, and with `patch` P cut
  into patches: images are [S, S, 3], or [N, P*P*3], patches row by row, each as row, column, channel. All of it, and
  `draw`, follows from (seed, epoch, record). So does the record that replaces a bad one. With `repeats` each record
  stands so many times in a batch, drawn anew each time, and comes in one epoch of as many: see `repeats.Repeated`.
  """
  ordered = _ordered(source, batch, seed, order, repeats)
  with at("crop"):
    cut = make(crop, crops.CROPS, image_size)
  with at("policy"):
    change = make(policy, policies.POLICIES)

  def example(prepared, position):
    visit, record = ordered.visit(position), ordered.record(position)
    draw = rng.draws(seed, "example", visit, record)
    on_device = int(draw.random() * 2**32)
    mirrored = flip and draw.random() < 0.5

    def prepare(image):
      image = cut(image, draw)
      if mirrored:
        image = cv2.flip(image, 1)
      image = change(image, draw)
      return image if patch is None else _patches(image, patch)

    values, others = prepared(record, prepare), _replacements(source, seed, visit, record)
    while values is None:
      record = next(others)
      values = prepared(record, prepare)
    return (*values, on_device, source.shares(record)) if source.shares else (*values, on_device)

  image = (image_size, image_size, 3)
  if patch is not None:
    assert image_size % patch == 0
    image = ((image_size // patch) ** 2, patch**2 * 3)
  shapes = {"image": (image, np.uint8), "label": (_label_shape(source), np.int32), "draw": ((), np.uint32)}
  if source.shares:
    shapes["share"] = (_label_shape(source), np.float32)
  return Examples(source, ordered, example, shapes, None)


def _ordered(source, batch, seed, order, repeats):
  """The order of the records of a source, or of each corpus of a mixture, with their repeats."""
  if repeats > batch:
    raise ConfigError(f"{repeats} copies of a record do not fit a batch of {batch}; allowed: 1 to {batch}", "repeats")
  with at("order"):
    if source.corpora:
      once = mixed.order(order, source.corpora, batch, seed, repeats)
    else:
      together = source.runs.together if source.runs else 0
      once = make(order, ORDERS, len(source), batch, seed, together, repeats)
  return Repeated(once, batch, repeats) if repeats > 1 else once


def _patches(image, side):
  return rearrange(image, "(h i) (w j) c -> (h w) (i j c)", i=side, j=side)


def _replacements(source, seed, visit, record):
  """Records that may stand in for a bad one, without end: of its corpus, and in case all of that is bad, of any."""
  draw = rng.draws(seed, "replace", visit, record)
  for tries in itertools.count():
    some = mixed.alike(source, record) if tries < TRIES else range(len(source))
    yield some[int(draw.random() * len(some))]


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

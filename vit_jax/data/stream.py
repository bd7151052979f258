"""Streams of examples as a pure function of (seed, position).

Training examples are shuffled and repeat without end. Evaluation examples occur once, in order. The global stream has
one position per example, step * batch + row. An example contains some of these arrays. Training examples contain the
arrays that the task needs, see `views.Fields`:

- image: uint8 `(S, S, 3)`.
- label: int32 `()`, or `(K,)` padded with -1 if an image can have up to K labels.
- draw (training): uint32 `()`, the seed of the augmentation on the device.
- share (training, only with weighted labels): float32 `(K,)`, the weight of each label.
- arrays of views (training, instead of image and draw): uint8 `(count, S, S, 3)`.
- valid (evaluation): float32 `()`, 0 for examples without an image.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np

from vit_jax import rng
from vit_jax.data import crops, mixture_order, policies, views
from vit_jax.data.decoding import AnyImage
from vit_jax.data.mixture_order import MixedOrder
from vit_jax.data.order import ORDERS, Order, RecordOrder, SequentialOrder, TrainOrder
from vit_jax.data.repeats import RepeatedOrder
from vit_jax.data.sources import Source
from vit_jax.data.views import Fields, Shapes
from vit_jax.schema import Choice, ConfigError, Range, enter_key, make

WHOLE = Fields()
TRIES = 100  # attempts to replace a bad image by one of the same corpus


@dataclasses.dataclass(frozen=True)
class Examples:
  """Examples as a pure function of their position and of the records of a source.

  Attributes:
    source: source of the records.
    order: order of the records.
    example: function (`Images.read_prepared`, position) that returns the arrays of an example in the order of `shapes`.
    shapes: shape and type of each array.
    length: number of examples. None: unlimited.
  """

  source: Source
  order: Order | MixedOrder | RepeatedOrder
  example: Callable[..., tuple[Any, ...]]
  shapes: Shapes
  length: int | None

  def record(self, position: int) -> int:
    """Returns the record number at a position."""
    return self.order.record(position)

  def epochs(self, position: int) -> dict[str, float]:
    """Returns the number of epochs that each corpus of a mixture has completed before a position, by name."""
    return mixture_order.count_epochs(self.source.corpora, position)

  @property
  def requests(self) -> bool:
    """True if reading a record is a request to a server."""
    order = self.order.inner if isinstance(self.order, RepeatedOrder) else self.order
    orders = order.orders if isinstance(order, MixedOrder) else (order,)
    return self.source.remote and (self.source.runs is None or any(isinstance(each, RecordOrder) for each in orders))


def train_examples(
  source: Source,
  seed: int,
  fields: Fields = WHOLE,
  batch: int = 1,
  *,
  order: Annotated[Choice, ORDERS] = Choice("auto"),
  repeats: Annotated[int, Range(1, 256)] = 1,
  image_size: crops.Size = 224,
  crop: Annotated[Choice, crops.CROPS] = Choice("inception"),
  flip: bool = True,
  policy: Annotated[Choice, policies.POLICIES] = Choice("none"),
) -> Examples:
  """Returns training examples in epochs without end. Each epoch is a new permutation of the records.

  In a mixture each corpus has its own epochs. Images, views, `draw` and the record that replaces a bad one depend only
  on (seed, epoch, record).

  Args:
    source: source of the records.
    seed: seed of the run.
    fields: the arrays of an example. Images may be divided into patches `(N, P * P * 3)`, row by row. The values of a
      patch have the order (row, column, channel).
    batch: size of the global batch. The order of the records may depend on it.
    order: order of the records, see `order`.
    repeats: number of times that a record occurs in a batch, each time with different augmentation. A record then
      occurs in one of `repeats` epochs, see `repeats.RepeatedOrder`.
    image_size: side S of the images in pixels.
    crop: random crop of the image, see `crops`. Views have crops of their own.
    flip: whether images and views are mirrored with probability 0.5.
    policy: augmentation policy, which is applied after crop and flip, see `policies`. Views have policies of their own.

  Raises:
    ConfigError: if an argument is invalid, such as `repeats` larger than `batch`.

  Example:
    from vit_jax import schema
    from vit_jax.data import catalog, stream

    choice = schema.bind(schema.Choice("digits"), catalog.DATA["digits"], catalog.DATA)
    source = catalog.open_split(choice, "train")
    examples = stream.train_examples(source, seed=0, batch=8, image_size=32)
    examples.record(0), examples.record(len(source))  # first record of the first and of the second epoch
  """
  ordered = _create_order(source, batch, seed, order, repeats)
  if fields.views:
    prepared_images = views.prepare_views(fields, seed, flip)
  else:
    prepared_images = views.prepare_image(fields.patch, seed, image_size, crop, flip, policy)

  def example(prepared: Callable[..., Any], position: int) -> tuple[Any, ...]:
    visit, record = ordered.visit(position), ordered.record(position)
    prepare, drawn = prepared_images.open(visit, record)
    values, others = prepared(record, prepare), _draw_replacements(source, seed, visit, record)
    while values is None:
      record = next(others)
      values = prepared(record, prepare)
    images, label = values
    if not fields.label:
      return (*images, *drawn)
    return (*images, label, *drawn, source.shares(record)) if source.shares else (*images, label, *drawn)

  label = _label_shape(source)
  shapes = prepared_images.images | ({"label": (label, np.int32)} if fields.label else {}) | prepared_images.drawn
  if source.shares and fields.label:
    shapes["share"] = (label, np.float32)
  return Examples(source, ordered, example, shapes, None)


def _create_order(
  source: Source, batch: int, seed: int, order: Choice, repeats: int
) -> TrainOrder | RepeatedOrder | MixedOrder:
  """Returns the order of the records of a source or of each corpus of a mixture, including repeats."""
  if repeats > batch:
    raise ConfigError(f"{repeats} copies of a record do not fit a batch of {batch}. Allowed: 1 to {batch}", "repeats")
  with enter_key("order"):
    if source.corpora:
      once = mixture_order.create_order(order, source.corpora, batch, seed, repeats)
    else:
      together = source.runs.together if source.runs else 0
      once = make(order, ORDERS, len(source), batch, seed, together, repeats)
  return RepeatedOrder(once, batch, repeats) if repeats > 1 else once


def _draw_replacements(source: Source, seed: int, visit: int, record: int) -> Iterator[int]:
  """Yields records that can replace a bad one, without end. The first `TRIES` records are from the same corpus."""
  draw = rng.make_python_generator(seed, "replace", visit, record)
  for tries in itertools.count():
    some = mixture_order.find_corpus_records(source, record) if tries < TRIES else range(len(source))
    yield some[int(draw.random() * len(some))]


def eval_examples(
  source: Source,
  *,
  image_size: crops.Size = 224,
  test_crop: Annotated[Choice, crops.TEST_CROPS] = Choice("resize"),
) -> Examples:
  """Returns evaluation examples: each record once, in order. Bad records have valid=0 and are not replaced.

  Args:
    source: source of the records.
    image_size: side S of the images in pixels.
    test_crop: resize and crop of the images, see `crops`.

  Raises:
    ConfigError: if an argument of `test_crop` is invalid.
  """
  with enter_key("test_crop"):
    cut = make(test_crop, crops.TEST_CROPS, image_size)
  image, label = (image_size, image_size, 3), _label_shape(source)
  shapes: Shapes = {"image": (image, np.uint8), "label": (label, np.int32), "valid": ((), np.float32)}
  empty = np.zeros(image, np.uint8), np.full(label, -1 if label else 0), 0.0

  def prepare(image: AnyImage) -> Any:
    return cut(image, None)

  def example(prepared: Callable[..., Any], position: int) -> tuple[Any, ...]:
    values = prepared(position, prepare) if position < len(source) else None
    return empty if values is None else (*values, 1.0)

  return Examples(source, SequentialOrder(len(source)), example, shapes, len(source))


def _label_shape(source: Source) -> tuple[int, ...]:
  return () if source.labels == 1 else (source.labels,)

"""Predictions for many image files on all devices, while the next files are read and decoded."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import cv2
import jax
import numpy as np

from vit_jax import config, mesh, models
from vit_jax.data import loader, sources, stream
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.data.images import text_of
from vit_jax.data.order import InOrder
from vit_jax.data.readers import places
from vit_jax.evals import subject
from vit_jax.importers import surgery
from vit_jax.inference.computing import says
from vit_jax.inference.preparation import Preparation
from vit_jax.inference.stored import Stored
from vit_jax.schema import arguments

TOGETHER = 64  # maximum number of images of a batch on each device


class Row(NamedTuple):
  """The result for one file.

  Attributes:
    file: path of the file.
    best: class numbers, best first, int32 (K,).
    probability: probabilities of these classes, float32 (K,).
    features: features of the image, float32 (D,).
    reason: the error message for a bad file, otherwise None.
  """

  file: str
  best: np.ndarray | None = None
  probability: np.ndarray | None = None
  features: np.ndarray | None = None
  reason: str | None = None


def predictions(
  use: Stored,
  files: Sequence[str],
  devices: Sequence[jax.Device],
  features: models.Features | None,
  poll: Callable[[], None],
  together: int = TOGETHER,
) -> Iterator[list[Row]]:
  """Yields the results of image files in their order, one batch at a time.

  Only the batches in progress are kept in memory.

  Args:
    use: the weights.
    files: paths of the image files.
    devices: devices of this process. Each batch is split over them.
    features: the features to compute in addition, or None.
    poll: function that is called between batches. It raises an exception to stop.
    together: number of images of a batch on each device.

  Yields:
    The rows of one batch.
  """
  grid = mesh.make(config.Mesh(), devices)
  model = models.functional(use.description).on(grid)
  shardings = mesh.parameters(models.sharding(use.description.model.name), model.shapes(), grid)
  arrays = surgery.stack(use.arrays, tuple(shardings))
  params = {path: mesh.place(arrays[path], target) for path, target in shardings.items()}
  says_of = says(model, use.data, use.loss, features)

  def program(params, batch):
    return says_of(params, batch["image"]) | {"mask": batch["mask"]}

  compute = jax.jit(program, out_shardings=mesh.replicated(grid))
  size = len(devices) * min(together, -(-len(files) // len(devices)))
  reasons, split = {}, mesh.batch(grid)
  rows = mesh.local_rows(split, size)
  made = loader.batches(_examples(use, files, reasons), size, rows, **arguments(use.data, loader.batches))
  batches = DeviceBatches(made, rows, size, split)
  computed = subject.parts(lambda batch: compute(params, batch), batches, poll, size, files.__getitem__)
  for first, part in zip(range(0, len(files), size), computed, strict=True):
    yield _rows(files, first, size, part, reasons)


def _examples(use, files, reasons) -> stream.Examples:
  """Returns the files as examples for evaluation. Errors of bad files are stored in `reasons`, by number of the file.

  Bad files never stop the work, even if there are many. Unlike in a dataset, each file has a row of its own.
  """
  preparation = Preparation.of(use.data)
  image = (preparation.size, preparation.size, 3)
  nothing = np.zeros(image, np.uint8), 0.0

  def example(_, position):
    if position >= len(files):
      return nothing
    try:
      return preparation.file(places.content(files[position])), 1.0
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      reasons[position] = (error.strerror if isinstance(error, OSError) and error.strerror else text_of(error)) or "?"
      return nothing

  source = sources.Source("images", "all", (), len(files), lambda i: (places.content(files[i]), 0), files.__getitem__)
  shapes = {"image": (image, np.uint8), "mask": ((), np.float32)}
  return stream.Examples(source, InOrder(len(files)), example, shapes, len(files))


def _rows(files, first, size, part, reasons) -> list[Row]:
  """Returns the rows of one batch, including those of bad files."""
  good = dict(zip(part.pop("position").tolist(), range(size), strict=False))
  return [
    Row(files[i], **{name: values[good[i]] for name, values in part.items()})
    if i in good
    else Row(files[i], reason=reasons.pop(i))
    for i in range(first, min(first + size, len(files)))
  ]

"""Predictions for many image files on all devices, while the next files are read and decoded."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import jax
import numpy as np

from vit_jax import config, models
from vit_jax.data import sources, stream
from vit_jax.data.device_batches import DeviceBatches
from vit_jax.data.images import describe_image_error
from vit_jax.data.order import SequentialOrder
from vit_jax.data.readers import locations
from vit_jax.evals import subject
from vit_jax.importers import surgery
from vit_jax.inference.computing import make_predict_function
from vit_jax.inference.preparation import Preparation
from vit_jax.inference.stored import StoredWeights
from vit_jax.parallel import sharding

TOGETHER = 64  # maximum number of images of a batch on each device


class FileResult(NamedTuple):
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


def predict_files(
  use: StoredWeights,
  files: Sequence[str],
  devices: Sequence[jax.Device],
  features: models.Features | None,
  poll: Callable[[], None],
  together: int = TOGETHER,
) -> Iterator[list[FileResult]]:
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
  grid = sharding.make_mesh(config.Mesh(), devices)
  model = models.make_functional(use.description).place_on(grid)
  shardings = sharding.find_parameter_shardings(models.find_sharding(use.description.model.name), model.shapes(), grid)
  arrays = surgery.stack({name: np.asarray(array) for name, array in use.arrays.items()}, tuple(shardings))
  params = {path: sharding.place_array(arrays[path], target) for path, target in shardings.items()}
  says_of = make_predict_function(model, use.data, use.loss, features)

  def program(params: dict[str, jax.Array], batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    return says_of(params, batch["image"]) | {"valid": batch["valid"]}

  compute = jax.jit(program, out_shardings=sharding.make_replicated_sharding(grid))
  size = len(devices) * min(together, -(-len(files) // len(devices)))
  reasons, split = {}, sharding.make_batch_sharding(grid)
  rows = sharding.find_local_rows(split, size)
  made = use.data.batches(_make_examples(use, files, reasons), size, rows.tolist())
  batches = DeviceBatches(made, rows, size, split)
  computed = subject.compute_batches(lambda batch: compute(params, batch), batches, poll, size, files.__getitem__)
  for first, part in zip(range(0, len(files), size), computed, strict=True):
    yield _make_rows(files, first, size, part, reasons)


def _make_examples(use: StoredWeights, files: Sequence[str], reasons: dict[int, str]) -> stream.Examples:
  """Returns the files as examples for evaluation. Errors of bad files are stored in `reasons`, by number of the file.

  Bad files never stop the work, even if there are many. Unlike in a dataset, each file has a row of its own.
  """
  preparation = Preparation.from_data(use.data)
  image = (preparation.size, preparation.size, 3)
  blank = np.zeros(image, np.uint8), 0.0

  def example(_: object, position: int) -> tuple[Any, ...]:
    if position >= len(files):
      return blank
    try:
      return preparation.prepare_file(locations.read_content(files[position])), 1.0
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      reasons[position] = describe_image_error(error, files[position]) or "?"
      return blank

  source = sources.Source(
    "images", "all", (), len(files), lambda i: (locations.read_content(files[i]), 0), files.__getitem__
  )
  shapes: dict[str, tuple[tuple[int, ...], type]] = {"image": (image, np.uint8), "valid": ((), np.float32)}
  return stream.Examples(source, SequentialOrder(len(files)), example, shapes, len(files))


def _make_rows(
  files: Sequence[str], first: int, size: int, part: dict[str, np.ndarray], reasons: dict[int, str]
) -> list[FileResult]:
  """Returns the rows of one batch, including those of bad files."""
  good = dict(zip(part.pop("position").tolist(), range(size), strict=False))
  result = []
  for i in range(first, min(first + size, len(files))):
    if i in good:
      of_file: Mapping[str, Any] = {name: values[good[i]] for name, values in part.items()}
      result.append(FileResult(files[i], **of_file))
    else:
      result.append(FileResult(files[i], reason=reasons.pop(i)))
  return result

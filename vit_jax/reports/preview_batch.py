"""Images of the first batch of a run: as stored in their files, and as the first step of the run will see them."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from vit_jax import config, losses, models, rng, tasks
from vit_jax.corpora import stats
from vit_jax.data import catalog, crops, decoding, loader, stream
from vit_jax.data.images import ImageError, Images
from vit_jax.data.sources import Source
from vit_jax.data.views import Fields
from vit_jax.parallel import sharding
from vit_jax.schema import Choice, Duration, bind, lookup
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun

COUNT = 24  # number of images to show
SIDE = 256  # longer side in pixels of the reduced original image
# Maximum number of values of a batch that is augmented as a whole. These values take about 1 GiB.
WHOLE = 2**26


class PreviewExample(NamedTuple):
  """An image of a batch. If the image cannot be read, it has an error, no pixels and no labels.

  Attributes:
    record: number of the record.
    labels: classes of the image.
    original: the whole image, reduced in size, uint8 (H, W, 3).
    seen: the augmented image, which is the input of the model, uint8 (S, S, 3).
    target: pairs (class, share) before label smoothing, the largest share first.
    error: reason why the image cannot be read.
  """

  record: int
  labels: tuple[int, ...] = ()
  original: np.ndarray | None = None
  seen: np.ndarray | None = None
  target: tuple[tuple[int, float], ...] = ()
  error: str | None = None


def compute_first_images(run: BoundRun, source: Source, count: int = COUNT) -> tuple[list[PreviewExample], bool]:
  """Computes the first images of the first batch, in the order of its rows.

  The functions and random numbers are the same as in the run. Only the rows that are shown, and the rows with which
  they may be mixed, are computed. Mixing by "batch" depends on these rows alone. Mixing by "pair" or "elem" draws
  numbers for each row of the batch. If the batch is too large to compute, the shares therefore differ from those of the
  run. An image that would end the run has an error. For a task that needs views, the first view of each image is shown.

  Args:
    run: a completed run.
    source: the training images.
    count: number of images.

  Returns:
    The examples, and whether they are mixed exactly as in the run.
  """
  if not run.learns_classes and (fields := _make_task(run, source).fields).views:
    return _compute_first_views(run, source, fields, count), True
  task = _make_task(_replace_task(run), source)
  examples = catalog.open_train_examples(run.data, run.seed, task.fields, run.batch, source)
  images = run.data.images(source)
  rows, count = select_rows(run.batch, count), min(count, run.batch)
  by_image = run.data.mixing.args.get("mode", "batch") != "batch"
  fits = 3 * run.batch * run.data.image_size**2 <= WHOLE
  size, places = (run.batch, rows) if by_image and fits else (len(rows), range(len(rows)))
  made = _prepare_images(images, examples, rows)
  batch = {name: np.zeros((size, *shape), kind) for name, (shape, kind) in examples.shapes.items()}
  batch["label"][:] = -1  # rows without an image have no class
  for place, (_, _, values, _) in zip(places, made, strict=True):
    for array, value in zip(batch.values(), values or (), strict=values is not None):
      array[place] = value
  seen, targets = map(np.asarray, _make_augmentation(run, task, count)(batch, jnp.zeros((), jnp.int32)))
  shown = [
    _make_example(run, task.fields.patch, each, image.astype(np.float32), target)
    for each, image, target in zip(made[:count], seen, targets, strict=True)
  ]
  return shown, size == run.batch or not by_image


def _compute_first_views(run: BoundRun, source: Source, fields: Fields, count: int) -> list[PreviewExample]:
  """Returns the first view of the first images. They have no targets."""
  whole = dataclasses.replace(fields, patch=None)
  examples = catalog.open_train_examples(run.data, run.seed, whole, run.batch, source)
  made = _prepare_images(run.data.images(source), examples, range(min(count, run.batch)))
  return [
    PreviewExample(record, error=error) if error else PreviewExample(record, original=original, seen=values[0][0])
    for record, original, values, error in made
  ]


def _prepare_images(images: Images, examples: stream.Examples, rows: Iterable[int]) -> list[tuple[Any, ...]]:
  """Returns the results of `_prepare_image` for several rows."""
  threads = max(loader.REQUESTS if examples.requests else 2, decoding.count_usable_cores())
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    return list(pool.map(lambda row: _prepare_image(images, examples, row), rows))


def _replace_task(run: BoundRun) -> BoundRun:
  """Returns the run with classification by the same loss and without label smoothing, so that targets are shares."""
  kept = {key: value for key, value in run.task.args.items() if key == "loss" and value in losses.LOSSES}
  choice = bind(Choice("classify", kept), lookup(tasks.TASKS, "classify"), tasks.TASKS)
  return dataclasses.replace(run, task=choice)


def _make_task(run: BoundRun, source: Source) -> tasks.Task:
  """Returns the task of a run on one device."""
  total = run.total.count_steps(run.batch, len(source))

  def count_steps(duration: Duration) -> int:
    return duration.count_steps(run.batch, len(source), total)

  grid = sharding.make_mesh(config.Mesh(), jax.devices()[:1])
  model = models.make_functional(build.describe_model(run, source.classes)).place_on(grid)
  return build.make_task(run, model, total, count_steps, build.make_frozen_model_opener(run, grid, source.classes))


def select_rows(batch: int, count: int) -> list[int]:
  """Selects the rows of a batch that a preview computes.

  Args:
    batch: number of images in the batch.
    count: number of images to show.

  Returns:
    The rows to show, and the rows of the reversed batch with which they may be mixed, in order.
  """
  shown = range(min(count, batch))
  return sorted({*shown, *(batch - 1 - row for row in shown)})


def _prepare_image(images: Images, examples: stream.Examples, row: int) -> tuple[Any, ...]:
  """Returns (record, reduced image, values of the example, None), or (record, None, None, error)."""
  record, original = examples.record(row), None

  def read_and_shrink(number: int, prepare: Callable[[Any], object]) -> Any:
    nonlocal record, original
    record = number  # differs from the first record if that one is bad and was skipped

    def look(image: object) -> Any:
      nonlocal original
      original = crops.shrink(np.asarray(image), SIDE)
      return prepare(image)

    return images.read_prepared(number, look)

  try:
    values = examples.example(read_and_shrink, row)
    return record, original, values, None
  except ImageError as error:
    return record, None, None, stats.shorten_error(error)


def _make_augmentation(run: BoundRun, task: tasks.Task, count: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
  """Returns the function (batch, step) -> (images, targets) of `steps.make_train_step`, for `count` rows."""

  @jax.jit
  def function(batch: Mapping[str, jax.Array], step: jax.Array) -> tuple[jax.Array, jax.Array]:
    examples = task.examples(batch, tasks.Context(step, {}, {}), rng.derive_key(run.seed, step, "augment"))
    return jnp.asarray(examples["image"][:count]), jnp.asarray(examples["target"][:count])

  return function


def _make_example(
  run: BoundRun, patch: int | None, made: tuple[Any, ...], seen: np.ndarray, target: np.ndarray
) -> PreviewExample:
  record, original, values, error = made
  if error is not None:
    return PreviewExample(record, error=error)
  if patch is not None:
    side = run.data.image_size // patch
    seen = rearrange(seen, "(h w) (i j c) -> (h i) (w j) c", h=side, i=patch, j=patch)
  mean, std = (np.asarray(values, np.float32) for values in run.data.normalisation.values())
  pixels = np.clip(np.rint((seen * std + mean) * 255), 0, 255).astype(np.uint8)
  best = [int(label) for label in np.argsort(-target, kind="stable")[:5] if target[label] > 0.005]
  labels = tuple(int(label) for label in np.atleast_1d(values[1]) if label >= 0)
  return PreviewExample(record, labels, original, pixels, tuple((label, float(target[label])) for label in best))

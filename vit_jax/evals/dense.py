"""Dense probes: linear classifiers of frozen patch tokens that predict the class of each pixel.

The protocol follows DINOv2 and DINOv3 (Oquab et al. 2023, section 7.4), simplified so that the result is exact. Tokens
after the last norm are standardised, like the batch norm in those papers. The papers train for thousands of steps with
AdamW. Here L-BFGS minimises the cross-entropy with the fractions of classes in each patch, so that every pixel
contributes with the features of its patch. Scores are resized bilinearly to the pixels of the image and compared with
the mask by intersection over union. Whole images and masks are resized to a square, without sliding windows or
augmentation.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from vit_jax import rng, runtime
from vit_jax.data import catalog, masks, sources
from vit_jax.data.bound_data import EvalData
from vit_jax.data.images import ImageError
from vit_jax.evals import probes
from vit_jax.evals.subject import EvalContext, Measure, Outcome, Poll, Rows, Weights, compute_batches, open_source
from vit_jax.parallel import sharding
from vit_jax.schema import (
  Choice,
  ConfigError,
  Count,
  Range,
  enter_key,
  format_amount,
  get_current_key,
)

FIGURES = ["mean_iou", "pixel_accuracy", "images"]
THREADS = 16  # threads that read masks


class DenseDetails(NamedTuple):
  """The data from which the figures were computed, on the first process.

  Attributes:
    classes: names of the classes.
    pixels: `(V, V)`, int64. Number of pixels by true and predicted class.
    train: images to which the probe was fitted.
    test: images on which it was measured.
  """

  classes: tuple[str, ...]
  pixels: np.ndarray
  train: sources.Source
  test: sources.Source

  @property
  def iou(self) -> dict[str, float | None]:
    """Returns the intersection over union of each class.

    None for a class that occurs in neither masks nor predictions.
    """
    values = intersection_over_union(self.pixels).tolist()
    return {name: None if np.isnan(value) else value for name, value in zip(self.classes, values, strict=True)}


def dense(
  subject: EvalContext,
  *,
  data: Annotated[EvalData | None, catalog.EVAL_DATA] = None,
  train: str = "train",
  test: str = "test",
  probe: Annotated[Choice, probes.OF_SHARES] = Choice("logistic"),
  patches: Count = 2**18,
  batch: Annotated[int, Range(1, 2**16)] | None = None,
) -> Measure:
  """Builds a function (params, poll) -> Outcome with the mean IoU over classes and the fraction of correct pixels.

  Intersections and unions are summed over the whole split. The mean is over the classes that occur in the masks or the
  predictions. Pixels without a class (255 in masks) are ignored.

  Args:
    subject: the model and its data.
    data: a dataset with masks. Whole images must be resized (test_crop "resize").
    train: the split to which the probe is fitted. Each image is used once.
    test: the split on which the probe is measured.
    probe: "logistic", or "ridge" for least squares in closed form, which does not predict rare classes. `l2` is the
      penalty on the weights of standardised tokens. Each token is weighted by the labelled fraction of its patch.
    patches: maximum number of patches for the fit. The same number of patches is drawn at random from each image. For
      width 768, the default needs 0.8 GB.
    batch: images per batch.

  Raises:
    ConfigError: the data have no suitable masks or splits.
  """
  size, here = subject.choose_batch_size(batch), get_current_key()
  sources_of = {key: open_source(subject, data, split, key) for key, split in (("train", train), ("test", test))}
  classes = _check_data(subject, data, **sources_of)
  side, _, width = subject.map_shape
  tokens, segments = subject.compile_tokens(data), subject.compile_segments(data)

  def fit_and_measure(params: Weights, poll: Poll) -> Outcome:
    def iterate_batches(
      compute: Callable[[Rows], Rows], split: str
    ) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
      return _add_masks(compute, subject, data, sources_of[split], size, poll)

    learnt, problem, fitted = [], None, (np.zeros((width, len(classes))), np.zeros(len(classes)))
    for rows, truth in iterate_batches(lambda images: tokens(params, images), "train"):
      shares = masks.compute_shares(truth, side, len(classes)).astype(np.float32)
      for record, *of_image in zip(rows["position"].tolist(), rows["tokens"], shares, strict=True):
        few = _draw_patches(record, side**2, patches // len(sources_of["train"]))
        learnt.append([values.reshape(side**2, -1)[few] for values in of_image])
    if jax.process_index() == 0:
      try:
        fitted = _fit_probe(learnt, classes, probe)
      except ConfigError as error:
        problem = str(error)
    runtime.raise_together(problem)
    linear = [
      sharding.place_array(
        runtime.copy_from_first(array.astype(np.float32)), sharding.make_replicated_sharding(subject.mesh)
      )
      for array in fitted
    ]
    pixels, images = np.zeros((len(classes), len(classes)), np.int64), 0
    for rows, truth in iterate_batches(lambda images: segments((params, *linear), images), "test"):
      pixels += count_confusion(truth, rows["classes"], len(classes))
      images += len(truth)
    message = f"{get_current_key('test')}: its masks contain no pixel of a class. Use another split"
    runtime.raise_together(message if jax.process_index() == 0 and not pixels.sum() else None)
    figures = runtime.copy_from_first(np.array([*_compute_figures(pixels), images])).tolist()
    details = DenseDetails(classes, pixels, **sources_of) if jax.process_index() == 0 else None
    return Outcome(dict(zip(FIGURES, figures, strict=True)) | {"images": int(figures[-1])}, details)

  def measure(params: Weights, poll: Poll) -> Outcome:
    with enter_key(here):
      return fit_and_measure(params, poll)

  return measure


def count_confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
  """Counts pixels by true and predicted class. Pixels without a class are ignored.

  Args:
    truth: true classes, of any shape. Values of `classes` and above mean that a pixel has no class.
    predicted: predicted classes, of the same shape.
    classes: number of classes V.

  Returns:
    `(V, V)`, int64.

  Example:
    import numpy as np
    from vit_jax.evals.dense import count_confusion, intersection_over_union

    pixels = count_confusion(np.array([0, 1, 1, 255]), np.array([0, 1, 0, 1]), 2)
    assert pixels.tolist() == [[1, 0], [1, 1]]
    assert intersection_over_union(pixels).tolist() == [0.5, 0.5]
  """
  of_class = truth < classes
  numbers = truth[of_class].astype(np.int64) * classes + predicted[of_class]
  return np.bincount(numbers, minlength=classes**2).reshape(classes, classes)


def intersection_over_union(pixels: np.ndarray) -> np.ndarray:
  """Computes the intersection over union of each class.

  Args:
    pixels: confusion matrix `(V, V)`.

  Returns:
    `(V,)`. NaN for a class that occurs in neither masks nor predictions.
  """
  both = np.diag(pixels)
  union = pixels.sum(0) + pixels.sum(1) - both
  return np.where(union > 0, both / np.maximum(union, 1), np.nan)


def _compute_figures(pixels: np.ndarray) -> tuple[float, float]:
  """Returns (mean IoU, pixel accuracy), or NaN without pixels."""
  if not pixels.sum():
    return np.nan, np.nan
  return float(np.nanmean(intersection_over_union(pixels))), float(np.trace(pixels) / pixels.sum())


def _check_data(
  subject: EvalContext, data: EvalData | None, train: sources.Source, test: sources.Source
) -> tuple[str, ...]:
  """Returns the classes of the masks. Raises ConfigError for data that cannot be measured."""
  key = "config.data" if data is None else "data"
  found = []
  for source in (train, test):
    if source.masks is None:
      having = [name for name, row in catalog.CATALOG.items() if row.segments]
      raise ConfigError(
        f"images of {source.name} have no masks. Allowed: {', '.join([*having, 'segmentation'])}", "data"
      )
    found.append(source.masks.classes)
  classes, of_test = found
  if classes != of_test:
    raise ConfigError(f"masks of {test.split!r} have other classes than those of {train.split!r}", "test")
  if not 2 <= len(classes) <= masks.NONE:
    raise ConfigError(f"masks of {format_amount(len(classes), 'class', 'classes')}. Allowed: 2 to {masks.NONE}", "data")
  crop = subject.choose_data(data).test_crop.name
  with enter_key(key) if data is not None else contextlib.nullcontext():
    if crop != "resize":
      raise ConfigError(
        f"{crop!r} crops images, but masks are not cropped. Use 'resize'"
        + ("" if data is not None else ", or give the evaluation its own data: data=dict(name=..., test_crop=...)"),
        "test_crop.name" if data is not None else "data",
      )
  return classes


def _add_masks(
  compute: Callable[[Rows], Rows],
  subject: EvalContext,
  data: EvalData | None,
  source: sources.Source,
  size: int,
  poll: Poll,
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
  """Yields (rows, masks `(N, S, S)`, uint8) of each batch on the first process, without bad images.

  Other processes yield no values. After all processes have computed their rows, a bad mask raises ConfigError on every
  process.
  """
  images, side = subject.choose_data(data).images(source), subject.choose_data(data).image_size
  problem = None
  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool, subject.show_progress(source, size, poll) as counted:
    for rows in compute_batches(compute, subject.open_batches(data, source, size), counted, size, source.display_name):
      if jax.process_index() or problem:
        continue
      try:
        read = list(pool.map(lambda record: masks.read_mask(images, record, side), rows["position"].tolist()))
      except ImageError as error:
        problem = str(error)
        continue
      good = {i: mask for i, mask in enumerate(read) if mask is not None}
      if good:
        yield {name: values[list(good)] for name, values in rows.items()}, np.stack(list(good.values()))
  runtime.raise_together(problem)


def _draw_patches(record: int, patches: int, count: int) -> np.ndarray:
  """Returns the numbers of `count` randomly drawn patches of a record's image (at least one patch, at most all)."""
  draws = rng.make_numpy_generator(0, "patches of a dense probe", record)
  return np.sort(draws.permutation(patches)[: max(1, count)])


def _fit_probe(learnt: list[list[np.ndarray]], classes: tuple[str, ...], probe: Any) -> tuple[np.ndarray, np.ndarray]:
  """Fits the probe to (tokens, fractions) of each image. Returns (kernel `(D, V)`, bias `(V,)`)."""
  if not learnt:
    raise ConfigError("no image with a mask can be decoded", "train")
  tokens, shares = (np.concatenate(each) for each in zip(*learnt, strict=True))
  shown = np.flatnonzero(shares.sum(0))
  if len(shown) < 2:
    seen = "".join(f"{classes[i]!r} alone" for i in shown) or "no class at all"
    raise ConfigError(f"masks contain {seen}, but a probe needs two classes", "train")
  return probes.fold_standardisation(probes.OF_SHARES[probe.name](tokens, shares, **probe.args))

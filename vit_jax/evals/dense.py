"""Dense probes: linear classifiers of frozen patch tokens, for the class of each pixel, by intersection over union.

As DINOv2 and DINOv3 measure (Oquab et al. 2023, section 7.4), simplified to what has one exact answer. Tokens after the
last norm are standardised, as a batch norm does in theirs; instead of thousands of steps of AdamW the cross-entropy of
the shares of classes in each patch has its minimum by L-BFGS, so that every pixel counts by the features of its patch.
Scores are scaled bilinearly to the pixels of the image and compared with the mask. Images are squashed whole, without
windows that slide or augmentation, and so are their masks.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import jax
import numpy as np

from vit_jax import mesh, probes, rng, runtime
from vit_jax.data import catalog, loader, masks, sources
from vit_jax.data.images import ImageError, Images
from vit_jax.evals.subject import Outcome, Subject, open_source, parts
from vit_jax.schema import Choice, ConfigError, Count, Range, amount, arguments, at, place

FIGURES = ["mean_iou", "pixel_accuracy", "images"]
THREADS = 16  # that read masks


class Details(NamedTuple):
  """What the figures are made of, on the first process."""

  classes: tuple[str, ...]
  pixels: np.ndarray  # int64 [V, V]: of which class, and taken for which
  train: sources.Source
  test: sources.Source

  @property
  def iou(self) -> dict[str, float | None]:
    """Intersection over union of each class; None of one that neither masks nor predictions have."""
    values = intersection_over_union(self.pixels).tolist()
    return {name: None if np.isnan(value) else value for name, value in zip(self.classes, values, strict=True)}


def dense(
  subject: Subject,
  *,
  data: Annotated[Choice | None, catalog.EVAL_DATA] = None,
  train: str = "train",
  test: str = "test",
  probe: Annotated[Choice, probes.OF_SHARES] = Choice("logistic"),
  patches: Count = 2**18,
  batch: Annotated[int, Range(1, 2**16)] | None = None,
) -> Callable:
  """(params, poll) -> mean IoU over classes, and the share of pixels that are right.

  Intersections and unions are summed over the whole split. The mean is over classes that its masks have, or that were
  predicted. Pixels of no class, 255 in masks, count nowhere.

  Args:
    subject: the model and its data.
    data: a dataset with masks, squashed whole (test_crop "resize").
    train: the split that the probe is fitted to, each image once.
    test: the split that it is measured on.
    probe: "logistic", or "ridge", least squares in closed form, which misses classes that are rare; `l2` is the penalty
      on the weights, of standardised tokens, for each of which the labelled share of its patch counts.
    patches: to fit it to, at most, equally many of each image, drawn at random; of width 768 the default takes 0.8 GB.
    batch: images at a time.
  """
  size, here = subject.images_at_once(batch), place()
  sources_of = {key: open_source(subject, data, split, key) for key, split in (("train", train), ("test", test))}
  classes = _check(subject, data, **sources_of)
  side, _, width = subject.map_shape
  tokens, segments = subject.tokens(data), subject.segments(data)

  def measure(params: dict[str, jax.Array], poll: Callable[[], None]) -> Outcome:
    with at(here):
      return measured(params, poll)

  def measured(params, poll):
    def pairs(compute, split):
      return _with_masks(compute, subject, data, sources_of[split], size, poll)

    learnt, problem, fitted = [], None, (np.zeros((width, len(classes))), np.zeros(len(classes)))
    for rows, truth in pairs(lambda images: tokens(params, images), "train"):
      shares = masks.shares(truth, side, len(classes)).astype(np.float32)
      for record, *of_image in zip(rows["position"].tolist(), rows["tokens"], shares, strict=True):
        few = _drawn(record, side**2, patches // len(sources_of["train"]))
        learnt.append([values.reshape(side**2, -1)[few] for values in of_image])
    if jax.process_index() == 0:
      try:
        fitted = _fitted(learnt, classes, probe)
      except ConfigError as error:
        problem = str(error)
    runtime.agree(problem)
    linear = [
      mesh.place(runtime.from_first(array.astype(np.float32)), mesh.replicated(subject.mesh)) for array in fitted
    ]
    pixels, images = np.zeros((len(classes), len(classes)), np.int64), 0
    for rows, truth in pairs(lambda images: segments((params, *linear), images), "test"):
      pixels += confusion(truth, rows["classes"], len(classes))
      images += len(truth)
    nothing = f"{place('test')}: no pixel of its masks is of a class; take another split"
    runtime.agree(nothing if jax.process_index() == 0 and not pixels.sum() else None)
    figures = runtime.from_first(np.array([*_figures(pixels), images])).tolist()
    details = Details(classes, pixels, **sources_of) if jax.process_index() == 0 else None
    return Outcome(dict(zip(FIGURES, figures, strict=True)) | {"images": int(figures[-1])}, details)

  return measure


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
  """How many pixels [V, V] are of which class, and are taken for which; those of no class are left out."""
  of_class = truth < classes
  numbers = truth[of_class].astype(np.int64) * classes + predicted[of_class]
  return np.bincount(numbers, minlength=classes**2).reshape(classes, classes)


def intersection_over_union(pixels: np.ndarray) -> np.ndarray:
  """[V] of a confusion [V, V]; NaN for a class that is neither there nor predicted."""
  both = np.diag(pixels)
  union = pixels.sum(0) + pixels.sum(1) - both
  return np.where(union > 0, both / np.maximum(union, 1), np.nan)


def _figures(pixels) -> tuple[float, float]:
  """(mean IoU, pixel accuracy); of no pixel NaN."""
  if not pixels.sum():
    return np.nan, np.nan
  return float(np.nanmean(intersection_over_union(pixels))), float(np.trace(pixels) / pixels.sum())


def _check(subject, data, train, test) -> tuple[str, ...]:
  """The classes of the masks; ConfigError for what cannot be measured."""
  key = "config.data" if data is None else "data"
  for source in (train, test):
    if source.masks is None:
      having = [name for name, row in catalog.CATALOG.items() if row.segments]
      raise ConfigError(
        f"images of {source.name} have no masks; allowed: {', '.join([*having, 'segmentation'])}", "data"
      )
  if train.masks.classes != test.masks.classes:
    raise ConfigError(f"masks of {test.split!r} have other classes than those of {train.split!r}", "test")
  if not 2 <= len(train.masks.classes) <= masks.NONE:
    raise ConfigError(
      f"masks of {amount(len(train.masks.classes), 'class', 'classes')}; allowed: 2 to {masks.NONE}", "data"
    )
  crop = subject.data(data).args["test_crop"].name
  with at(key) if data is not None else contextlib.nullcontext():
    if crop != "resize":
      raise ConfigError(
        f"{crop!r} cuts images, and masks are whole; take 'resize'"
        + ("" if data is not None else ", or give the evaluation its own data: data=dict(name=..., test_crop=...)"),
        "test_crop.name" if data is not None else "data",
      )
  return train.masks.classes


def _with_masks(compute, subject, data, source, size, poll) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
  """(rows of a batch, masks uint8 [N, S, S]) of a split on the first process, without bad ones; the others get none.

  A bad mask is a ConfigError on all, when all have computed what they share.
  """
  wanted = arguments(subject.data(data), loader.batches)
  account = ("on_error", "max_pixels", "max_aspect", "exif", "max_bad")
  images, side = Images(source, *(wanted[key] for key in account)), subject.data(data).args["image_size"]
  problem = None
  with concurrent.futures.ThreadPoolExecutor(THREADS) as pool, subject.counting(source, size, poll) as counted:
    for rows in parts(compute, subject.batches(data, source, size), counted, size, source.called):
      if jax.process_index() or problem:
        continue
      try:
        read = list(pool.map(lambda record: masks.read(images, record, side), rows["position"].tolist()))
      except ImageError as error:
        problem = str(error)
        continue
      good = [i for i, mask in enumerate(read) if mask is not None]
      if good:
        yield {name: values[good] for name, values in rows.items()}, np.stack([read[i] for i in good])
  runtime.agree(problem)


def _drawn(record, patches, count) -> np.ndarray:
  """Numbers of so many patches of a record's image, at least one; of as many as there are, all."""
  draws = rng.generator(0, "patches of a dense probe", record)
  return np.sort(draws.permutation(patches)[: max(1, count)])


def _fitted(learnt, classes, probe) -> tuple[np.ndarray, np.ndarray]:
  """(kernel [D, V], bias [V]) of the probe, of (tokens, shares) of each image."""
  if not learnt:
    raise ConfigError("there is no image with a mask that can be decoded", "train")
  tokens, shares = (np.concatenate(each) for each in zip(*learnt, strict=True))
  shown = np.flatnonzero(shares.sum(0))
  if len(shown) < 2:
    seen = "".join(f"{classes[i]!r} alone" for i in shown) or "no class at all"
    raise ConfigError(f"masks show {seen}; a probe needs two classes", "train")
  return probes.affine(probes.OF_SHARES[probe.name](tokens, shares, **probe.args))

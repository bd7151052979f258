"""A model to use in Python: images in, classes and features out, and the pure function behind both."""

import concurrent.futures
import dataclasses
import functools
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import cv2
import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from vit_jax import extensions, models
from vit_jax.data import augment, decoding
from vit_jax.data.images import ImageError, text_of
from vit_jax.data.readers import places
from vit_jax.importers import surgery
from vit_jax.inference import stored
from vit_jax.inference.computing import says
from vit_jax.inference.preparation import Preparation
from vit_jax.models import finite
from vit_jax.schema import Choice, ConfigError, arguments, at, convert

TOGETHER = 64  # images that are computed at one time, at most


class Prediction(NamedTuple):
  """The best classes of an image, best first."""

  names: tuple[str, ...]
  probabilities: tuple[float, ...]
  numbers: tuple[int, ...]  # of the classes


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
  """A model with its weights, and what its images and classes are. `load` makes it; nothing of it changes.

  An image is a path, of a disk or a bucket, an image of Pillow, or pixels [H, W, 3] or [H, W] of uint8. Methods that
  take images take one, or a list of them, and give one or a list. A bad image is an ImageError (a ValueError) that
  names it.
  """

  description: models.Description
  classes: tuple[str, ...]  # names, or numbers where nobody says them
  params: Mapping[str, jax.Array] = dataclasses.field(repr=False)  # by path
  data: Choice = dataclasses.field(repr=False)  # how images are prepared
  loss: str  # that it was trained with, which says what logits stand for
  notes: tuple[str, ...] = ()  # on what was taken for granted

  def predict(self, images: Any) -> Prediction | list[Prediction]:
    """Returns the best five classes of each image, best first; all classes if there are fewer.

    Args:
      images: an image or a list of images.

    Raises:
      ConfigError: the model has no head.
      NotFiniteError: the outputs for an image are NaN or infinite.
    """
    if not self.classes:
      raise ConfigError("the model has no head, and so predicts no class; take `features`")
    computed = self._computed(images, None)
    rows = [
      Prediction(tuple(self.classes[i] for i in best), tuple(probability), tuple(best))
      for best, probability in zip(computed["best"].tolist(), computed["probability"].tolist(), strict=True)
    ]
    return rows[0] if _is_one(images) else rows

  def features(self, images: Any, of: models.Features = "head") -> np.ndarray:
    """Returns the features of an image, float32 [D], or of a list of images, [N, D].

    Args:
      images: an image or a list of images.
      of: "head" for the input of the head, "cls", "patches" or "cls_patches"; see `models.output.features_of`.

    Raises:
      ConfigError: `of` is unknown, or the model has no class token.
      NotFiniteError: the features of an image are NaN or infinite.
    """
    with at("of"):
      of = convert(of, models.Features)
    features = self._computed(images, of)["features"]
    return features[0] if _is_one(images) else features

  def square(self, image: Any) -> np.ndarray:
    """One image, cut and scaled as the model takes it, uint8 [S, S, 3]."""
    if not isinstance(image, str | os.PathLike):
      return self._preparation.pixels(np.asarray(image.convert("RGB") if isinstance(image, Image.Image) else image))
    try:
      return self._preparation.file(places.content(os.fspath(image)))
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      raise ImageError(f"{os.fspath(image)}: {text_of(error)}") from error

  def preprocess(self, image: Any) -> np.ndarray:
    """One image as the model takes it: cut, scaled and normalised, float32 [S, S, 3]."""
    return np.asarray(augment.normalise(self.square(image), **arguments(self.data, augment.normalise)))

  def logits(self, params: Mapping[str, jax.Array], batch: jax.Array) -> jax.Array:
    """Returns logits [B, V] in float32 of normalised images [B, S, S, 3].

    The function is pure and can be used inside jax.jit, jax.grad and jax.vmap. Therefore it does not check that the
    logits are finite, as `predict` and `features` do.

    `models.capture(model.logits, "blocks/*/attention/weights")` gives attention maps beside them.
    """
    return self._model.outputs(params, batch)[0].logits

  @functools.cached_property
  def _model(self) -> models.Model:
    return models.functional(self.description)

  @functools.cached_property
  def _preparation(self) -> Preparation:
    return Preparation.of(self.data)

  @functools.cached_property
  def _programs(self):
    return functools.cache(lambda features: jax.jit(says(self._model, self.data, self.loss, features)))

  def _computed(self, images, features) -> dict[str, np.ndarray]:
    """What the program says of all images."""
    several = [images] if _is_one(images) else list(images)
    if not several:
      raise ImageError("an empty list; give one image or more")
    parts = [jax.device_get(self._programs(features)(self.params, batch)) for batch in self._batches(several)]
    rows = {name: np.concatenate([part[name] for part in parts])[: len(several)] for name in parts[0]}
    return finite.checked(rows, np.arange(len(several)), lambda number: _name(several[number], number))

  def _batches(self, images) -> Iterator[np.ndarray]:
    """Prepared images; of the last few so many that few programs are compiled, filled up with zeros."""
    with concurrent.futures.ThreadPoolExecutor(decoding.cores()) as pool:
      for first in range(0, len(images), TOGETHER):
        squares = np.stack(list(pool.map(self.square, images[first : first + TOGETHER])))
        size = 1 << (len(squares) - 1).bit_length()
        yield np.pad(squares, ((0, size - len(squares)), (0, 0), (0, 0), (0, 0)))


def load(
  path: str | pathlib.Path, ema: bool | None = None, image_size: int | None = None, prefix: str | None = None
) -> Predictor:
  """The model of a workdir, or of any file that `python -m vit_jax.convert` reads, on the first device.

  Images are prepared as for the run's own evaluation, see `stored.load`. ConfigError for what is no model.

  Args:
    path: of the workdir or the file, also in a bucket.
    ema: True takes averaged weights, False raw ones. By default averaged ones of a file that has them, raw ones of a
      workdir.
    image_size: side of the images, if not that of the weights; positions are resampled.
    prefix: the beginning of the names to read, of a file with several models.
  """
  extensions.import_installed()
  use = stored.load(path, ema, image_size, prefix=prefix)
  paths = models.functional(use.description).shapes()
  params = {name: jnp.asarray(array) for name, array in surgery.stack(use.arrays, tuple(paths)).items()}
  return Predictor(use.description, use.classes, params, use.data, use.loss, tuple(use.notes))


def _name(image: Any, number: int) -> str:
  """Returns the path of an image, or its number in the list."""
  return os.fspath(image) if isinstance(image, str | os.PathLike) else f"number {number}"


def _is_one(images) -> bool:
  """Whether this is one image and no list."""
  if isinstance(images, str | os.PathLike | Image.Image):
    return True
  return not isinstance(images, Sequence | Iterator) and getattr(images, "ndim", 0) < 4

"""A trained model for use in Python: classes and features of images, and the pure function that computes logits."""

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

from vit_jax import models
from vit_jax.config import extensions
from vit_jax.data import decoding
from vit_jax.data.bound_data import EvalData
from vit_jax.data.images import ImageError, describe_image_error
from vit_jax.data.readers import locations
from vit_jax.importers import options, surgery
from vit_jax.inference import stored
from vit_jax.inference.computing import make_predict_function
from vit_jax.inference.preparation import Preparation
from vit_jax.models import finite
from vit_jax.schema import ConfigError, convert, enter_key

TOGETHER = 64  # maximum number of images per batch


class Prediction(NamedTuple):
  """The best classes of an image, best first.

  Attributes:
    names: names of the classes.
    probabilities: probabilities of the classes.
    numbers: numbers of the classes.
  """

  names: tuple[str, ...]
  probabilities: tuple[float, ...]
  numbers: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Predictor:
  """A model with its weights, its preprocessing and its class names. Use `load` to create one.

  A predictor is immutable. Its methods accept one image or a list of images, and return one result or a list. An image
  is a path (local or in a bucket), a Pillow image, or a uint8 array (H, W, 3) or (H, W). An invalid image raises
  ImageError, a ValueError, which names the image.

  Attributes:
    description: the model.
    classes: class names, or class numbers if the names are unknown. Empty for a model without a head.
    params: parameters by path.
    data: preprocessing of the images.
    loss: the loss that the model was trained with. It determines how logits become probabilities.
    notes: assumptions that were made when the weights were read.

  Example:
    from vit_jax.inference import predictor

    model = predictor.load("model.npz")
    prediction = model.predict("photo.jpg")
    print(prediction.names[0], prediction.probabilities[0])
  """

  description: models.Description
  classes: tuple[str, ...]
  params: Mapping[str, jax.Array] = dataclasses.field(repr=False)
  data: EvalData = dataclasses.field(repr=False)
  loss: str
  notes: tuple[str, ...] = ()

  def predict(self, images: object) -> Prediction | list[Prediction]:
    """Returns the best five classes of each image, best first. If there are fewer classes, it returns all of them.

    Args:
      images: an image or a list of images.

    Raises:
      ConfigError: if the model has no head.
      ImageError: if an image cannot be read, or the list is empty.
      NotFiniteError: if the outputs for an image are NaN or infinite.
    """
    if not self.classes:
      raise ConfigError("the model has no head, so it cannot predict classes. Use `features`")
    computed = self._compute_outputs(images, None)
    rows = [
      Prediction(tuple(self.classes[i] for i in best), tuple(probability), tuple(best))
      for best, probability in zip(computed["best"].tolist(), computed["probability"].tolist(), strict=True)
    ]
    return rows[0] if _is_single_image(images) else rows

  def features(self, images: object, of: models.Features = "head") -> np.ndarray:
    """Returns the features of an image, float32 (D,), or of a list of images, float32 (N, D).

    Args:
      images: an image or a list of images.
      of: "head" for the input of the head, "cls", "patches" or "cls_patches". See `models.output.select_features`.

    Raises:
      ConfigError: if `of` is unknown, or the model has no class token.
      ImageError: if an image cannot be read, or the list is empty.
      NotFiniteError: if the features of an image are NaN or infinite.
    """
    with enter_key("of"):
      of = convert(of, models.Features)
    features = self._compute_outputs(images, of)["features"]
    return features[0] if _is_single_image(images) else features

  def square(self, image: object) -> np.ndarray:
    """Returns an image after cropping and resizing, uint8 (S, S, 3).

    Args:
      image: a path, a Pillow image or a uint8 array.

    Raises:
      ImageError: if the image cannot be read.
    """
    if not isinstance(image, str | os.PathLike):
      return self._preparation.prepare_pixels(
        np.asarray(image.convert("RGB") if isinstance(image, Image.Image) else image)
      )
    try:
      return self._preparation.prepare_file(locations.read_content(os.fspath(image)))
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      path = os.fspath(image)
      raise ImageError(f"{path}: {describe_image_error(error, path)}") from error

  def preprocess(self, image: object) -> np.ndarray:
    """Returns an image as the model receives it: cropped, resized and normalised, float32 (S, S, 3).

    Args:
      image: a path, a Pillow image or a uint8 array.

    Raises:
      ImageError: if the image cannot be read.
    """
    return np.asarray(self.data.normalise(self.square(image)))

  def logits(self, params: Mapping[str, jax.Array], batch: jax.Array) -> jax.Array:
    """Returns the logits of normalised images, in float32.

    The function is pure and can be used inside jax.jit, jax.grad and jax.vmap. Therefore it does not check that the
    logits are finite, as `predict` and `features` do. `models.capture(model.logits, "blocks/*/attention/weights")` also
    returns attention maps.

    Args:
      params: parameters by path.
      batch: normalised images (B, S, S, 3).

    Returns:
      The logits (B, V).
    """
    return self._model.outputs(params, batch)[0].logits

  @functools.cached_property
  def _model(self) -> models.Model:
    return models.make_functional(self.description)

  @functools.cached_property
  def _preparation(self) -> Preparation:
    return Preparation.from_data(self.data)

  @functools.cached_property
  def _programs(self) -> Any:
    return functools.cache(lambda features: jax.jit(make_predict_function(self._model, self.data, self.loss, features)))

  def _compute_outputs(self, images: Any, features: object) -> dict[str, np.ndarray]:
    """Returns the outputs of the model for all images."""
    several = [images] if _is_single_image(images) else list(images)
    if not several:
      raise ImageError("an empty list of images. Specify at least one image")
    parts = [jax.device_get(self._programs(features)(self.params, batch)) for batch in self._batches(several)]
    rows = {name: np.concatenate([part[name] for part in parts])[: len(several)] for name in parts[0]}
    return finite.check_flags(rows, np.arange(len(several)), lambda number: _name_image(several[number], number))

  def _batches(self, images: Any) -> Iterator[np.ndarray]:
    """Yields batches of prepared images. The last batch is padded to a power of two, which limits recompilation."""
    with concurrent.futures.ThreadPoolExecutor(decoding.count_usable_cores()) as pool:
      for first in range(0, len(images), TOGETHER):
        squares = np.stack(list(pool.map(self.square, images[first : first + TOGETHER])))
        size = 1 << (len(squares) - 1).bit_length()
        yield np.pad(squares, ((0, size - len(squares)), (0, 0), (0, 0), (0, 0)))


def load(
  path: str | pathlib.Path, ema: bool | None = None, image_size: int | None = None, prefix: str | None = None
) -> Predictor:
  """Reads the model of a workdir or of a weight file, and places it on the first device.

  Any file that `python -m vit_jax.convert` reads is supported. Images are prepared as in the evaluation of the run. See
  `stored.load`.

  Args:
    path: workdir or weight file, local or in a bucket.
    ema: True selects averaged weights, False selects raw weights. The default is averaged weights for a file that
      contains them, and for a workdir with the average as teacher. Otherwise, raw weights are read.
    image_size: side of the images in pixels, if it differs from that of the weights. Position embeddings are resampled.
    prefix: common prefix of the parameter names to read, for a file that contains several models.

  Raises:
    ConfigError: if the path is not a model.

  Example:
    from vit_jax.inference import predictor

    model = predictor.load("model.npz", image_size=384)
    features = model.features(["a.jpg", "b.jpg"])  # float32 (2, D)
  """
  with options.use_form(options.ARGUMENTS):
    return read(path, ema, image_size, prefix)


def read(
  path: str | pathlib.Path, ema: bool | None = None, image_size: int | None = None, prefix: str | None = None
) -> Predictor:
  """Reads a model like `load`, for a command. Messages name the options of the command (see `options.use_form`).

  Args:
    path, ema, image_size, prefix: see `load`.
  """
  extensions.import_installed()
  use = stored.load(path, ema, image_size, prefix=prefix)
  paths = models.make_functional(use.description).shapes()
  stored_arrays = {name: np.asarray(array) for name, array in use.arrays.items()}
  params = {name: jnp.asarray(array) for name, array in surgery.stack(stored_arrays, tuple(paths)).items()}
  return Predictor(use.description, use.classes, params, use.data, use.loss, tuple(use.notes))


def _name_image(image: object, number: int) -> str:
  """Returns the path of an image, or its number in the list."""
  return os.fspath(image) if isinstance(image, str | os.PathLike) else f"number {number}"


def _is_single_image(images: object) -> bool:
  """Returns true for a single image, and false for a list of images."""
  if isinstance(images, str | os.PathLike | Image.Image):
    return True
  return not isinstance(images, Sequence | Iterator) and getattr(images, "ndim", 0) < 4

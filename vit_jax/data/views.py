"""The fields of training examples, and the preparation of their images on the host: one image, or several views."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import cv2
import numpy as np
from einops import rearrange

from vit_jax import rng
from vit_jax.data import crops, policies
from vit_jax.data.decoding import AnyImage
from vit_jax.schema import Choice, enter_key, make

Shapes = dict[str, tuple[tuple[int, ...], type]]  # shape and type of each array of an example
Prepare = Callable[[AnyImage], tuple[np.ndarray, ...]]  # decoded image -> images of the example


@dataclasses.dataclass(frozen=True)
class Views:
  """Random crops of an image that become one array (count, S, S, 3) of the example.

  All views of an image are cut from one decoded image.

  Attributes:
    name: name of the array.
    size: side S of the views in pixels.
    crop: random crop, a choice of `crops.CROPS`.
    policies: augmentation of each view, choices of `policies.POLICIES`. Their number is the number of views.
    boxes_of: name of another array of views. View i then uses the box and the mirroring of view i of that array. None:
      each view has a box of its own.
  """

  name: str
  size: int
  crop: Choice
  policies: tuple[Choice, ...]
  boxes_of: str | None = None


@dataclasses.dataclass(frozen=True)
class Fields:
  """The arrays of a training example that a task needs.

  Attributes:
    patch: side P of a patch in pixels. Images and views are then divided into patches (N, P * P * 3), row by row. None
      means whole images.
    label: whether the task needs "label", and "share" if the labels have weights.
    views: arrays of views that replace "image" and "draw". Empty for one image.
  """

  patch: int | None = None
  label: bool = True
  views: tuple[Views, ...] = ()


class Preparation(NamedTuple):
  """The preparation of a training image.

  Attributes:
    images: shape and type of each image that `open` prepares, by name.
    drawn: shape and type of each random number that `open` draws, by name.
    open: function (visit, record) -> (function from the decoded image to the images, random numbers). `visit` is the
      number of the visit to the record, see `order`.
  """

  images: Shapes
  drawn: Shapes
  open: Callable[[int, int], tuple[Prepare, tuple[int, ...]]]


def prepare_image(
  patch: int | None, seed: int, image_size: int, crop: Choice, flip: bool, policy: Choice
) -> Preparation:
  """Returns the preparation of one image, with the seed of its augmentation on the device ("draw").

  Args:
    patch: side of a patch in pixels, or None for whole images.
    seed: seed of the run.
    image_size: side of the image in pixels.
    crop: random crop, see `crops.CROPS`.
    flip: whether the image is mirrored with probability 0.5.
    policy: augmentation policy, see `policies.POLICIES`.

  Raises:
    ConfigError: if an argument is invalid.
  """
  with enter_key("crop"):
    cut = make(crop, crops.CROPS, image_size)
  with enter_key("policy"):
    change = make(policy, policies.POLICIES)

  def start(visit: int, record: int) -> tuple[Prepare, tuple[int, ...]]:
    draw = rng.make_python_generator(seed, "example", visit, record)
    on_device = int(draw.random() * 2**32)
    mirrored = flip and draw.random() < 0.5

    def prepare(image: AnyImage) -> tuple[np.ndarray, ...]:
      pixels = cut(image, draw)
      if mirrored:
        pixels = cv2.flip(pixels, 1)
      return (_cut_patches(change(pixels, draw), patch),)

    return prepare, (on_device,)

  return Preparation({"image": (_find_shape(image_size, patch), np.uint8)}, {"draw": ((), np.uint32)}, start)


def prepare_views(fields: Fields, seed: int, flip: bool) -> Preparation:
  """Returns the preparation of the views of an image.

  Each view has one random generator for its box and another one for its augmentation. If `boxes_of` is set, the
  generator of the box is that of the named view.

  Args:
    fields: the fields of the example.
    seed: seed of the run.
    flip: whether each view is mirrored with probability 0.5.

  Raises:
    ConfigError: if an argument of a crop or of a policy is invalid.
  """
  made = [(view, _create_view(view, seed, flip, fields.patch)) for view in fields.views]
  images: Shapes = {
    view.name: ((len(view.policies), *_find_shape(view.size, fields.patch)), np.uint8) for view, _ in made
  }

  def start(visit: int, record: int) -> tuple[Prepare, tuple[int, ...]]:
    def prepare(image: AnyImage) -> tuple[np.ndarray, ...]:
      pixels = np.asarray(image)  # decoded once for all views
      return tuple(create(pixels, visit, record) for _, create in made)

    return prepare, ()

  return Preparation(images, {}, start)


def _create_view(view: Views, seed: int, flip: bool, patch: int | None) -> Callable[[np.ndarray, int, int], np.ndarray]:
  """Returns the function (decoded image, visit, record) -> views (count, ...)."""
  cut = make(view.crop, crops.CROPS, view.size)
  changes = [make(policy, policies.POLICIES) for policy in view.policies]
  boxes = view.boxes_of or view.name

  def create(image: np.ndarray, visit: int, record: int) -> np.ndarray:
    result = []
    for i, change in enumerate(changes):
      # The box has a generator of its own, so that other views can show the same box.
      draw = rng.make_python_generator(seed, f"box {boxes}", visit, record, i)
      mirrored = flip and draw.random() < 0.5
      pixels = cut(image, draw)
      if mirrored:
        pixels = cv2.flip(pixels, 1)
      pixels = change(pixels, rng.make_python_generator(seed, f"view {view.name}", visit, record, i))
      result.append(_cut_patches(pixels, patch))
    return np.stack(result)

  return create


def _find_shape(size: int, patch: int | None) -> tuple[int, ...]:
  if patch is None:
    return (size, size, 3)
  assert size % patch == 0, (size, patch)
  return ((size // patch) ** 2, patch**2 * 3)


def _cut_patches(image: np.ndarray, side: int | None) -> np.ndarray:
  return image if side is None else rearrange(image, "(h i) (w j) c -> (h w) (i j c)", i=side, j=side)

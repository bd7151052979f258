"""Bound choices of data: typed values of the keys of `config.data`, and the functions that use these keys."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data import augment, loader, sources, stream
from vit_jax.data.augment import Channels, Scales
from vit_jax.data.images import Images
from vit_jax.data.views import Fields
from vit_jax.schema import Bound, Duration


class EvalData(Bound):
  """A bound choice of data for evaluation: how images are read, cropped and normalised."""

  @property
  def image_size(self) -> int:
    """Side of the images in pixels."""
    return self.args["image_size"]

  @property
  def test_crop(self) -> Bound:
    """Resize and crop of the images, see `crops.TEST_CROPS`."""
    return self.args["test_crop"]

  @property
  def normalisation(self) -> dict[str, Channels | Scales]:
    """Mean and standard deviation of the images, as arguments of `augment.normalise`."""
    return self.select(augment.normalise)

  @property
  def preparation(self) -> dict[str, Any]:
    """Arguments that determine how images are prepared, without `exif`, which is a property of each dataset."""
    prepared = self.select(stream.eval_examples, loader.batches, augment.normalise)
    return {key: value for key, value in prepared.items() if key != "exif"}

  @property
  def seen(self) -> dict[str, Any]:
    """Arguments that determine the input of the model for an image that is stored upright."""
    return self.select(stream.eval_examples, augment.normalise)

  @property
  def exif(self) -> bool:
    """True if images are rotated and mirrored according to their EXIF data."""
    return self.args["exif"]

  @property
  def skips(self) -> bool:
    """True if bad images are skipped."""
    return self.args["on_error"] == "skip"

  @property
  def max_bad(self) -> float:
    """Largest fraction of bad images that may be skipped."""
    return self.args["max_bad"]

  @property
  def max_pixels(self) -> int:
    """Largest number of pixels of an image."""
    return self.args["max_pixels"]

  @property
  def max_aspect(self) -> float:
    """Largest ratio of the longer to the shorter side of an image."""
    return self.args["max_aspect"]

  def images(
    self, source: sources.Source, on_error: loader.OnError | None = None, max_bad: float | None = None
  ) -> Images:
    """Returns the decoded images of a source, within the limits of the choice.

    Args:
      source: the images.
      on_error: treatment of bad images, if it differs from the choice.
      max_bad: largest fraction of skipped images, if it differs from the choice.
    """
    limits = self.max_pixels, self.max_aspect, self.exif, self.max_bad if max_bad is None else max_bad
    return Images(source, on_error or self.args["on_error"], *limits)

  def eval_examples(self, source: sources.Source) -> stream.Examples:
    """Returns each image of a source once, see `stream.eval_examples`."""
    return self.call(stream.eval_examples, source)

  def batches(
    self,
    examples: stream.Examples,
    size: int,
    rows: Sequence[int],
    start: int = 0,
    workers: loader.Workers | None = None,
  ) -> loader.Batches:
    """Returns the batches of examples.

    Args:
      examples, size, rows, start, workers: see `loader.batches`.
    """
    return self.call(loader.batches, examples, size, rows, start, workers)

  def normalise(self, images: jax.Array | np.ndarray, dtype: np.dtype | type | str = jnp.float32) -> jax.Array:
    """Returns normalised images, see `augment.normalise`.

    Args:
      images: pixels from 0 to 255.
      dtype: type of the result.
    """
    return self.call(augment.normalise, images, dtype)

  def denormalise(self, images: jax.Array | np.ndarray) -> jax.Array:
    """Returns pixels from 0 to 1, see `augment.denormalise`.

    Args:
      images: normalised images.
    """
    return self.call(augment.denormalise, images)


class TrainData(EvalData):
  """A bound choice of data for training: `EvalData` with the order and the augmentation of training images."""

  @property
  def split(self) -> str:
    """Split string of the training images."""
    return self.args["train"]

  @property
  def test_split(self) -> str:
    """Split string of the test images."""
    return self.args["test"]

  @property
  def path(self) -> str | None:
    """Path of the images, or None if the reader has no such key."""
    return self.args.get("path")

  @property
  def parts(self) -> tuple[Bound, ...]:
    """Datasets of a mixture. Empty for any other dataset."""
    return self.args.get("parts", ())

  @property
  def crop(self) -> Bound:
    """Random crop, see `crops.CROPS`."""
    return self.args["crop"]

  @property
  def flip(self) -> bool:
    """True if images are mirrored at random."""
    return self.args["flip"]

  @property
  def policy(self) -> Bound:
    """Augmentation policy, see `policies.POLICIES`."""
    return self.args["policy"]

  @property
  def warp(self) -> Bound:
    """Geometric change of images on the device, see `warping.WARPS`."""
    return self.args["warp"]

  @property
  def mixing(self) -> Bound:
    """Mixing of images and targets, see `mixup.MIXINGS`."""
    return self.args["mixing"]

  @property
  def erasing(self) -> Bound:
    """Erasing of boxes, see `erasing.ERASINGS`."""
    return self.args["erasing"]

  def train_examples(self, source: sources.Source, seed: int, fields: Fields, batch: int) -> stream.Examples:
    """Returns the training examples of a source.

    Args:
      source, seed, fields, batch: see `stream.train_examples`.
    """
    return self.call(stream.train_examples, source, seed, fields, batch)

  def create_workers(self, opened: Callable[[], stream.Examples], records: int) -> loader.Workers | None:
    """Returns the worker processes of the training batches, or None.

    Args:
      opened, records: see `loader.processes`.
    """
    return self.call(loader.processes, opened, records)

  def augmentation(
    self, dtype: np.dtype, seed: int, patch: int | None, count_steps: Callable[[Duration], int]
  ) -> augment.Augmentation:
    """Returns the augmentation on the device.

    Args:
      dtype, seed, patch, count_steps: see `augment.build`.
    """
    return self.call(augment.build, dtype, seed, patch, count_steps)

  def suggest_settings(self, images: stream.Examples) -> str:
    """Returns advice for a run that waits for its data, see `loader.suggest_settings`.

    Args:
      images: the training images.
    """
    threads = loader.choose_thread_count(self.args["threads"], images.requests)
    workers = loader.choose_worker_count(self.args["workers"], len(images.source))
    return loader.suggest_settings(threads, workers, images.requests)

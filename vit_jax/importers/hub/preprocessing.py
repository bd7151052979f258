"""Image preprocessing and class names that accompany weights, read and written.

There are three forms: the JSON of this package, timm's pretrained_cfg, and Transformers' preprocessor_config.json. Only
the JSON of this package can store all values. `preprocessor` contains the form of Transformers.
"""

import math
import sys
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from vit_jax import losses, schema
from vit_jax.data import crops
from vit_jax.schema import Choice, ConfigError, show

_TIMM = {"lanczos": "lanczos", "bilinear": "bilinear", "bicubic": "bicubic", "box": "area"}
_NEAREST = {"bilinear_aliased": "bilinear", "bicubic_aliased": "bicubic"}  # nearest interpolation that hubs support

_STD = (0.001, 10)  # a std of 1 / 255 means that pixels are not rescaled


class ImageMetadata(NamedTuple):
  """Metadata of images and classes that accompany weights. Values that are not stated have their defaults.

  Attributes:
    normalised: "mean" and "std" of the images.
    crop: test crop for images of `size`, if this project supports it.
    size: side of the images in pixels.
    labels: class names, or () if they are not stated.
    loss: a name in `losses.PROBABILITIES`.
  """

  normalised: Mapping[str, tuple[float, ...]] = {}
  crop: Choice | None = None
  size: int | None = None
  labels: tuple[str, ...] = ()
  loss: str | None = None


def to_json(metadata: ImageMetadata) -> dict[str, Any]:
  """Returns all metadata as JSON values."""
  return {
    "image_size": metadata.size,
    "test_crop": schema.to_plain(metadata.crop),
    **{key: list(values) for key, values in metadata.normalised.items()},
    "classes": list(metadata.labels),
    "probabilities": metadata.loss,
  }


def from_json(values: object) -> ImageMetadata:
  """Reads the metadata that `to_json` has written.

  Args:
    values: the JSON values.

  Raises:
    ConfigError: if a value is invalid.
  """
  if not isinstance(values, Mapping):
    raise ConfigError(f"{show(values)} does not describe images. Allowed: an object of names and values")
  crop, size, loss, classes = (values.get(key) for key in ("test_crop", "image_size", "probabilities", "classes"))
  if crop is not None and not (isinstance(crop, Mapping) and _known_name(crop.get("name"), crops.TEST_CROPS)):
    raise ConfigError(f"test_crop is {show(crop)}. Allowed: one of {', '.join(crops.TEST_CROPS)}, with its arguments")
  if size is not None and not (type(size) is int and 0 < size < 2**16):
    raise ConfigError(f"image_size is {show(size)}. Allowed: a whole number from 1 to {2**16 - 1}")
  if loss is not None and not _known_name(loss, losses.PROBABILITIES):
    raise ConfigError(f"probabilities is {show(loss)}. Allowed: {', '.join(losses.PROBABILITIES)}")
  if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
    raise ConfigError(f"classes is {show(classes)}. Allowed: a list of names")
  made = None
  if crop is not None:
    made = Choice(crop["name"], {str(key): value for key, value in crop.items() if key != "name"})
  return ImageMetadata(parse_normalisation(values, "mean", "std"), made, size, tuple(classes or ()), loss)


def _known_name(value: object, table: Container[Any]) -> bool:
  """Returns true if a JSON value is a name in the table. Lists and objects cannot be looked up."""
  return isinstance(value, str) and value in table


def parse_normalisation(config: Mapping[str, object], mean: str, std: str) -> dict[str, tuple[float, ...]]:
  """Returns the mean and std of the images, if the file states them.

  Args:
    config: the JSON values.
    mean: key of the mean.
    std: key of the std.

  Returns:
    {"mean": values, "std": values}, one value per channel.

  Raises:
    ConfigError: if a value is not a list of numbers, or a std is not positive.
  """
  result = {}
  for key, theirs in (("mean", mean), ("std", std)):
    if (values := config.get(theirs)) is not None:
      low = -math.inf if key == "mean" else 0
      if (
        not isinstance(values, list) or not 0 < len(values) < 2**10 or not all(is_number(v) and v > low for v in values)
      ):
        raise ConfigError(f"{theirs} is {show(values)}. Allowed: a number for each channel")
      result[key] = tuple(map(float, values))
  return result


def check_range(values: Mapping[str, tuple[float, ...]], mean: str, std: str) -> None:
  """Checks that mean and std are for pixels of 0..1.

  Args:
    values: {"mean", "std"} for pixels of 0..1. Either may be missing.
    mean: name of the mean in the file, for the error message.
    std: name of the std in the file.

  Raises:
    ConfigError: for values on another scale, such as 0..255, and for a std near 0.
  """
  for key, name, low, high in (("mean", mean, 0, 1), ("std", std, *_STD)):
    if odd := [value for value in values.get(key, ()) if not low <= value <= high]:
      advice = ". Divide values for pixels of 0..255 by 255" if odd[0] > high else ""
      raise ConfigError(f"{name} is {odd[0]:.6g} for pixels of 0..1. Allowed: from {low} to {high}{advice}")


def is_number(value: object) -> bool:
  """Returns true if a value is a number that a float can store. Whole numbers of JSON may have any number of digits."""
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def read_timm_crop(config: Mapping[str, Any]) -> tuple[Choice | None, int | None]:
  """Returns the test crop that timm's keys state.

  Args:
    config: the JSON values of a pretrained_cfg.

  Returns:
    The test crop and the size of the images for which it is valid. Values that are not stated are None.

  Raises:
    ConfigError: if a value is invalid.
  """
  if (share := config.get("crop_pct")) is None:
    return None, None
  if not is_number(share) or not 0.1 <= share <= 1:
    raise ConfigError(f"crop_pct is {show(share)}. Allowed: a number from 0.1 to 1")
  kind = config.get("interpolation")
  interpolation = _TIMM.get(kind, "bicubic") if isinstance(kind, str) else "bicubic"
  if config.get("crop_mode") != "squash":
    return Choice("torchvision", {"ratio": float(share), "interpolation": interpolation}), None
  if share == 1:
    return Choice("resize", {"interpolation": interpolation}), None
  sides = config.get("input_size")
  if not isinstance(sides, list) or len(sides) != 3 or type(sides[2]) is not int or not 0 < sides[2] < 2**16:
    raise ConfigError(
      f"input_size is {show(sides)}. Allowed: channels, height and width, each side of 1 to {2**16 - 1} pixels"
    )
  return create_squashed_crop(math.floor(sides[2] / share), sides[2], interpolation), sides[2]


def create_squashed_crop(large: int, cut: int, interpolation: str) -> Choice:
  """Returns the central crop of an image that is first resized to a square.

  Args:
    large: side of the resized square in pixels.
    cut: side of the crop in pixels.
    interpolation: name of the interpolation.
  """
  if large == cut:
    return Choice("resize", {"interpolation": interpolation})
  return Choice("centre", {"resize": large, "squash": True, "interpolation": interpolation})


def create_timm_keys(metadata: ImageMetadata) -> dict[str, Any]:
  """Returns the keys of timm's pretrained_cfg that describe the crop."""
  (crop, size), (large, squash) = require_crop(metadata), compute_resize(metadata)
  kind = next(name for name, ours in _TIMM.items() if ours == get_interpolation_name(crop))
  share = 1.0 if large == size else find_ratio(size, large)
  if crop.name == "torchvision":
    share = crop.args["ratio"]
  return {"interpolation": kind, "crop_pct": share, "crop_mode": "squash" if squash else "center"}


def compute_resize(metadata: ImageMetadata) -> tuple[int, bool]:
  """Returns the side to which an image is resized before the crop, and true if both sides are resized to it."""
  crop, size = require_crop(metadata)
  if crop.name == "resize":
    return size, True
  if crop.name == "torchvision":
    return int(size / crop.args["ratio"]), False
  return crop.args["resize"] or round(size / 0.875), crop.args["squash"]


def require_crop(metadata: ImageMetadata) -> tuple[Choice, int]:
  """Returns the test crop and the size of the images. `metadata` must contain both."""
  assert metadata.crop is not None and metadata.size is not None
  return metadata.crop, metadata.size


def get_interpolation_name(crop: Choice) -> str:
  """Returns the interpolation of a crop under the name that hubs use."""
  kind = crop.args["interpolation"]
  return _NEAREST.get(kind, kind)


def find_ratio(cut: int, large: int) -> float:
  """Returns the shortest decimal number r for which cut / r, rounded down, is `large`.

  Args:
    cut: side of the crop in pixels.
    large: side of the image before the crop in pixels.
  """
  return next(r for digits in range(3, 18) if (r := round(cut / (large + 0.5 * (digits > 15)), digits))
              and r <= 1 and int(cut / r) == large)  # fmt: skip


def describe_crop_limits(metadata: ImageMetadata, transformers: bool) -> list[str]:
  """Returns notes about details of a test crop that the files of a hub cannot represent.

  Args:
    metadata: the preprocessing.
    transformers: true if the files are those of Transformers, false if they are those of timm.
  """
  crop, size = require_crop(metadata)
  kind, known, result = crop.args["interpolation"], get_interpolation_name(crop), []
  if kind == "area":
    text = (
      "interpolation=area is written as Pillow's box. To enlarge images, Pillow uses nearest neighbours, vit_jax "
      "bilinear interpolation"
    )
    result = [f"{text}, so pixels differ a little"]
  elif kind != known:
    result = [
      f"interpolation={kind} is written as {known}; this filter smooths images that are reduced, but vit_jax does not"
    ]
  large, squash = compute_resize(metadata)
  if crop.name == ("torchvision" if transformers else "centre") and not (squash and large == size):
    who = "Transformers" if transformers else "timm"
    result.append(f"{who} rounds the margins of the central square differently, so some crops are moved by a pixel")
  return result


def scale_crop(crop: Choice, old: int | None, new: int) -> Choice:
  """Returns a test crop for another image size. Values in pixels are scaled with the size.

  Args:
    crop: the test crop.
    old: image size of the crop in pixels, or None if it is unknown.
    new: new image size in pixels.
  """
  pixels = crop.args.get("resize")
  if old in (None, new) or not pixels:
    return crop
  return Choice(crop.name, {**crop.args, "resize": max(new, round(pixels * new / old))})

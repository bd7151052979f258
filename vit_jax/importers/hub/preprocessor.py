"""Transformers' preprocessor_config.json, read and written.

As in Transformers, a missing key has the default of the processor's class, and a step that is null is skipped. Every
step is either converted to a test crop, mean and std of this package, or rejected.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.importers.hub import preprocessing
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.importers.normalisation import CLIP, HALVES, IMAGENET
from vit_jax.schema import Choice, ConfigError, show
from vit_jax.schema.errors import format_names

_RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "area"}  # numbers of Pillow
_SQUARE, _SHORT = {"height": 224, "width": 224}, {"shortest_edge": 224}
_LARGER = {"height": 256, "width": 256}
_CUT: dict[str, Any] = {"do_center_crop": True, "crop_size": _SQUARE}


def _create_defaults(
  size: dict[str, int], resample: int, images: Mapping[str, Sequence[float]], squash: bool = True, **more: object
) -> dict[str, Any]:
  """Returns the defaults of a class. With `squash` (default_to_square), a single number means height and width."""
  values = {f"image_{key}": list(value) for key, value in images.items()}
  return {"size": size, "resample": resample, "default_to_square": squash, **values, **more}


# Defaults of the classes, by their names without ImageProcessor or FeatureExtractor. Source: transformers 5.24.
DEFAULTS: dict[str, dict[str, Any]] = {
  "ViT": _create_defaults(_SQUARE, 2, HALVES),
  "DeiT": _create_defaults(_LARGER, 3, HALVES, **_CUT),
  "Beit": _create_defaults(_SQUARE, 3, HALVES, crop_size=_SQUARE),
  "Siglip": _create_defaults(_SQUARE, 3, HALVES, squash=False),
  "DINOv3ViT": _create_defaults(_SQUARE, 2, IMAGENET),
  "Bit": _create_defaults(_SHORT, 3, CLIP, squash=False, **_CUT),
  "CLIP": _create_defaults(_SHORT, 3, CLIP, squash=False, **_CUT),
}
_CLASS = re.compile(r"(\w+?)(?:ImageProcessor|FeatureExtractor)(?:Fast|Pil)?")
# Steps that are read, and steps without an effect on images in RGB.
_STEPS = {"do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb", "do_reduce_labels", "do_pad"}
# Keys that change images in ways that are not built.
_NOT_BUILT = ("pad_size", "crop_pct", "rescale_offset", "max_num_patches", "size_divisor")
_READ = {"size", "crop_size", "resample", "rescale_factor", "image_mean", "image_std", "default_to_square"}
# Keys without an effect on the values of pixels.
_HARMLESS = {
  *("image_processor_type", "feature_extractor_type", "processor_class", "auto_map", "_valid_processor_keys"),
  *("data_format", "input_data_format", "device", "disable_grouping", "return_tensors", "image_seq_length"),
  *("transformers_version", "padding_mode", "fill_value"),
}
Side = int | tuple[int, int]  # side of a square, or (height, width)


class ProcessorConfig(NamedTuple):
  """The statements of a preprocessor_config.json about images.

  Attributes:
    image_metadata: the stated values of mean, std and test crop.
    side: size of the images that the model receives, in pixels, or None if it is not stated.
    notes: messages for the user.
  """

  image_metadata: ImageMetadata
  side: Side | None
  notes: list[str]


def read(config: Mapping[str, object]) -> ProcessorConfig:
  """Reads the values of a preprocessor_config.json.

  Transformers computes `(pixel * rescale_factor - image_mean) / image_std`. This is our `(pixel / 255 - mean) / std`
  with mean and std divided by `255 * rescale_factor`.

  Args:
    config: the JSON values. An empty object states no values.

  Returns:
    The test crop, mean and std that give the same images.

  Raises:
    ConfigError: if a value has the wrong type, or a step is not supported by our preprocessing.
  """
  if not config:
    return ProcessorConfig(ImageMetadata(), None, [])
  steps = {key: False for key, value in config.items() if value is None and key.startswith("do_")}
  config = {key: value for key, value in config.items() if value is not None} | steps
  _check_steps(config)
  states_side = {"size", "crop_size"} & config.keys() and config.get("do_resize", True)
  config = {**_find_defaults(config), **config}
  notes = []
  if odd := sorted(config.keys() - _STEPS - _READ - _HARMLESS):
    notes.append(f"preprocessor_config.json has keys that are not read: {format_names(odd, 6)}")
  if not config.get("do_resize", True):
    notes.append("do_resize=false in preprocessor_config.json is ignored: images of other sizes are scaled")
  crop, side = _read_crop(config)
  size = side if isinstance(side, int) else None
  return ProcessorConfig(ImageMetadata(_read_normalisation(config), crop, size), side if states_side else None, notes)


def _check_steps(config: Mapping[str, object]) -> None:
  """Raises ConfigError for steps that are not supported, and for steps that are neither true nor false."""
  for key, value in config.items():
    if key.startswith("do_"):
      if not isinstance(value, bool):
        raise ConfigError(f"{key} is {show(value)}. Allowed: true, false or null")
      if value and key not in _STEPS:
        raise ConfigError(f"{key} is true, but this step is not supported. Set it to false if it is not needed")
  if set_key := next((key for key in _NOT_BUILT if config.get(key)), None):
    raise ConfigError(
      f"{set_key} is {show(config[set_key])}, but this step is not supported. Remove it if it is not needed"
    )


def _find_defaults(config: Mapping[str, object]) -> Mapping[str, Any]:
  """Returns the defaults of the processor's class, or {} for a class that is not stated or not known."""
  name = config.get("image_processor_type", config.get("feature_extractor_type", ""))
  if not isinstance(name, str):
    raise ConfigError(f"image_processor_type is {show(name)}. Allowed: the name of a class, such as ViTImageProcessor")
  match = _CLASS.fullmatch(name)
  kind = match[1] if match else ""
  return DEFAULTS.get("Beit" if kind == "BEiT" else kind, {})


# Mean and std.


def _read_normalisation(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the stated values of mean and std, for pixels of 0 to 1."""
  images = {key: config[key] for key in ("image_mean", "image_std") if key in config}
  images = {key: [value] * 3 if preprocessing.is_number(value) else value for key, value in images.items()}
  stated = preprocessing.parse_normalisation(images, "image_mean", "image_std")
  factor = config.get("rescale_factor", 1 / 255)
  if not preprocessing.is_number(factor) or factor <= 0:
    raise ConfigError(f"rescale_factor is {show(factor)}. Allowed: a number above 0, such as {1 / 255}")
  scale = 255 * factor if config.get("do_rescale", True) else 255.0
  if not config.get("do_normalize", True):
    channels = len(next(iter(stated.values()), (0.0,) * 3))
    stated = {"mean": (0.0,) * channels, "std": (1.0,) * channels}
  if abs(scale - 1) > 1e-6:
    if len(stated) < 2:
      raise ConfigError(f"images are multiplied by {scale / 255:.6g}, without image_mean and image_std. Add both")
    stated = {key: tuple(value / scale for value in values) for key, values in stated.items()}
  preprocessing.check_range(stated, "image_mean", "image_std")
  return stated


# The test crop.


def _read_crop(config: Mapping[str, Any]) -> tuple[Choice | None, int | None]:
  """Returns (test crop, side of the images that the model receives), with None for values that are not stated."""
  code, cuts = config.get("resample", 2), config.get("do_center_crop", False)
  if config.get("do_resize", True) and (type(code) is not int or code not in _RESAMPLE):
    ours = ", ".join(f"{number} ({name})" for number, name in _RESAMPLE.items())
    raise ConfigError(f"resample is {show(code)}. Allowed: one of {ours}")
  interpolation = {"interpolation": _RESAMPLE.get(code if type(code) is int else 2, "bilinear")}
  if not config.get("do_resize", True):
    if cuts:
      raise ConfigError("do_center_crop is true and do_resize is false. Allowed: both, or do_resize alone")
    return Choice("resize", interpolation), None
  if "size" not in config:
    return None, None
  large, squash = _read_size(config["size"], config.get("default_to_square", True))
  if cuts:
    return _read_central_crop(config, large, squash, interpolation)
  if not squash:
    raise ConfigError(
      f"size is {show(config['size'])} without do_center_crop, so images would not be squares. Add do_center_crop and "
      "crop_size, or state height and width"
    )
  return (Choice("resize", interpolation) if isinstance(large, int) else None), large


def _read_central_crop(
  config: Mapping[str, object], large: object, squash: bool, interpolation: dict[str, str]
) -> tuple[Choice | None, int | None]:
  """Returns (test crop, its side) for a central crop after resizing."""
  side = _read_size(config["crop_size"], True, "crop_size")[0] if "crop_size" in config else None
  if not isinstance(side, int) or not isinstance(large, int):
    raise ConfigError(
      f"size is {show(config['size'])} and crop_size is {show(config.get('crop_size'))}. Allowed: squares"
    )
  if not side <= large <= 10 * side:
    raise ConfigError(
      f"size is {show(config['size'])}, with a crop_size of {side}. Allowed: from crop_size up to ten times the "
      "crop_size"
    )
  if not squash:
    return Choice("torchvision", {"ratio": preprocessing.find_ratio(side, large), **interpolation}), side
  return preprocessing.create_squashed_crop(large, side, interpolation["interpolation"]), side


def _read_size(value: object, square: bool, key: str = "size") -> tuple[Any, bool]:
  """Returns the size in pixels, and True if an image is resized to exactly this height and width."""
  if type(value) is int:
    value = {"height": value, "width": value} if square else {"shortest_edge": value}
  sides = {name: side for name, side in value.items() if side is not None} if isinstance(value, Mapping) else {}
  allowed = [{"height", "width"}] + [{"shortest_edge"}] * (key == "size")
  if set(sides) not in allowed or not all(type(side) is int and 0 < side < 2**16 for side in sides.values()):
    words = "shortest_edge, or height and width," if key == "size" else "height and width"
    raise ConfigError(f"{key} is {show(value)}. Allowed: {words} of 1 to {2**16 - 1} pixels")
  if "shortest_edge" in sides:
    return sides["shortest_edge"], False
  return (sides["height"] if sides["height"] == sides["width"] else (sides["height"], sides["width"])), True


# Writing.


def create_processor_config(metadata: ImageMetadata) -> dict[str, Any]:
  """Returns a preprocessor_config.json for the processor that is equivalent to our test crop."""
  (crop, size), (large, squash) = preprocessing.require_crop(metadata), preprocessing.compute_resize(metadata)
  square, cut = {"height": large, "width": large}, large != size or not squash
  kind = "DeiTImageProcessor" if squash else "BitImageProcessor"
  return {
    "image_processor_type": kind if cut else "ViTImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": square if squash else {"shortest_edge": large},
    "resample": next(code for code, ours in _RESAMPLE.items() if ours == preprocessing.get_interpolation_name(crop)),
    "do_center_crop": cut,
    **({"crop_size": {"height": size, "width": size}} if cut else {}),
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    **{f"image_{key}": list(values) for key, values in metadata.normalised.items()},
  }

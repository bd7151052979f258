"""What travels with weights beside the model: how images are prepared and what classes are called, read and written.

In three forms: Transformers' preprocessor_config.json, timm's pretrained_cfg, and our own JSON, which alone says all.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax import losses, schema
from vit_jax.data import crops
from vit_jax.schema import Choice, ConfigError, show

_SQUASHING = ("ViT", "DeiT", "Beit", "BEiT")  # processors of Transformers that take one number for both sides
_RESAMPLE = {1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "area"}  # Pillow's numbers
_TIMM = {"lanczos": "lanczos", "bilinear": "bilinear", "bicubic": "bicubic", "box": "area"}
_NEAREST = {"bilinear_aliased": "bilinear", "bicubic_aliased": "bicubic"}  # of those that hubs know


class Beside(NamedTuple):
  """What is said beside weights of images and classes."""

  normalised: Mapping[str, tuple[float, ...]] = {}  # mean and std, where they are said
  crop: Choice | None = None  # the test crop, for images of `size`, where one of ours is said
  size: int | None = None
  labels: tuple[str, ...] = ()  # names of classes; () where they are not said
  loss: str | None = None  # a name of `losses.PROBABILITIES`, where it is said


def to_json(beside: Beside) -> dict[str, Any]:
  """All of it as JSON values."""
  return {
    "image_size": beside.size,
    "test_crop": schema.plain(beside.crop),
    **{key: list(values) for key, values in beside.normalised.items()},
    "classes": list(beside.labels),
    "probabilities": beside.loss,
  }


def from_json(values: Any) -> Beside:
  """What `to_json` gave these values for; ConfigError for others."""
  if not isinstance(values, Mapping):
    raise ConfigError(f"{show(values)} says nothing of images; allowed: an object of names and values")
  crop, size, loss, classes = (values.get(key) for key in ("test_crop", "image_size", "probabilities", "classes"))
  if crop is not None and not (isinstance(crop, Mapping) and _known_name(crop.get("name"), crops.TEST_CROPS)):
    raise ConfigError(f"test_crop is {show(crop)}; allowed: one of {', '.join(crops.TEST_CROPS)}, with its arguments")
  if size is not None and not (type(size) is int and 0 < size < 2**16):
    raise ConfigError(f"image_size is {show(size)}; allowed: a whole number from 1 to {2**16 - 1}")
  if loss is not None and not _known_name(loss, losses.PROBABILITIES):
    raise ConfigError(f"probabilities is {show(loss)}; allowed: {', '.join(losses.PROBABILITIES)}")
  if classes is not None and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
    raise ConfigError(f"classes is {show(classes)}; allowed: a list of names")
  made = crop and Choice(crop["name"], {str(key): value for key, value in crop.items() if key != "name"})
  return Beside(normalised(values, "mean", "std"), made, size, tuple(classes or ()), loss)


def _known_name(value, table):
  """Whether a JSON value is a name of the table; lists and objects cannot be looked up."""
  return isinstance(value, str) and value in table


def normalised(config: Mapping, mean: str, std: str) -> dict[str, tuple[float, ...]]:
  """Mean and std of the images, where they are said under these names."""
  result = {}
  for key, theirs in (("mean", mean), ("std", std)):
    if (values := config.get(theirs)) is not None:
      low = -math.inf if key == "mean" else 0
      if not isinstance(values, list) or not 0 < len(values) < 2**10 or not all(number(v) and v > low for v in values):
        raise ConfigError(f"{theirs} is {show(values)}; allowed: a number for each channel")
      result[key] = tuple(map(float, values))
  return result


def number(value: Any) -> bool:
  """Whether a value is a number that a float holds: whole ones of JSON may have any number of digits."""
  return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def of_timm(config: Mapping) -> tuple[Choice | None, int | None]:
  """(test crop, size of the images that it is for) by timm's keys; None where they do not say it."""
  if (share := config.get("crop_pct")) is None:
    return None, None
  if not number(share) or not 0.1 <= share <= 1:
    raise ConfigError(f"crop_pct is {show(share)}; allowed: a number from 0.1 to 1")
  kind = config.get("interpolation")
  interpolation = _TIMM.get(kind, "bicubic") if isinstance(kind, str) else "bicubic"
  if config.get("crop_mode") != "squash":
    return Choice("torchvision", {"ratio": float(share), "interpolation": interpolation}), None
  if share == 1:
    return Choice("resize", {"interpolation": interpolation}), None
  sides = config.get("input_size")
  if not isinstance(sides, list) or len(sides) != 3 or type(sides[2]) is not int or not 0 < sides[2] < 2**16:
    raise ConfigError(
      f"input_size is {show(sides)}; allowed: channels, height and width, each side of 1 to {2**16 - 1} pixels"
    )
  return _squashed(math.floor(sides[2] / share), sides[2], interpolation), sides[2]


def of_transformers(config: Mapping) -> tuple[Choice | None, int | None]:
  """(test crop, size of the images that it is for) by a preprocessor_config.json; None where it is none of ours."""
  code, kind = config.get("resample", 2), config.get("image_processor_type")
  if isinstance(code, list | Mapping):
    ours = ", ".join(f"{number} ({name})" for number, name in _RESAMPLE.items())
    raise ConfigError(f"resample is {show(code)}; allowed: one of {ours}")
  interpolation = _RESAMPLE.get(code)
  kind = kind or config.get("feature_extractor_type") or "ViT"
  squashing = isinstance(kind, str) and kind.startswith(_SQUASHING)
  size = config.get("size")
  if config.get("do_resize") is False or interpolation is None or size is None:
    return None, None
  large, squashed = _side(size, "size")
  squashed = squashing if squashed is None else squashed
  cut = _side(config["crop_size"], "crop_size")[0] if config.get("do_center_crop") and "crop_size" in config else None
  if cut is None:
    return (Choice("resize", {"interpolation": interpolation}), None) if squashed else (None, None)
  if large is None or large < cut:
    return None, None
  if large > 10 * cut:
    raise ConfigError(f"size is {show(size)}, with a crop_size of {cut}; allowed: up to ten times the crop_size")
  if squashed:
    return _squashed(large, cut, interpolation), cut
  return Choice("torchvision", {"ratio": ratio(cut, large), "interpolation": interpolation}), None


def _squashed(large, cut, interpolation):
  """The centre of an image that is squashed to a larger square."""
  if large == cut:
    return Choice("resize", {"interpolation": interpolation})
  return Choice("centre", {"resize": large, "squash": True, "interpolation": interpolation})


def _side(value, key):
  """(a side, whether both sides become it) of a size; the latter None where it is the processor's, as of a number."""
  if type(value) is int:
    value, squashed = {"shortest_edge": value}, None
  else:
    squashed = isinstance(value, Mapping) and "height" in value
  sides = list(value.values()) if isinstance(value, Mapping) else []
  if not 0 < len(sides) <= 2 or not all(type(side) is int and 0 < side < 2**16 for side in sides):
    raise ConfigError(
      f"{key} is {show(value)}; allowed: shortest_edge, or height and width, of 1 to {2**16 - 1} pixels"
    )
  return (sides[0] if len(set(sides)) == 1 else None), squashed


def for_timm(beside: Beside) -> dict[str, Any]:
  """The keys of timm's pretrained_cfg that say the crop."""
  large, squash = _large(beside)
  kind = next(name for name, ours in _TIMM.items() if ours == _known(beside.crop))
  share = 1.0 if large == beside.size else ratio(beside.size, large)
  if beside.crop.name == "torchvision":
    share = beside.crop.args["ratio"]
  return {"interpolation": kind, "crop_pct": share, "crop_mode": "squash" if squash else "center"}


def for_transformers(beside: Beside) -> dict[str, Any]:
  """A preprocessor_config.json, of the processor that does what our test crop does."""
  large, squash = _large(beside)
  square, cut = {"height": large, "width": large}, large != beside.size or not squash
  kind = "DeiTImageProcessor" if squash else "BitImageProcessor"
  return {
    "image_processor_type": kind if cut else "ViTImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": square if squash else {"shortest_edge": large},
    "resample": next(code for code, ours in _RESAMPLE.items() if ours == _known(beside.crop)),
    "do_center_crop": cut,
    **({"crop_size": {"height": beside.size, "width": beside.size}} if cut else {}),
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    **{f"image_{key}": list(values) for key, values in beside.normalised.items()},
  }


def _large(beside):
  """(side to which an image is scaled before it is cut, whether both sides are)."""
  args, size = beside.crop.args, beside.size
  if beside.crop.name == "resize":
    return size, True
  if beside.crop.name == "torchvision":
    return int(size / args["ratio"]), False
  return args["resize"] or round(size / 0.875), args["squash"]


def _known(crop):
  kind = crop.args["interpolation"]
  return _NEAREST.get(kind, kind)


def ratio(cut: int, large: int) -> float:
  """The shortest number r for which cut / r, rounded down, is `large`."""
  return next(r for digits in range(3, 18) if (r := round(cut / (large + 0.5 * (digits > 15)), digits))
              and r <= 1 and int(cut / r) == large)  # fmt: skip


def notes(beside: Beside, transformers: bool) -> list[str]:
  """What the forms of hubs, Transformers' or timm's, cannot say of the crop."""
  kind, known, result = beside.crop.args["interpolation"], _known(beside.crop), []
  if kind == "area":
    text = "interpolation=area is written as Pillow's box; theirs is nearest where an image grows, ours bilinear"
    result = [f"{text}, so pixels differ a little"]
  elif kind != known:
    result = [f"interpolation={kind} is written as {known}; theirs smooths where an image shrinks, ours does not"]
  large, squash = _large(beside)
  if beside.crop.name == ("torchvision" if transformers else "centre") and not (squash and large == beside.size):
    who = "Transformers" if transformers else "timm"
    result.append(f"{who} rounds the margins of the central square otherwise: on some images it is a pixel off")
  return result


def at_size(crop: Choice, old: int | None, new: int) -> Choice:
  """A test crop that is for images of a size, for those of another: what is in pixels grows with them."""
  pixels = crop.args.get("resize")
  if old in (None, new) or not pixels:
    return crop
  return Choice(crop.name, {**crop.args, "resize": max(new, round(pixels * new / old))})

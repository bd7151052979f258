"""Published accuracies of weights on the validation images of ImageNet, and the comparison with a measured accuracy."""

import functools
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

FILE = pathlib.Path(__file__).parent / "accuracies.json"
IMAGES = 50_000  # validation images of ImageNet
# Largest difference between two correct measurements of the same weights, as a share: 50 images. Decoders and
# floating-point types change a few predictions. An estimate.
TOLERANCE = 0.001
RATIO = 0.005  # largest difference of two crop ratios that differ only by the rounding of the resized side


class Accuracy(NamedTuple):
  """The published accuracy of weights.

  Attributes:
    name: name of the weights in timm, with its tag.
    top1: share of correct predictions.
    image_size: side of the images in pixels.
    ratio: side of the crop as a share of the smaller side of the resized image.
    interpolation: interpolation of the resized image.
  """

  name: str
  top1: float
  image_size: int
  ratio: float
  interpolation: str

  def list_differences(self, image_size: int, crop: Mapping[str, Any]) -> list[str]:
    """Returns one line for each difference between the published preparation of images and that of a measurement.

    Args:
      image_size: side of the images in pixels.
      crop: plain choice of the test crop, such as {"name": "centre", "resize": 256, "interpolation": "bicubic"}.
    """
    ratio = crop.get("ratio") or (image_size / crop["resize"] if crop.get("resize") else None)
    lines = [f"image size {image_size} instead of {self.image_size}"] * (image_size != self.image_size)
    if ratio is None or abs(ratio - self.ratio) > RATIO:
      lines.append(
        f"crop {'without ratio' if ratio is None else f'ratio {ratio:.4g}'} instead of ratio {self.ratio:.4g}"
      )
    interpolation = crop.get("interpolation")
    if interpolation != self.interpolation:
      lines.append(f"interpolation {interpolation} instead of {self.interpolation}")
    return lines

  def format_comparison(self, top1: float, images: int, differences: Iterable[str]) -> str:
    """Returns a line that compares a measured accuracy with the published one.

    Args:
      top1: measured share of correct predictions.
      images: number of measured images.
      differences: result of `list_differences`.
    """
    about = f"published {100 * self.top1:.2f} % (timm, {self.name})"
    if images != IMAGES:
      return f"{about}; not compared, because {images:,} of {IMAGES:,} validation images were measured"
    if differences := list(differences):
      return f"{about}; not compared, because of {'; '.join(differences)}"
    close = abs(top1 - self.top1) <= TOLERANCE
    verdict = "as published" if close else f"{'below' if top1 < self.top1 else 'above'} the published accuracy"
    return f"top-1 {100 * top1:.2f} %, {about}, tolerance {100 * TOLERANCE:g} points: {verdict}"


def find_accuracy(names: Iterable[str]) -> Accuracy | None:
  """Returns the published accuracy of the first known name, or None.

  Args:
    names: possible names of the weights, such as "vit_base_patch16_224.augreg2_in21k_ft_in1k".
  """
  content = _read_file()
  for name in names:
    if values := content["weights"].get(name):
      top1, image_size, ratio, interpolation = values
      return Accuracy(name, top1 / 100, image_size, ratio, interpolation)
  return None


@functools.cache
def _read_file() -> dict[str, Any]:
  return json.loads(FILE.read_text())

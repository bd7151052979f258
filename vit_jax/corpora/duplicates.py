"""Detection of test images in a corpus by perceptual hashes, without comparing all pairs of hashes."""

import base64
import html
import io
import itertools
import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np

from vit_jax.corpora import conversion
from vit_jax.data import crops
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError, extras, format_amount
from vit_jax.schema.errors import make_printable
from vit_jax.storage import files

BITS = 64
# Maximum number of bits in which two versions of an image may differ. Measured with 300 generated photographs: versions
# that were saved again with quality 30, scaled to a third or to twice the size, or squashed to a square all differ in
# at most 4 bits. Cropping by 2 % or a quarter more brightness changes at most 6 bits in 98.7 % of cases, and cropping
# by a tenth in 19 %. All 499,500 pairs of different photographs differ in at least 12 bits.
DISTANCE = 6
SIDE, SHOWN = 160, 200  # pixels of the longer side of a picture on the page, and maximum number of pairs


def compute_hash(pixels: np.ndarray) -> int:
  """Returns the 64 bits of an image's perceptual hash (`phash` of the package imagehash).

  The bits are signs of the lowest frequencies of the grey image of 32 x 32 pixels. Few of these bits change if an image
  is saved again, resized or made brighter. Hashes of averages and gradients are less robust to cropping and gamma, and
  they match different images of skies.

  Args:
    pixels: `(H, W, 3)`, uint8.

  Raises:
    ConfigError: imagehash is not installed (extra dedup).
  """
  imagehash, Image = _import_imagehash()
  # The image is first reduced by area, because the hash has 32 pixels a side and Pillow would filter the whole image.
  height, width = pixels.shape[:2]
  if min(height, width) > 256:
    short = 256 / min(height, width)
    pixels = cv2.resize(pixels, (round(width * short), round(height * short)), interpolation=cv2.INTER_AREA)
  bits = imagehash.phash(Image.fromarray(pixels)).hash
  return int.from_bytes(np.packbits(bits.ravel()).tobytes(), "big")


def _import_imagehash() -> tuple[types.ModuleType, types.ModuleType]:
  try:
    import imagehash
    from PIL import Image
  except ImportError as error:
    raise ConfigError(f"--dedup-against needs {extras.format_advice('dedup')} ({error})") from error
  return imagehash, Image


class HashIndex:
  """An index of hashes of test images, by parts of their bits.

  If two hashes that differ in at most d bits are cut into d + 1 parts, at least one part is equal. A hash is therefore
  compared only with hashes that share a part with it: with about 700 of 50,000 at distance 6.

  Args:
    hashes: hashes of the images. Each image has two: unchanged, and mirrored.
    names: (test set, id, record) of each image.
    distance: maximum number of different bits.
  """

  def __init__(self, hashes: Sequence[int] | np.ndarray, names: Sequence[tuple[str, str, int]], distance: int) -> None:
    self._hashes, self._names, self.distance = np.array(hashes, np.uint64), list(names), distance
    edges = np.linspace(0, BITS, distance + 2).round().astype(int)
    self._parts = [(int(low), (1 << int(high - low)) - 1) for low, high in itertools.pairwise(edges)]
    self._tables = []
    for low, mask in self._parts:
      keys = (self._hashes >> np.uint64(low)) & np.uint64(mask)
      rows = np.argsort(keys, kind="stable")
      self._tables.append((keys[rows], rows))

  def __len__(self) -> int:
    return len(self._hashes)

  def find_nearest(self, value: int, besides: int | None = None) -> tuple[int, int] | None:
    """Returns the nearest hash within the allowed distance.

    Args:
      value: a hash.
      besides: number of a hash that is ignored.

    Returns:
      (number, distance) of the nearest hash, or None. If several are equally near, the first is returned.
    """
    best = None
    for (low, mask), (keys, rows) in zip(self._parts, self._tables, strict=True):
      first, stop = (int(np.searchsorted(keys, np.uint64(value >> low & mask), side)) for side in ("left", "right"))
      if first == stop:
        continue
      some = rows[first:stop]
      if besides is not None:
        some = some[some != besides]
        if not len(some):
          continue
      distances = np.bitwise_count(self._hashes[some] ^ np.uint64(value))
      least = int(distances.min())
      candidate = least, int(some[distances == least].min())
      if least <= self.distance and (best is None or candidate < best):
        best = candidate
    return None if best is None else best[::-1]

  def match(self, pixels: np.ndarray) -> dict[str, Any] | None:
    """Returns the test image that an image duplicates, or None.

    Args:
      pixels: `(H, W, 3)`, uint8.

    Returns:
      {"of": test set, "image": id, "record": number, "distance": bits, "mirrored": bool}, or None.
    """
    nearest = self.find_nearest(compute_hash(pixels))
    if nearest is None:
      return None
    number, distance = nearest
    dataset, name, record = self._names[number // 2]
    return {"of": dataset, "image": name, "record": record, "distance": distance, "mirrored": bool(number % 2)}


def make_thumbnail(pixels: np.ndarray) -> dict[str, Any]:
  """Returns a thumbnail of an image for the page, as {"picture": JPEG in base64}."""
  small = cv2.cvtColor(crops.shrink(pixels, SIDE), cv2.COLOR_RGB2BGR)
  _, data = cv2.imencode(".jpg", small, [cv2.IMWRITE_JPEG_QUALITY, 80])
  return {"picture": base64.b64encode(data.tobytes()).decode()}


def write_duplicates_page(
  path: pathlib.Path, duplicates: Sequence[dict[str, Any]], picture: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
  """Writes an HTML page that shows pairs of duplicates side by side. The file includes the pictures.

  Args:
    path: path of the page.
    duplicates: the duplicates, with pictures. The first `SHOWN` are shown.
    picture: returns the picture of the test image of a duplicate.
  """
  rows = []
  for duplicate in duplicates[:SHOWN]:
    cells = "".join(
      f'<td><img src="data:image/jpeg;base64,{shot["picture"]}" alt=""><br>{html.escape(make_printable(name))}</td>'
      for shot, name in ((duplicate, duplicate["file"]), (picture(duplicate), duplicate["image"]))
    )
    about = f"{html.escape(make_printable(duplicate['of']))}<br>{duplicate['distance']} of {BITS} bits"
    rows.append(f"<tr>{cells}<td>{about}{'<br>mirrored' if duplicate['mirrored'] else ''}</td></tr>")
  title = format_amount(len(duplicates), "duplicate") + (
    f", the first {len(rows)}" if len(duplicates) > len(rows) else ""
  )
  text = io.StringIO()
  text.write(f"<!doctype html><meta charset=utf-8><title>{title}</title><h1>{title}</h1>")
  text.write("<style>td{padding:6px;font:12px sans-serif;max-width:260px;word-wrap:break-word}</style>")
  text.write("<table><tr><th>left out<th>test image<th>of</tr>" + "\n".join(rows) + "</table>\n")
  files.write_text(path, text.getvalue())


def hash_record(source: Source, number: int) -> list[int]:
  """Returns the two hashes of a record of a test set: unchanged, and mirrored.

  Args:
    source: the test set.
    number: number of the record.

  Raises:
    ConfigError: the image cannot be read or decoded. A test set must be complete.
  """
  try:
    image = read_pixels(source, number)
  except (OSError, ValueError, cv2.error) as error:
    raise ConfigError(f"{source.place(number)}: {error}", "--dedup-against") from error
  return [compute_hash(image), compute_hash(cv2.flip(image, 1))]


def read_pixels(source: Source, number: int) -> np.ndarray:
  """Returns the pixels of a record of a test set, `(H, W, 3)`, uint8.

  Args:
    source: the test set.
    number: number of the record.

  Raises:
    OSError: the file cannot be read.
    ValueError: the image cannot be decoded.
  """
  data, _ = source.read(number)
  return conversion.convert_image(data, lenient=source.is_published(number)).pixels

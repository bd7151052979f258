"""Survey of the images of a source: number of images per class, and conspicuous images."""

import concurrent.futures
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import rng
from vit_jax.corpora import duplicates
from vit_jax.data import crops, decoding, loader
from vit_jax.data.images import ImageError, Images, describe_image_error
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError

LARGEST = 2**20  # maximum number of images of a sample: their `ImageFacts`s take 300 MB
COUNTED = 2**20  # maximum number of records with labels that are all counted, if this requires no reading of images
# Levels of 255. JPEG adds rounding noise below 1 to an image of one colour, and a scan of a blank page has 2.
ONE_COLOUR = 3.0
HARMLESS = ("huge",)  # criteria that are no mistakes, such as photographs of phones for a small model
_SMALL = 64  # pixels of the side on which colours are compared


class ImageFacts(NamedTuple):
  """Facts about an image.

  Attributes:
    record: number of the record.
    labels: classes of the image.
    height: height in pixels.
    width: width in pixels.
    spread: standard deviation, in levels of 255, of the channel that varies most.
    hash: perceptual hash, or None if imagehash is not installed (extra dedup).
    error: the reason why the image cannot be used, or None.
  """

  record: int
  labels: tuple[int, ...] = ()
  height: int = 0
  width: int = 0
  spread: float = 0.0
  hash: int | None = None
  error: str | None = None

  @property
  def side(self) -> int:
    """Returns the length of the shorter side in pixels."""
    return min(self.height, self.width)

  @property
  def aspect(self) -> float:
    """Returns the ratio of the longer side to the shorter side."""
    return max(self.height, self.width) / self.side


@dataclasses.dataclass(frozen=True)
class ConspicuousImages:
  """Images that meet one criterion.

  Attributes:
    about: the criterion, and the remedy.
    count: number of these images.
    worst: (severity, the image or a pair), worst first.
    harmless: true if the images take time but are no mistake.
  """

  about: str
  count: int
  worst: Sequence[tuple[float, tuple[ImageFacts, ...]]]
  harmless: bool = False


def sample_records(length: int, count: int, seed: int) -> list[int]:
  """Returns sorted record numbers: one random record from each of `count` equal parts of a split.

  Args:
    length: number of records of the split.
    count: number of records to select. All are selected if there are fewer.
    seed: seed of the selection.
  """
  if count >= length:
    return list(range(length))
  # Records at equal distances are avoided, because readers may order records so that classes alternate.
  within = rng.make_numpy_generator(seed, "survey").random(count).tolist()
  ends = [i * length // count for i in range(count + 1)]
  return [low + int(part * (high - low)) for part, low, high in zip(within, ends[:-1], ends[1:], strict=True)]


def inspect_images(
  images: Images, records: Sequence[int], seen: Callable[[int], None] = lambda count: None
) -> list[ImageFacts]:
  """Decodes records completely and returns facts about the images.

  Args:
    images: images that raise an error for a bad record.
    records: numbers of the records.
    seen: called with the number of images in each completed part.

  Raises:
    ConfigError: memory is not sufficient to read an image.
  """
  hashed, result = can_hash(), []
  threads = max(loader.REQUESTS if images.source.remote else 2, decoding.count_usable_cores())
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for first in range(0, len(records), 256):
      some = records[first : first + 256]
      result += pool.map(lambda record: _inspect_image(images, record, hashed), some)
      seen(len(some))
  return result


def can_hash() -> bool:
  """Returns true if imagehash is installed (extra dedup)."""
  try:
    duplicates.compute_hash(np.zeros((8, 8, 3), np.uint8))
  except ConfigError:
    return False
  return True


def _inspect_image(images: Images, record: int, hashed: bool) -> ImageFacts:
  try:
    made = images.read_prepared(record, lambda image: _measure_image(np.asarray(image), hashed))
  except ImageError as error:
    if decoding.is_out_of_memory(error.__cause__):
      raise ConfigError(str(error)) from error
    return ImageFacts(record, error=shorten_error(error))
  assert made is not None, "bad images raise an error"
  facts, label = made
  return ImageFacts(record, tuple(int(each) for each in np.atleast_1d(label) if each >= 0), *facts)


def _measure_image(pixels: np.ndarray, hashed: bool) -> tuple[int, int, float, int | None]:
  height, width = pixels.shape[:2]
  small = crops.scale(pixels, min(height, _SMALL), min(width, _SMALL))  # averages, which reduce the noise of a file
  spread = float(small.reshape(-1, 3).std(axis=0).max())
  return height, width, spread, duplicates.compute_hash(pixels) if hashed else None


def shorten_error(error: ImageError) -> str:
  """Returns a short description of an image's problem, without the name of the image."""
  return describe_image_error(error.__cause__ or error)


# Conspicuous images.


def find_conspicuous(
  looked_at: Sequence[ImageFacts], image_size: int, worst: int = 100
) -> dict[str, ConspicuousImages]:
  """Returns the images that meet the criteria for conspicuous images. An image may meet several.

  Args:
    looked_at: facts about the images.
    image_size: side of the square images of a model, in pixels.
    worst: maximum number of images to return for each criterion.

  Returns:
    {name of the criterion: images}.
  """
  whole = [look for look in looked_at if look.error is None]
  pixels = image_size**2
  kinds = {
    "unreadable": ("the run stops at these images or skips them", [(1.0, look) for look in looked_at if look.error]),
    "tiny": (
      f"the shorter side has fewer than {image_size / 2:g} pixels, so the image is enlarged by more than a factor of 2",
      [(image_size / look.side, look) for look in whole if 2 * look.side < image_size],
    ),
    "huge": (
      f"over 100 times the {pixels:,} pixels of the model's input. `prepare --size={2 * image_size}` makes smaller, "
      "faster copies",
      [(share, look) for look in whole if (share := look.height * look.width / pixels) > 100],
    ),
    "extreme aspect": (
      "one side is over 3 times the other",
      [(look.aspect, look) for look in whole if look.aspect > 3],
    ),
    "one colour": (
      f"no channel varies by more than {ONE_COLOUR:g} of 255 levels",
      [(1 / (1 + look.spread), look) for look in whole if look.spread < ONE_COLOUR],
    ),
  }
  result = {}
  for name, (about, images) in kinds.items():
    images.sort(key=lambda one: (-one[0], one[1].record))
    some = [(severity, (look,)) for severity, look in images[:worst]]
    result[name] = ConspicuousImages(about, len(images), some, name in HARMLESS)
  close = find_duplicates([look for look in whole if look.hash is not None and look.spread >= ONE_COLOUR])
  # Among equally similar pairs, those with contradictory labels come first.
  close.sort(key=lambda pair: (pair[0], set(pair[1].labels) == set(pair[2].labels), pair[1].record))
  about = f"perceptual hashes of nearest neighbours differ in at most {duplicates.DISTANCE} of {duplicates.BITS} bits"
  worse = [(float(distance), (one, other)) for distance, one, other in close[:worst]]
  return result | {"pairs of near-duplicates": ConspicuousImages(about, len(close), worse)}


def find_duplicates(looked_at: Sequence[ImageFacts]) -> list[tuple[int, ImageFacts, ImageFacts]]:
  """Returns pairs of near-duplicates: each image with its nearest neighbour within `duplicates.DISTANCE`.

  Args:
    looked_at: facts about images with hashes.

  Returns:
    (number of different bits, image, image) without repetitions.
  """
  hashes = [look.hash for look in looked_at if look.hash is not None]
  assert len(hashes) == len(looked_at)
  index = duplicates.HashIndex(hashes, [], duplicates.DISTANCE)
  result = {}
  for number, value in enumerate(hashes):
    if nearest := index.find_nearest(value, besides=number):
      other, distance = nearest
      first, second = sorted((number, other))
      result[first, second] = distance, looked_at[first], looked_at[second]
  return list(result.values())


# Numbers of images per class.


def count_classes(source: Source, looked_at: Iterable[ImageFacts]) -> tuple[np.ndarray, int]:
  """Counts the images of each class.

  Counts all records if their labels are available without reading images, otherwise only the given images.

  Args:
    source: the source.
    looked_at: facts about some of its images.

  Returns:
    (counts `(V,)`, number of records that were counted).
  """
  labels: Iterable[int | tuple[int, ...]]
  if source.read_label and not source.remote and len(source) <= COUNTED:
    labels, records = map(source.label, range(len(source))), len(source)
  else:
    some = [look for look in looked_at if look.error is None]
    labels, records = (look.labels for look in some), len(some)
  result = np.zeros(len(source.classes), np.int64)
  for label in labels:
    for each in label if isinstance(label, tuple) else (label,):
      if 0 <= each < len(result):
        result[each] += 1
  return result, records

"""A look at the images of a source: how many of each class, and which ones stand out."""

import concurrent.futures
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import rng
from vit_jax.corpora import duplicates
from vit_jax.data import crops, decoding, loader
from vit_jax.data.images import ImageError, Images, text_of
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError

LARGEST = 2**20  # images of a sample: what is remembered of them takes 300 MB
COUNTED = 2**20  # records whose labels are all counted, if these cost no reading of images
# Levels of 255. Of an image of one colour JPEG leaves the noise of its rounding, below 1; a scan of a blank page has 2.
ONE_COLOUR = 3.0
HARMLESS = ("huge",)  # what stands out and is no mistake: each photograph of a telephone, for a small model
_SMALL = 64  # pixels of the side on which colours are compared


class Look(NamedTuple):
  """What is known of an image."""

  record: int
  labels: tuple[int, ...] = ()
  height: int = 0
  width: int = 0
  spread: float = 0.0  # standard deviation, in levels of 255, of the channel that varies most
  hash: int | None = None  # None without the extra that has hashes
  error: str | None = None  # why the image is of no use

  @property
  def side(self) -> int:
    """The shorter side."""
    return min(self.height, self.width)

  @property
  def aspect(self) -> float:
    """The longer side over the shorter."""
    return max(self.height, self.width) / self.side


class Kind(NamedTuple):
  """Images that stand out in one way.

  Attributes:
    about: the criterion, and the remedy.
    count: number of such images.
    worst: (severity, the image or a pair), the worst first.
    harmless: the images cost time, but are no mistake.
  """

  about: str
  count: int
  worst: list[tuple[float, tuple[Look, ...]]]
  harmless: bool = False


def sample(length: int, count: int, seed: int) -> list[int]:
  """So many different records of a split, in order, or all there are: one at random of each equal part."""
  if count >= length:
    return list(range(length))
  # Not at equal distances: readers may order records so that their classes take turns.
  within = rng.generator(seed, "survey").random(count).tolist()
  ends = [i * length // count for i in range(count + 1)]
  return [low + int(part * (high - low)) for part, low, high in zip(within, ends[:-1], ends[1:], strict=True)]


def looks(images: Images, records: Sequence[int], seen: Callable[[int], None] = lambda count: None) -> list[Look]:
  """Decodes each of these records whole, many at once; `seen` hears of each part that is done. ConfigError as reading.

  `images` is to raise what is wrong with a record; all that is kept of one is a `Look`.
  """
  hashed, result = hashable(), []
  threads = max(loader.REQUESTS if images.source.remote else 2, decoding.cores())
  with concurrent.futures.ThreadPoolExecutor(threads) as pool:
    for first in range(0, len(records), 256):
      some = records[first : first + 256]
      result += pool.map(lambda record: _look(images, record, hashed), some)
      seen(len(some))
  return result


def hashable() -> bool:
  """Whether the extra that has perceptual hashes is installed."""
  try:
    duplicates.hashed(np.zeros((8, 8, 3), np.uint8))
  except ConfigError:
    return False
  return True


def _look(images, record, hashed):
  try:
    facts, label = images.prepared(record, lambda image: _facts(np.asarray(image), hashed))
  except ImageError as error:
    if decoding.no_memory(error.__cause__):
      raise ConfigError(str(error)) from error
    return Look(record, error=reason(error))
  return Look(record, tuple(int(each) for each in np.atleast_1d(label) if each >= 0), *facts)


def _facts(pixels, hashed):
  height, width = pixels.shape[:2]
  small = crops.scale(pixels, min(height, _SMALL), min(width, _SMALL))  # averages, which have less of a file's noise
  spread = float(small.reshape(-1, 3).std(axis=0).max())
  return height, width, spread, duplicates.hashed(pixels) if hashed else None


def reason(error: ImageError) -> str:
  """What is wrong with an image, in a few words, without its name."""
  return text_of(error.__cause__ or error)


# What stands out.


def offenders(looked_at: Sequence[Look], image_size: int, worst: int = 100) -> dict[str, Kind]:
  """{name: images that stand out in this way}, for a model that sees squares of `image_size`; of each kind the worst.

  An image may be of several kinds.
  """
  whole = [look for look in looked_at if look.error is None]
  pixels = image_size**2
  kinds = {
    "unreadable": ("the run ends at them, or leaves them out", [(1.0, look) for look in looked_at if look.error]),
    "tiny": (
      f"the shorter side has under {image_size / 2:g} pixels: enlarged more than twice",
      [(image_size / look.side, look) for look in whole if 2 * look.side < image_size],
    ),
    "huge": (
      f"over 100 times the {pixels:,} pixels that the model sees. `prepare --size={2 * image_size}` makes smaller, "
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
    result[name] = Kind(about, len(images), some, name in HARMLESS)
  close = pairs([look for look in whole if look.hash is not None and look.spread >= ONE_COLOUR])
  # Of pairs that are equally alike those first whose labels contradict each other.
  close.sort(key=lambda pair: (pair[0], set(pair[1].labels) == set(pair[2].labels), pair[1].record))
  about = f"perceptual hashes of nearest neighbours differ in at most {duplicates.DISTANCE} of {duplicates.BITS} bits"
  worse = [(float(distance), (one, other)) for distance, one, other in close[:worst]]
  return result | {"pairs of near-duplicates": Kind(about, len(close), worse)}


def pairs(looked_at: Sequence[Look]) -> list[tuple[int, Look, Look]]:
  """(bits that differ, image, the one most like it) of images that have one within `duplicates.DISTANCE`; once each."""
  index = duplicates.Index([look.hash for look in looked_at], [], duplicates.DISTANCE)
  result = {}
  for number, look in enumerate(looked_at):
    if nearest := index.nearest(look.hash, besides=number):
      other, distance = nearest
      first, second = sorted((number, other))
      result[first, second] = distance, looked_at[first], looked_at[second]
  return list(result.values())


# Classes.


def counts(source: Source, looked_at: Iterable[Look]) -> tuple[np.ndarray, int]:
  """Images of each class [V], and of how many records: of all whose labels are at hand, else of those looked at."""
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

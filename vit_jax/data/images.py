"""Decoded images of a source by record number, with records of bad images and of reads in progress."""

import contextlib
import errno
import logging
import operator
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import cv2
import numpy as np

from vit_jax.data import decoding
from vit_jax.data.dataset_row import Label
from vit_jax.data.decoding import AnyImage
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError, format_amount

Made = TypeVar("Made")

LOG = logging.getLogger(__name__)  # logs skipped images

# Default limits of bad records: a share of the split, and a number; exceeding both stops the run.
BAD_SHARE, BAD_FEW = 0.001, 5
LISTED = 10  # maximum number of skipped records of a split that are logged one by one
# Largest size in bytes of a split's decoded images that are cached in memory. The 150 MB of CIFAR are cached, so its
# images are decoded only once.
KEEP = 2**28
# Errors of a file itself, which do not change. Other errors, of a disk or a file server, may be temporary. If they
# made a record bad, another record would replace it, and the run would not be reproducible.
OF_A_FILE = (None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)


class ImageError(ValueError):
  """An error for a bad image, or for too many bad images. The message names the images."""


class Images:
  """Decoded images of a source. It caches small images and collects bad records.

  Many threads may use it at the same time.

  Args:
    source: source of the records.
    on_error: "raise" raises an error for a bad record, "skip" skips it.
    max_pixels: largest number of pixels of an image.
    max_aspect: largest ratio of the longer to the shorter side.
    exif: whether images are decoded upright according to their EXIF orientation.
    max_bad: largest share of records that may be skipped.

  Attributes:
    bounds: (max_pixels, max_aspect, exif).
    reasons: description of the error of each skipped record, by record number.
    problem: first ImageError of any thread, or None.
    kept: cached images and their labels, by record number.
    decoded: uint8 array with one bit per record. The bit is 1 if the image was decoded completely. Later reads of
      such an image may decode only a box. Processes may share the array.
  """

  def __init__(
    self,
    source: Source,
    on_error: str,
    max_pixels: int,
    max_aspect: float,
    exif: bool = False,
    max_bad: float = BAD_SHARE,
  ) -> None:
    self.source, self.on_error, self.max_bad = source, on_error, max_bad
    self.bounds = max_pixels, max_aspect, exif
    self.reasons: dict[int, str] = {}
    self.problem: ImageError | None = None
    self.kept = {}
    self.decoded = np.zeros(-(-len(source) // 8), np.uint8)
    self._reads = {}  # (record, start time) by thread
    self._lock = threading.Lock()

  def read_prepared(self, record: int, prepare: Callable[[AnyImage], Made]) -> tuple[Made, int | np.ndarray] | None:
    """Returns a prepared image and its label.

    A record is bad if it cannot be read, decoded or prepared. Lack of memory and disk errors do not make a record bad.

    Args:
      record: record number.
      prepare: function of the decoded image.

    Returns:
      (prepare(image), label). The label is an array (K,) if the source has several labels per image. None for a bad
      record that is skipped.

    Raises:
      ImageError: if the record is bad and bad records are not skipped, or if it cannot be read for other reasons.
    """
    with self._track_reading(record):
      made = self.skip_if_bad(record, lambda: self._prepare_and_label(record, prepare))
      return None if made is None else (made[0], self._label(record, made[1]))

  def skip_if_bad(self, record: int, make: Callable[[], Made]) -> Made | None:
    """Returns `make()`, or None if its error shows that the record is bad and bad records are skipped.

    Args:
      record: record number.
      make: function that uses the record.

    Raises:
      ImageError: if the record is bad and bad records are not skipped, or if it cannot be read for other reasons.
    """
    try:
      return make()
    except ConfigError:  # concerns the data as a whole
      raise
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      place = self.source.place(record)
      reason = f"{place}: {describe_image_error(error, place)}"
      if decoding.is_out_of_memory(error):
        raise self.stop(f"{reason}. Use fewer data.threads, and data.workers") from error
      if isinstance(error, OSError) and error.errno not in OF_A_FILE:
        raise self.stop(f"{reason}. Check that its disk or bucket is reachable") from error
      self._reject(record, reason, error)
      return None

  def reading(self) -> list[tuple[str, float]]:
    """Returns (description, seconds) of the records that are being read and prepared, the longest-running first."""
    now = time.monotonic()
    return [
      (self.source.place(record), now - start_time)
      for record, start_time in sorted(self._reads.copy().values(), key=operator.itemgetter(1))
    ]

  def _prepare_and_label(self, record: int, prepare: Callable[[AnyImage], Made]) -> tuple[Made, Label]:
    """Returns (prepare(image), label of the source)."""
    if record in self.kept:
      image, label = self.kept[record]
      with decoding.use_core():
        return prepare(image), label
    data, label = self.source.read(record)
    with decoding.use_core():
      header = decoding.check_image(data, *self.bounds, lenient=self.source.is_published(record))
      with decoding.MEMORY.share(header.memory + 2 * len(data)):  # includes two copies of the file, which a JPEG needs
        if 3 * header.height * header.width * len(self.source) > KEEP:
          picture = decoding.LazyImage(data, header, self._is_decoded(record))
          made = prepare(picture)
          if picture.is_whole:
            self._mark_decoded(record)
          return made, label
        image = decoding.decode(data, header)
        self.kept[record] = image, label
        return prepare(image), label

  def _is_decoded(self, record: int) -> bool:
    """Returns whether the whole image of a record was decoded before."""
    return bool(self.decoded[record >> 3] >> (record & 7) & 1)

  def _mark_decoded(self, record: int) -> None:
    """Stores that the whole image of a record was decoded.

    If two threads or processes change the same byte, one bit can be lost. That image is then decoded completely again.
    """
    if not self._is_decoded(record):
      self.decoded[record >> 3] |= 1 << (record & 7)

  @contextlib.contextmanager
  def _track_reading(self, record: int) -> Iterator[None]:
    me = threading.get_ident()
    self._reads[me] = record, time.monotonic()
    try:
      yield
    finally:
      del self._reads[me]

  def _reject(self, record: int, reason: str, error: Exception) -> None:
    """Raises ImageError, or counts the record as skipped."""
    if self.on_error == "raise":
      advice = f"Fix it, or leave out such images with --{self.source.key}.on_error=skip"
      # A started run cannot skip missing images, so the error suggests it only for a new run.
      if isinstance(error, FileNotFoundError | NotADirectoryError):
        advice = f"Restore it, or leave out such images in a new run with --{self.source.key}.on_error=skip"
      raise self.stop(f"{reason}. {advice}") from error
    self.skip(record, reason)

  def skip(self, record: int, reason: str) -> None:
    """Counts a record as bad.

    Args:
      record: record number.
      reason: description of the error.

    Raises:
      ImageError: if there are too many bad records.
    """
    with self._lock:
      if record not in self.reasons:
        if len(self.reasons) < LISTED:
          LOG.warning("skipped: %s", reason)
        elif len(self.reasons) == LISTED:
          LOG.warning("further skipped records of split %r are not listed", self.source.split)
      self.reasons[record] = reason
      some = list(self.reasons.values())
    if exceeds_max_bad(len(some), len(self.source), self.max_bad):
      raise self.stop(
        f"{len(some)} of {format_amount(len(self.source), 'record')} {'is' if len(some) == 1 else 'are'} "
        f"bad. Allowed: the larger of {100 * self.max_bad:g}% "
        f"({self.source.key}.max_bad) and {BAD_FEW} records. Fix them: {'; '.join(some[:5])}"
      )

  def stop(self, message: str) -> ImageError:
    """Returns the error that stops the run, and stores it as `problem` if it is the first one.

    Args:
      message: message of the error.
    """
    error = ImageError(message)
    with self._lock:
      self.problem = self.problem or error
    return error

  def _label(self, record: int, label: Label) -> int | np.ndarray:
    """Returns a label, or an array of labels padded with -1 if images may have several labels."""
    most, classes = self.source.labels, len(self.source.classes)
    labels = label if isinstance(label, tuple) else (label,)
    outside = [number for number in labels if not 0 <= number < classes]
    if outside:
      raise self.stop(
        f"{self.source.place(record)}: label {outside[0]} is not one of {format_amount(classes, 'class', 'classes')}"
      )
    if len(labels) > most:
      raise self.stop(
        f"{self.source.place(record)}: {len(labels)} labels, but at most {most} are allowed. Set data.labels to "
        f"{len(labels)} or "
        "more"
      )
    if most > 1:
      return np.array(labels + (-1,) * (most - len(labels)), np.int32)
    if not labels:
      raise self.stop(f"{self.source.place(record)}: no label. Set data.labels above 1 to allow images without a label")
    return labels[0]


def exceeds_max_bad(bad: int, records: int, max_bad: float) -> bool:
  """Returns whether the number of bad records ends a run that skips them.

  Args:
    bad: number of bad records.
    records: number of records.
    max_bad: largest share of records that may be bad. `BAD_FEW` records may always be bad, unless these are all.
  """
  return bad > max(BAD_FEW, max_bad * records) or bad == records > 0


def _contains_path(place: str, path: str) -> bool:
  return place == path or repr(path) in place


def describe_image_error(error: BaseException, place: str | None = None) -> str:
  """Returns a short description of an image's error.

  Args:
    error: the error.
    place: text that precedes the description: a path, or a text with the quoted path. The description omits this
      path. By default, it omits any path.
  """
  if decoding.is_out_of_memory(error):
    text = "not enough memory"
  elif (
    isinstance(error, OSError)
    and error.strerror
    and (place is None or error.filename is None or _contains_path(place, str(error.filename)))
  ):
    text = error.strerror
  else:
    text = f"OpenCV: {error.err}" if isinstance(error, cv2.error) else str(error)
  return text if len(text) <= 300 else f"{text[:300]}..."

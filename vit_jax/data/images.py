"""The images of a source by record number, decoded; an account of those that are bad, and of those being read."""

import contextlib
import errno
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np

from vit_jax.data import decoding
from vit_jax.data.sources import Source
from vit_jax.schema import ConfigError, amount

LOG = logging.getLogger(__name__)  # of what is skipped

BAD_SHARE, BAD_FEW = 0.001, 5  # of a split's records, unless a config says otherwise; more than both stop the run
# Bytes of decoded images a split may take to be kept in memory: CIFAR's 150 MB are, so that they are decoded only once.
KEEP = 2**28
# An error of the file itself, always the same. Any other, of a disk or a file server, may be gone with the next try: if
# it made a record bad, another would stand in for it, and the run would not be the same a second time.
OF_A_FILE = (None, errno.ENOENT, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENXIO, errno.ENOTDIR)


class ImageError(ValueError):
  """An image of a dataset that is of no use, or too many of them: says which."""


class Images:
  """Decodes records, keeps small ones, and keeps account of those that are bad; for many threads at once.

  `problem` is the first ImageError that any thread met. `reasons` says what is wrong with each record that was skipped.
  """

  def __init__(
    self,
    source: Source,
    on_error: str,
    max_pixels: int,
    max_aspect: float,
    exif: bool = False,
    max_bad: float = BAD_SHARE,
  ):
    self.source, self.on_error, self.max_bad = source, on_error, max_bad
    self.bounds = max_pixels, max_aspect, exif
    self.reasons: dict[int, str] = {}
    self.problem: ImageError | None = None
    self.kept = {}  # small images and their labels, by record
    self._whole = np.zeros(-(-len(source) // 8), np.uint8)  # a bit for each record that was decoded as a whole
    self._reads = {}  # by thread: the record, and when it began
    self._lock = threading.Lock()

  def prepared(self, record: int, prepare: Callable[[np.ndarray | decoding.Picture], np.ndarray]):
    """(prepare(image), label or labels [K]), or None for a bad record where these are skipped. Raises ImageError.

    Bad is a record that cannot be read, decoded or prepared; where memory or the disk is at fault, none is.
    """
    with self._being_read(record):
      made = self.judged(record, lambda: self._prepared(record, prepare))
      return made and (made[0], self._label(record, made[1]))

  def judged(self, record: int, make: Callable[[], Any]) -> Any:
    """`make()` of a record, or None where that shows that it is bad and these are skipped. Raises ImageError."""
    try:
      return make()
    except ConfigError:  # of the data as a whole
      raise
    except (OSError, ValueError, MemoryError, cv2.error) as error:
      if decoding.no_memory(error):
        raise self.stop(
          f"{self.source.place(record)}: {text_of(error)}; take fewer data.threads, and data.workers"
        ) from error
      if isinstance(error, OSError) and error.errno not in OF_A_FILE:
        raise self.stop(
          f"{self.source.place(record)}: {text_of(error)}; see whether its disk or bucket is there"
        ) from error
      return self._bad(record, error)

  def reading(self) -> list[tuple[str, float]]:
    """(place, seconds) of the records that are being read and prepared now, those that take longest first."""
    now = time.monotonic()
    return [
      (self.source.place(record), now - began) for record, began in sorted(self._reads.copy().values(), key=_began)
    ]

  def _prepared(self, record, prepare):
    """(prepare(image), label as the source has it)."""
    if record in self.kept:
      image, label = self.kept[record]
      with decoding.core():
        return prepare(image), label
    data, label = self.source.read(record)
    with decoding.core():
      header = decoding.check(data, *self.bounds, lenient=self.source.is_published(record))
      with decoding.MEMORY.share(header.memory + 2 * len(data)):  # the file's bytes, of a JPEG twice
        if 3 * header.height * header.width * len(self.source) > KEEP:
          picture = decoding.Picture(data, header, self._is_whole(record))
          made = prepare(picture)
          if picture.is_whole:
            self._set_whole(record)
          return made, label
        image = decoding.decode(data, header)
        self.kept[record] = image, label
        return prepare(image), label

  def _is_whole(self, record):
    """Returns whether the whole image of a record was decoded before, so that a box of it is enough now."""
    return bool(self._whole[record >> 3] >> (record & 7) & 1)

  def _set_whole(self, record):
    """Remembers that the whole image of a record was decoded."""
    with self._lock:
      self._whole[record >> 3] |= 1 << (record & 7)

  @contextlib.contextmanager
  def _being_read(self, record):
    me = threading.get_ident()
    self._reads[me] = record, time.monotonic()
    try:
      yield
    finally:
      del self._reads[me]

  def _bad(self, record, error):
    """Raises ImageError, or counts the record as skipped."""
    reason = f"{self.source.place(record)}: {text_of(error)}"
    if self.on_error == "raise":
      raise self.stop(f"{reason}. Mend it, or leave out such images with --{self.source.key}.on_error=skip") from error
    self.skip(record, reason)

  def skip(self, record: int, reason: str) -> None:
    """Counts a record as bad; ImageError where there are too many."""
    with self._lock:
      if record not in self.reasons:
        LOG.warning("skipped: %s", reason)
      self.reasons[record] = reason
      some = list(self.reasons.values())
    if too_many(len(some), len(self.source), self.max_bad):
      raise self.stop(
        f"{len(some)} of {amount(len(self.source), 'record')} {'is' if len(some) == 1 else 'are'} "
        f"bad, over the limit of {100 * self.max_bad:g}% "
        f"({self.source.key}.max_bad) and {BAD_FEW}; mend them: {'; '.join(some[:5])}"
      )

  def stop(self, message: str) -> ImageError:
    """The error that stops the run: the first one is the problem."""
    error = ImageError(message)
    with self._lock:
      self.problem = self.problem or error
    return error

  def _label(self, record, label):
    """A label as it is, or where images may have several an array of them, padded with -1."""
    most, classes = self.source.labels, len(self.source.classes)
    labels = label if isinstance(label, tuple) else (label,)
    outside = [number for number in labels if not 0 <= number < classes]
    if outside:
      raise self.stop(
        f"{self.source.place(record)}: label {outside[0]} is not one of {amount(classes, 'class', 'classes')}"
      )
    if len(labels) > most:
      raise self.stop(
        f"{self.source.place(record)}: {len(labels)} labels, allowed are {most}; set data.labels to {len(labels)} or "
        "more"
      )
    if most > 1:
      return np.array(labels + (-1,) * (most - len(labels)), np.int32)
    if not labels:
      raise self.stop(f"{self.source.place(record)}: no label; set data.labels above 1 to allow that")
    return labels[0]


def too_many(bad: int, records: int, max_bad: float) -> bool:
  """Whether a run ends, that skips bad records, where so many are."""
  return bad > max(BAD_FEW, max_bad * records) or bad == records > 0


def _began(read):
  return read[1]


def text_of(error):
  """What is wrong with an image, in a few words."""
  if decoding.no_memory(error):
    text = "not enough memory"
  else:
    text = f"OpenCV: {error.err}" if isinstance(error, cv2.error) else str(error)
  return text if len(text) <= 300 else f"{text[:300]}..."

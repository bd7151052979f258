"""Progress of the preparation of a corpus: a bar in a terminal, otherwise a line every 30 s."""

import contextlib
import sys
import time
from typing import Self

from rich import progress

from vit_jax.runtime import print_line, process_index
from vit_jax.schema import format_amount

EVERY = 30.0  # seconds between two lines


class ProgressScreen:
  """A context that displays images, images/s, omitted images and the remaining time.

  Args:
    what: the name in front of the figures.
    total: total number of images.
    done: number of images that earlier starts of the command have completed.
    rejected: number of images that earlier starts have rejected.
    duplicates: number of duplicates that earlier starts have omitted.
  """

  def __init__(self, what: str, total: int, done: int = 0, rejected: int = 0, duplicates: int = 0) -> None:
    self._what, self._total, self._start, self._done = what, total, done, done
    self._left_out = [rejected, duplicates]
    self._start_time = self._said = time.monotonic()
    self._bar: progress.Progress | None = None

  def __enter__(self) -> Self:
    if sys.stdout.isatty() and process_index() == 0:
      self._bar = progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f} images"),
        progress.TextColumn("{task.fields[words]}"),
        progress.TimeRemainingColumn(),
      )
      self._bar.start()
      self._task = self._bar.add_task(self._what, total=self._total, completed=self._done, words="")
    return self

  def __exit__(self, *error: object) -> None:
    if self._bar:
      with contextlib.suppress(OSError):  # the terminal may be closed
        self._bar.stop()

  def add(self, records: int, rejected: int = 0, duplicates: int = 0) -> None:
    """Adds completed images and updates the display.

    Args:
      records: number of completed images.
      rejected: number of rejected images among them.
      duplicates: number of omitted duplicates among them.
    """
    self._done += records
    self._left_out = [self._left_out[0] + rejected, self._left_out[1] + duplicates]
    now = time.monotonic()
    if self._bar:
      with contextlib.suppress(OSError):
        self._bar.update(self._task, completed=self._done, words=self._words(now))
    elif now - self._said > EVERY:
      self._said = now
      print_line(
        f"{self._what}  {self._done:,}/{format_amount(self._total, 'image')}  {self._words(now)}{self._left(now)}"
      )

  @property
  def rejected(self) -> int:
    """Returns the number of images that have been rejected so far."""
    return self._left_out[0]

  def _rate(self, now: float) -> float:
    return (self._done - self._start) / max(1e-3, now - self._start_time)

  def _words(self, now: float) -> str:
    rate = self._rate(now)
    left_out = zip(self._left_out, ("rejected", "duplicates"), strict=True)
    words = [f"{count:,} {what}" for count, what in left_out if count]
    return "  ".join([f"{rate:,.{0 if rate >= 10 else 1}f} images/s", *words])

  def _left(self, now: float) -> str:
    rate = self._rate(now)
    return f"  {(self._total - self._done) / rate / 60:,.0f} min left" if rate else ""

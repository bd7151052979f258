"""The time that a run takes: images a second over its steady steps, and all seconds since it began."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
  """Images a second over steady steps, without compilation, evaluations and saves; and seconds of training in all.

  It goes on from the counts of a run that was stopped.
  """

  def __init__(self, images: int = 0, seconds: float = 0.0, train_seconds: float = 0.0, running: bool = True):
    """`images` in `seconds` are those of the laps before; `train_seconds` what the run has taken so far, all in all;
    it is not `running` where the last step is done."""
    self.images, self.seconds = images, seconds
    self._train_seconds, self._began = train_seconds, time.perf_counter() if running else None
    self._lap_began = None
    self._paused = self._waited = 0.0  # seconds of this lap

  def lap(self, images: int) -> dict[str, float]:
    """Rates since the last lap, in which `images` were trained on; the first lap only starts the clock."""
    now, began = time.perf_counter(), self._lap_began
    paused, waited = self._paused, self._waited
    self._lap_began, self._paused, self._waited = now, 0.0, 0.0
    if began is None:
      return {}
    seconds = max(now - began - paused, 1e-9)
    self.images += images
    self.seconds += seconds
    return {"images_per_second": images / seconds, "data_wait": min(waited / seconds, 1.0)}

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Time that is no step's: evaluation, saving."""
    began = time.perf_counter()
    try:
      yield
    finally:
      self._paused += time.perf_counter() - began

  @contextlib.contextmanager
  def wait(self) -> Iterator[None]:
    """Time that counts as waiting for data."""
    began = time.perf_counter()
    try:
      yield
    finally:
      self._waited += time.perf_counter() - began

  def stop(self) -> None:
    """Ends `train_seconds`: the last step is done."""
    self._train_seconds, self._began = self.train_seconds, None

  @property
  def train_seconds(self) -> float:
    """Seconds of all that was done for the run's steps: compilation, evaluations and saves as well."""
    return self._train_seconds + (0.0 if self._began is None else time.perf_counter() - self._began)

  @property
  def rate(self) -> float | None:
    """Images a second over all laps; None before the first whole lap."""
    return self.images / self.seconds if self.images and self.seconds else None

  def counts(self) -> dict[str, float]:
    """What a clock that goes on from here is made of."""
    return {"images": self.images, "seconds": self.seconds, "train_seconds": self.train_seconds}

"""Rates of steady steps: images a second, and the share of the time that waits for data."""

import time


class Clock:
  """Images a second over steady steps: compilation, evaluations and saves are taken out.

  It begins with the images and seconds of earlier sessions of the same run.
  """

  def __init__(self, images: int = 0, seconds: float = 0.0):
    self.images, self.seconds = images, seconds
    self._since = None
    self._paused = self._waited = 0.0

  def lap(self, images: int) -> dict[str, float]:
    """Rates since the last lap, in which `images` were trained on; the first lap only starts the clock."""
    now, since = time.perf_counter(), self._since
    paused, waited = self._paused, self._waited
    self._since, self._paused, self._waited = now, 0.0, 0.0
    if since is None:
      return {}
    seconds = max(now - since - paused, 1e-9)
    self.images += images
    self.seconds += seconds
    return {"images_per_second": images / seconds, "data_wait": min(waited / seconds, 1.0)}

  def pause(self) -> "_Timer":
    """Context whose time does not count: evaluation, saving."""
    return _Timer(self, "_paused")

  def wait(self) -> "_Timer":
    """Context whose time counts as waiting for data."""
    return _Timer(self, "_waited")

  @property
  def rate(self) -> float | None:
    """Images a second over all laps; None before the first whole lap."""
    return self.images / self.seconds if self.images else None


class _Timer:
  def __init__(self, clock, field):
    self._clock, self._field = clock, field

  def __enter__(self):
    self._start = time.perf_counter()

  def __exit__(self, *_):
    spent = time.perf_counter() - self._start
    setattr(self._clock, self._field, getattr(self._clock, self._field) + spent)

"""What a program says of its progress to the one that started it, in the file that VITJAX_STATUS names."""

import json
import os
import pathlib
import time

EVERY = 1.0  # seconds between two writes, at least


class Progress:
  """Writes {"step", "doing", "polls"} where it has changed, at most once a second; nothing without VITJAX_STATUS.

  A reader, which is `launch.worker`, sees a whole file or none. What cannot be written is left out: it says only how
  far a run is, and ends none.
  """

  def __init__(self):
    name = os.environ.get("VITJAX_STATUS")
    self._path = pathlib.Path(name) if name else None
    self._written, self._next = None, 0.0

  def say(self, step: int, doing: str, polls: int) -> None:
    """The step that is done, -1 for none; the phase; and a number that grows while there is progress within a step."""
    now, text = time.monotonic(), {"step": step, "doing": doing, "polls": polls}
    if self._path is None or now < self._next or text == self._written:
      return
    self._next = now + EVERY
    partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
    try:
      partial.write_text(json.dumps(text))
      os.replace(partial, self._path)
      self._written = text
    except OSError:  # a disk that is full or gone; the next write may succeed
      self._path = self._path if self._path.parent.is_dir() else None

"""What a program says of its progress to the one that started it, in the file that VITJAX_STATUS names."""

import json
import os
import pathlib
import time

EVERY = 1.0  # seconds between two writes, at least


class Progress:
  """Writes {"step", "began", "doing", "polls"} where it has changed, at most once a second; only with VITJAX_STATUS.

  A reader, which is `launch.worker`, sees a whole file or none. What cannot be written is left out: it says only how
  far a run is, and ends none.
  """

  def __init__(self):
    name = os.environ.get("VITJAX_STATUS")
    self._path = pathlib.Path(name) if name else None
    self._written, self._next, self._began = None, 0.0, -1

  def say(self, step: int, doing: str, polls: int) -> None:
    """The step that is done, -1 before there is a state; the phase; a number that grows with progress within a step.

    "began" is the first step that was said, from which the run goes on.
    """
    self._began = step if self._began < 0 else self._began
    now, text = time.monotonic(), {"step": step, "began": self._began, "doing": doing, "polls": polls}
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

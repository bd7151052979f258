"""Progress reports for the program that started this one, in the file that the variable VITJAX_STATUS names."""

import json
import os
import pathlib
import time

EVERY = 1.0  # minimum interval between two writes in seconds


class ProgressFile:
  """A writer of {"step", "began", "doing", "polls"}. Without VITJAX_STATUS it has no effect.

  The file is written after changes, at most once a second. A reader such as `launch.program` always sees a complete
  file or no file. A failed write is ignored, because a progress report must not end a run.
  """

  def __init__(self) -> None:
    name = os.environ.get("VITJAX_STATUS")
    self._path = pathlib.Path(name) if name else None
    self._written: dict[str, object] | None = None
    self._next, self._first_step = 0.0, -1

  def say(self, step: int, doing: str, polls: int) -> None:
    """Writes the progress if it has changed.

    The entry "began" of the file is the first `step` that was reported. It shows at which step the run resumed.

    Args:
      step: the last completed step, or -1 before a state exists.
      doing: the current phase.
      polls: a number that grows with progress within a step.
    """
    self._first_step = step if self._first_step < 0 else self._first_step
    now, text = time.monotonic(), {"step": step, "began": self._first_step, "doing": doing, "polls": polls}
    if self._path is None or now < self._next or text == self._written:
      return
    self._next = now + EVERY
    partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
    try:
      partial.write_text(json.dumps(text))
      os.replace(partial, self._path)
      self._written = text
    except OSError:  # the disk is full or unavailable, but the next write may succeed
      self._path = self._path if self._path.parent.is_dir() else None

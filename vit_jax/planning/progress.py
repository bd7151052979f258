"""Progress messages for work that prints no output for minutes, such as compiling for a TPU."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator


class Progress:
  """The current activity of a program and its elapsed time.

  Args:
    clock: function that returns the current time in seconds.
  """

  def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
    self._clock = clock
    self._current = "", clock()

  def start(self, activity: str) -> None:
    """Replaces the current activity and restarts its elapsed time.

    Args:
      activity: description of the activity, such as "v3-32: compiling the train step".
    """
    self._current = activity, self._clock()  # one assignment, because `line` reads both in another thread

  def line(self) -> str:
    """Returns the current activity and its elapsed time, as in "v3-32: compiling the train step, 0:45 elapsed"."""
    activity, since = self._current
    minutes, seconds = divmod(int(self._clock() - since), 60)
    return f"{activity}, {minutes}:{seconds:02} elapsed"

  @contextlib.contextmanager
  def print_regularly(self, interval: float) -> Iterator["Progress"]:
    """Prints a line on standard error at regular intervals until the `with` block ends.

    Standard output is not used, so that another program can read it.

    Args:
      interval: seconds between two lines.
    """
    ended = threading.Event()

    def run() -> None:
      with contextlib.suppress(OSError):  # the work continues without messages if standard error is closed
        while not ended.wait(interval):
          print(self.line(), file=sys.stderr, flush=True)

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
      yield self
    finally:
      ended.set()
      thread.join()

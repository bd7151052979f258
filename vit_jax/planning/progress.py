"""Lines about the progress of work that prints nothing for minutes, such as compiling for a TPU."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator


class Progress:
  """The activity of a program and the seconds since it began."""

  def __init__(self, clock: Callable[[], float] = time.monotonic):
    """Starts without an activity.

    Args:
      clock: returns the current time in seconds.
    """
    self._clock = clock
    self._current = "", clock()

  def start(self, activity: str) -> None:
    """Replaces the current activity, and measures its time from now on.

    Args:
      activity: what the program does, as "v3-32: compiling the train step".
    """
    self._current = activity, self._clock()  # one assignment, because `line` reads both in another thread

  def line(self) -> str:
    """Returns the current activity and its elapsed time, as "v3-32: compiling the train step, 0:45 elapsed"."""
    activity, since = self._current
    minutes, seconds = divmod(int(self._clock() - since), 60)
    return f"{activity}, {minutes}:{seconds:02} elapsed"

  @contextlib.contextmanager
  def printed(self, interval: float) -> Iterator["Progress"]:
    """Prints a line on the standard error stream at regular intervals, from a thread, until the block ends.

    The standard output of the program remains as it is, so that it can be stored or read by another program.

    Args:
      interval: seconds from one line to the next.
    """
    ended = threading.Event()

    def run() -> None:
      with contextlib.suppress(OSError):  # the reader of the lines has gone; the work continues without them
        while not ended.wait(interval):
          print(self.line(), file=sys.stderr, flush=True)

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
      yield self
    finally:
      ended.set()
      thread.join()

"""Workers without machines, which write scripted reports to the files of a run."""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence

from launch import mailbox
from launch.errors import LaunchError, UnknownError


class Crew:
  """The workers of one attempt, on a thread. It is a context manager.

  Args:
    storage: storage of the run.
    attempt: number of the attempt.
    codes: exit codes of the workers for each try. The last code applies to all further workers, and the last item to
      all further tries.
    steps: number of steps of a try.
    began: first step of each try.
    beat: seconds between two reports.
    ended: called with the exit codes of a finished try.
    ordered: returns the number of the last ordered try. By default, it reads the order in the storage.
  """

  def __init__(
    self,
    storage,
    attempt: int,
    codes: Sequence[Sequence[int]] = ((0,),),
    steps: int = 3,
    began: Sequence[int] = (0,),
    beat: float = 0.02,
    ended: Callable[[list[int]], None] | None = None,
    ordered: Callable[[], int] | None = None,
  ):
    self._board, self._codes, self._steps, self._began, self._beat = (
      mailbox.Mailbox(storage, attempt), codes, steps, began, beat,
    )  # fmt: skip
    self._ended, self._ordered = ended or (lambda _: None), ordered or (lambda: self._board.read_order().try_)
    self._closed, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
    self.tries, self.running = [], threading.Event()

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *_):
    self.close()

  def close(self) -> None:
    """Ends the workers without a report."""
    self._closed.set()
    self._thread.join()

  def _run(self):
    count, now = 0, 0
    while not self._closed.wait(self._beat):
      try:
        count = count or self._board.read_attempt().run.workers
        wanted, stop = self._ordered(), self._board.read_order().stop
        if stop and now:
          self._write([mailbox.WorkerReport(w, now, mailbox.EXITED, exit=42) for w in range(count)])
        elif wanted > now and not stop:
          now = wanted
          self.tries.append(now)
          self._try(now, count)
      except (LaunchError, UnknownError):  # not published yet, or without a response
        continue

  def _try(self, number, count):
    began = self._began[min(number, len(self._began)) - 1]
    codes = self._codes[min(number, len(self._codes)) - 1]
    rows = [mailbox.WorkerReport(w, number, mailbox.RUNNING, began=began, host=f"h{w}") for w in range(count)]
    for step in range(self._steps):
      if self._closed.is_set() or self._board.read_order().stop:
        return
      rows = [dataclasses.replace(row, step=began + step, clock=time.time()) for row in rows]
      self._write(rows)
      self.running.set()
      time.sleep(self._beat)
    ends = [codes[min(w, len(codes) - 1)] for w in range(count)]
    self._write([dataclasses.replace(row, phase=mailbox.EXITED, exit=end, tail=f"the log of {row.worker}")
                 for row, end in zip(rows, ends, strict=True)])  # fmt: skip
    self._ended(ends)

  def _write(self, rows):
    for row in rows:
      self._board.write_report(row)

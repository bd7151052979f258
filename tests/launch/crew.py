"""Workers without machines: they report in the files of a run what a script says."""

import dataclasses
import threading
import time

from launch import board
from launch.errors import LaunchError, UnknownError


class Crew:
  """The workers of one attempt, on a thread: a context.

  Args:
    storage: the run's folder.
    codes: the exit code of each try's workers, one list for each try; the last list is every further try's.
    steps: that a try makes before it ends; `began` the step at which each try goes on.
  """

  def __init__(self, storage, attempt: int, codes=((0,),), steps: int = 3, began=(0,), beat: float = 0.02):
    self._board, self._codes, self._steps, self._began, self._beat = (
      board.Board(storage, attempt),
      codes,
      steps,
      began,
      beat,
    )
    self._closed, self._thread = threading.Event(), threading.Thread(target=self._run, daemon=True)
    self.tries = []

  def __enter__(self):
    self._thread.start()
    return self

  def __exit__(self, *_):
    self._closed.set()
    self._thread.join()

  def _run(self):
    while not self._closed.is_set():
      try:
        count = self._board.attempt().run.workers
        break
      except (LaunchError, UnknownError):
        time.sleep(self._beat)
    else:
      return
    now = 0
    while not self._closed.is_set():
      order = self._board.order()
      if order.stop or order.try_ <= now:
        if order.stop and now:
          self._write([board.Report(w, now, board.EXITED, exit=42) for w in range(count)])
        time.sleep(self._beat)
        continue
      now = order.try_
      self.tries.append(now)
      self._try(now, count)

  def _try(self, number, count):
    began = self._began[min(number, len(self._began)) - 1]
    codes = self._codes[min(number, len(self._codes)) - 1]
    rows = [board.Report(w, number, board.RUNNING, began=began, host=f"h{w}") for w in range(count)]
    for step in range(self._steps):
      if self._closed.is_set() or self._board.order().stop:
        return
      rows = [dataclasses.replace(row, step=began + step, clock=time.time()) for row in rows]
      self._write(rows)
      time.sleep(self._beat)
    ends = [codes[min(w, len(codes) - 1)] for w in range(count)]
    self._write([dataclasses.replace(r, phase=board.EXITED, exit=e, tail=f"the log of {r.worker}")
                 for r, e in zip(rows, ends, strict=True)])  # fmt: skip

  def _write(self, rows):
    for row in rows:
      self._board.report(row)

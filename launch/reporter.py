"""What a worker and its run's folder bring each other, on a thread: a bucket may stand still, a worker may not."""

import contextlib
import dataclasses
import threading
import time

from launch import errors, mailbox, storage
from launch.errors import LaunchError, UnknownError
from launch.log import Log

PIECES = 8  # of the log, at a time
WORDS = {"detail": 2000, "doing": 100, "tail": 10_000}  # of a report, which hold no secret, and their letters at most


class Reporter:
  """Reports and pieces of the log go out every `beat` seconds, and at once where a report says something new.

  Orders come in. What does not arrive is brought again the next time. A resource.
  """

  def __init__(self, folder: str, attempt: int, report: mailbox.Report, beat: float, log: Log):
    self.order, self.trouble = mailbox.Order(), ""
    self.mailbox = mailbox.Mailbox(storage.storage(folder), attempt)
    self._report, self._beat, self._log, self._piece = report, beat, log, None
    self._turn, self._wanted, self._brought, self._closed = threading.Condition(), 1, 0, False
    self._thread = threading.Thread(target=self._run, name="reporter", daemon=True)
    self._thread.start()

  def check(self) -> None:
    """LaunchError where the thread has ended by a mistake of ours."""
    if self._closed:
      raise LaunchError("what brings its reports and log has ended; why is in worker.txt, or journalctl", errors.BUG)

  @property
  def report(self) -> mailbox.Report:
    """The last one."""
    return self._report

  def say(self, **changes) -> None:
    """Changes the report; one that is in another phase or try goes out at once."""
    for key, most in WORDS.items():
      if key in changes:
        changes[key] = self._log.hidden(changes[key])[:most]
    with self._turn:
      before, self._report = self._report, dataclasses.replace(self._report, **changes)
      if any(
        getattr(before, key) != getattr(self._report, key) for key in ("phase", "try_", "asked", "exit", "detail")
      ):
        self._wanted += 1
        self._turn.notify_all()

  def settle(self, seconds: float) -> bool:
    """Waits until the last report and the log so far have arrived, and orders were read after; whether they have."""
    with self._turn:
      self._wanted += 1
      wanted = self._wanted
      self._turn.notify_all()
      self._turn.wait_for(lambda: self._brought >= wanted or self._closed, seconds)
      arrived = self._brought >= wanted
    if self._closed:  # the last word of a worker that cannot go on
      with contextlib.suppress(UnknownError, LaunchError):
        self.mailbox.report(dataclasses.replace(self._report, clock=time.time()))
    return arrived

  def close(self) -> None:
    """Ends the thread; what has not arrived then does not."""
    with self._turn:
      self._closed = True
      self._turn.notify_all()
    self._thread.join(1.0)

  def _run(self):
    try:
      self._bring()
    finally:
      with self._turn:
        self._closed = True
        self._turn.notify_all()

  def _bring(self):
    while True:
      with self._turn:
        self._turn.wait_for(lambda: self._wanted > self._brought or self._closed, self._beat)
        if self._closed:
          return
        wanted, report = self._wanted, self._report
      try:
        try:
          self._send(report)  # first, for who reads of an end may delete what the log is on
        finally:
          self.mailbox.report(dataclasses.replace(report, clock=time.time()))
        try:
          self.order = self.mailbox.order()
        finally:  # one that cannot be read holds up nothing else
          with self._turn:
            self._brought = wanted
            self._turn.notify_all()
        self.trouble = ""
      except (UnknownError, LaunchError) as error:  # the program goes on, and the next beat tries again
        self.trouble = str(error)
        with self._turn:
          self._turn.wait_for(lambda: self._closed, self._beat)

  def _send(self, report):
    """Pieces of the log. What no program may write any more is sent to its end."""
    if self._piece is None:
      names = self.mailbox.pieces(report.worker)
      self._piece = int(names[-1].rpartition(".")[2]) + 1 if names else 0
    for _ in range(PIECES):
      content, end = self._log.piece(last=report.phase != mailbox.RUNNING)
      if not content:
        return
      self.mailbox.write_log(report.worker, self._piece, content)
      self._piece += 1
      self._log.sent(end)


@contextlib.contextmanager
def opened(*words):
  """A post, closed at the end."""
  reporter = Reporter(*words)
  try:
    yield reporter
  finally:
    reporter.close()

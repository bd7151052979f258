"""Exchange of signs of life, positions, reasons for an end, and requests to stop between the processes of a run."""

import atexit
import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Mapping

import jax

from vit_jax.runtime import exchange, exits

PAUSE = 0.25  # seconds between two reads of the store
QUIET = 3.0  # seconds without a sign of life after which a process counts as dead if XLA reports that a process died
LINGER = 5.0  # seconds that process 0, which owns the store, waits so that the others can read why it ends
GRACE = 2.0  # seconds that this process has to end by itself for the same reason as another process
_runs = itertools.count()
_failed: "tuple[Peers, int] | None" = None  # (Peers, exit code) of a run that ended with an error


class Peers:
  """A thread that writes signs of life of this process to the common store, and reads those of the other processes.

  Args:
    patience: seconds of silence after which a process counts as dead.

  Attributes:
    status: the current position of this process, as text.
    stop_request: (code, message) of the first request to stop, made by any process, or None.
  """

  def __init__(self, patience: float) -> None:
    global _failed
    _failed = None
    self.status = ""  # the current position of this process, as text
    # (code, message) of the first request to stop, made by any process
    self.stop_request: tuple[int, str] | None = None
    self._patience = patience
    self._store, self._folder = exchange.Store(), f"run{next(_runs)}"
    self._me, self._others = (
      exchange.process_index(),
      [i for i in range(exchange.count_processes()) if i != exchange.process_index()],
    )
    self._polls = 0
    self._last: int | None = None  # the poll at which all processes stop
    self._mine: int | None = None  # this process's poll at the time of the request
    self._turn = threading.Condition()
    self._seen = {i: (None, time.monotonic(), "") for i in self._others}  # sign of life, time of its arrival, status
    self._heard = time.monotonic()
    self._ends = {}  # process -> (code, message), for processes that ended for their own reason
    self._ended: float | None = None  # time at which the first process ended
    self._closed = threading.Event()
    _end_without_waiting()
    self._thread = threading.Thread(target=self._run, name="peers", daemon=True)
    self._thread.start()

  def close(self) -> None:
    """Ends the thread, unless it waits for an answer of process 0."""
    self._closed.set()
    self._thread.join(2 * PAUSE)

  def ask(self, code: int, message: str) -> None:
    """Asks all processes to stop. Only the first request counts.

    Returns without delay. The next poll waits for the answers of the other processes.

    Args:
      code: exit code of all processes.
      message: reason for the stop.
    """
    with self._turn:
      self._mine = self._polls if self._mine is None else self._mine
    threading.Thread(target=self._propose, args=(json.dumps([code, message]),), daemon=True).start()

  def _propose(self, request: str) -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._store.set(f"{self._folder}/at/{self._me}", str(self._mine))
      self._store.propose(f"{self._folder}/stop", request)

  def find_request(self, poll: int) -> tuple[int, str] | None:
    """Returns the request to stop, if all processes must stop at this poll.

    This call waits until the processes agree on a poll. Each process reports its number of polls and does not continue
    until the largest number is known. Threads report these numbers, so that no process waits for another process that
    is inside a step.

    Args:
      poll: number of this poll.

    Returns:
      (code, message), or None.
    """
    with self._turn:
      self._polls = poll
      self._turn.wait_for(lambda: self._mine is None or self._last is not None or self._closed.is_set())
      return self.stop_request if self._last is not None and poll >= self._last else None

  def wait_for_exit_reason(self, wait: float) -> tuple[int, str] | None:
    """Returns the exit code and message for this process if another process has ended, or None.

    Args:
      wait: seconds to wait for the other process's reason.
    """
    deadline = time.monotonic() + wait
    while not self._ends and time.monotonic() < deadline:
      time.sleep(PAUSE)
    if not self._ends:
      return None
    number, (code, message) = min(self._ends.items())
    text = f"process {number} ended with code {code}: {message or 'see its traceback'}"
    return code if code in exits.SHARED else exits.EXIT_PEER, text

  def find_exit_reason(self) -> tuple[int, str] | None:
    """Returns (code, message) to end with if another process has ended or is silent, or None."""
    now = time.monotonic()
    if self._ended and now - self._ended > GRACE:
      return self.wait_for_exit_reason(0.0)
    # A silent process can only be detected while process 0, which owns the store, answers.
    silent = self._silent()
    if now - self._heard > self._patience:
      silent = [0]
    if not silent:
      return None
    where = self._seen[silent[0]][2] if silent[0] in self._seen else ""
    return exits.EXIT_PEER, (
      f"process {silent[0]} has been silent for {self._patience:.0f} s (config.limits.peer)"
      f"{f', after {where}' if where else ''}. Check how it ended, and start all processes again: the same command "
      "continues"
    )

  def _silent(self) -> list[int]:
    """Returns the processes that send no sign of life although the store answers."""
    return [i for i, (_, since, _) in self._seen.items() if self._heard - since > self._patience]

  def find_quiet(self) -> list[int]:
    """Returns the processes without a heartbeat in the last `QUIET` seconds.

    If process 0, which owns the store, does not answer, the state of the others is unknown and the result is [0].
    """
    if self._me and time.monotonic() - self._heard > QUIET:
      return [0]
    return [i for i, (_, since, _) in self._seen.items() if self._heard - since > QUIET and i not in self._ends]

  def describe_behind(self, polls: int) -> str:
    """Returns a phrase that compares the positions of the other processes with the position of this process.

    Args:
      polls: number of polls of this process.
    """
    texts = [f"process {i} is at {status}" for i, (_, _, status) in self._seen.items() if status]
    return f"this process is at poll {polls}, " + ", ".join(texts) if texts else ""

  def end(self, code: int, message: str) -> None:
    """Reports to the other processes how this process ends.

    Args:
      code: exit code of this process.
      message: reason for the end. At most 2000 characters are sent.
    """
    global _failed
    _failed = self, code
    follows = bool(self._ends)
    text = json.dumps([code, message[:2000], follows])
    # On a thread, because process 0 may be unable to answer.
    teller = threading.Thread(target=self._tell, args=(text,), daemon=True)
    teller.start()
    teller.join(3.0)

  def linger(self) -> None:
    """On process 0, waits until the other running processes have read why process 0 ends.

    The store, which contains the reasons, ends with process 0.
    """
    deadline = time.monotonic() + LINGER
    while self._me == 0 and time.monotonic() < deadline:
      with contextlib.suppress(jax.errors.JaxRuntimeError):
        if len(self._store.read_all(f"{self._folder}/end")) > len(self._others) - len(self._silent()):
          return
      time.sleep(PAUSE)

  def _tell(self, text: str) -> None:
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._store.set(f"{self._folder}/end/{self._me}", text)

  # Methods below run on the thread.

  def _run(self) -> None:
    for sign in itertools.count():
      if self._closed.wait(PAUSE):
        return
      try:
        if sign % 4 == 0:
          self._store.set(f"{self._folder}/life/{self._me}", json.dumps([sign, self.status]))
        self._read(self._store.read_all(self._folder))
      except jax.errors.JaxRuntimeError:
        continue  # a failure that persists is reported by `find_exit_reason`
      self._heard = time.monotonic()

  def _read(self, table: Mapping[str, str]) -> None:
    for other in self._others:
      if (text := table.get(f"life/{other}")) and json.loads(text)[0] != self._seen[other][0]:
        sign, status = json.loads(text)
        self._seen[other] = sign, time.monotonic(), status
      if text := table.get(f"end/{other}"):
        code, message, follows = json.loads(text)
        if not follows:
          self._ends[other] = code, message
        self._ended = self._ended or time.monotonic()
    if text := table.get("stop"):
      self._agree(table, tuple(json.loads(text)))

  def _agree(self, table: Mapping[str, str], request: tuple[int, str]) -> None:
    """Answers a request to stop. All processes stop at the poll after the latest poll that any process has reached."""
    with self._turn:
      self.stop_request = request
      is_new = self._mine is None
      self._mine = self._polls if is_new else self._mine
    if is_new:  # outside the lock, because process 0 may not answer
      self._store.set(f"{self._folder}/at/{self._me}", str(self._mine))
      return
    with self._turn:
      polls = [int(text) for key, text in table.items() if key.startswith("at/")]
      if len(polls) == len(self._others) + 1:
        self._last = max(polls) + 1
        self._turn.notify_all()


def get_failure_code() -> int | None:
  """Returns the exit code of this process if it ends with an error that the other processes received, or None."""
  return _failed[1] if _failed else None


def _leave_at_exit() -> None:
  """Ends the process before JAX's exit callback, which would wait for processes that have ended."""
  if _failed:
    peers, code = _failed
    peers.linger()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_without_waiting() -> None:
  atexit.unregister(_leave_at_exit)
  atexit.register(_leave_at_exit)  # the callback that is registered last runs first

"""Watches a run from threads of its own: requests to stop, waits that take too long, and the other processes.

The program's main thread may be inside XLA or a file system for minutes, where no Python code of it runs: what has to
be seen within seconds is seen here.
"""

import collections
import contextlib
import faulthandler
import os
import select
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vit_jax import config
from vit_jax.runtime import exchange, exits
from vit_jax.runtime.peers import Peers
from vit_jax.runtime.progress import Progress

# Signals that request a stop, with the exit code and the message.
STOPS = {
  signal.SIGTERM: (exits.EXIT_PREEMPTED, "stopped as asked (SIGTERM)"),
  signal.SIGHUP: (exits.EXIT_PREEMPTED, "stopped as its terminal was closed (SIGHUP)"),
  signal.SIGINT: (exits.EXIT_INTERRUPTED, "interrupted (Ctrl-C)"),
}
# Signals that stay ignored if the caller ignores them: nohup does so for SIGHUP, a shell's `&` for SIGINT. SIGTERM is
# always a request, because a cluster announces a preemption by it and containers may start programs with it ignored.
OPTIONAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
PARENT = "VITJAX_PARENT"  # the process without which a program shall not go on, as a sweep for its trials
ORPHANED = exits.EXIT_PREEMPTED, "stopped, as the process that started it is gone"
ACT = 5.0  # seconds after which a SIGTERM has had its effect, unless a step takes longer
# Phases in which a single process may be stopped in the middle: they change nothing.
INTERRUPTIBLE = ("data", "evaluation")
# And those that are left at once, also from inside C: what is saved is all that there is.
BEFORE_STEPS = ("start", "compile", "restore")
PAUSED = 2.0  # seconds between two looks after which the whole process was stopped, as by Ctrl-Z; they do not count
BACKSTOP = 1800.0  # seconds in which not one Python thread ran, after which the C library ends the process


class Preempted(exits.Stop):
  """All processes shall save what is at hand, at this same poll, and end with this code and message."""


def current_handlers(numbers: Iterable[int]) -> dict[int, Any]:
  """Returns the handlers of those of the given signals that a program must handle, see `OPTIONAL`."""
  handlers = {number: signal.getsignal(number) for number in numbers}
  return {n: handler for n, handler in handlers.items() if n not in OPTIONAL or handler != signal.SIG_IGN}


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
  """For a program without steps to save: inside, a request to stop raises Stop in the main thread, wherever that is.

  So what has to be closed is closed. Ctrl-C is Python's KeyboardInterrupt, as ever.
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  requests = {number: STOPS[number] for number in (signal.SIGTERM, signal.SIGHUP)}
  requests[signal.SIGQUIT] = exits.EXIT_PREEMPTED, "stopped as asked (SIGQUIT)"

  def stop(number, _):
    code, message = requests[number]
    raise exits.Stop(code, f"{message}; the same command starts or continues it")

  before = current_handlers(requests)
  for number in before:
    signal.signal(number, stop)
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler or signal.SIG_DFL)


class Watch:
  """Ends the program, with a code of the contract and a line, where a limit is passed: a context.

  Inside, SIGTERM and Ctrl-C are requests to stop, on whichever process; a second Ctrl-C ends it at once. All processes
  call `poll` at the same points: between steps and between batches of an evaluation. `step` is the last that is done,
  set by the loop; with the phase it is said to who started the program, see `Progress`.
  """

  def __init__(self, limits: config.Limits | None = None, again: str | None = None):
    """`again`: what the same command does after a stop, of a program without checkpoints, which none waits for."""
    self.limits = limits or config.Limits()
    self._saves = again is None
    self._again = f"the same command {'continues from the last checkpoint' if self._saves else again}"
    self._later = "the same command continues" if self._saves else self._again
    self.step = -1
    self._phase, self._since, self._detail = "start", time.monotonic(), str
    self._durations = collections.defaultdict(lambda: collections.deque(maxlen=100))  # seconds between polls, by phase
    self._polled = None, 0.0  # phase and time of the last
    self._polls = 0
    self._request = None  # (code, message) of a stop
    self._asked = None  # when
    self._stopping = False
    self._reported = False
    self._interrupts = 0
    self._closed = threading.Event()
    self._parent = os.environ.get(PARENT)
    self._peers = None if exchange.alone() else Peers(self.limits.peer)

  def __enter__(self):
    self._pipe = os.pipe()
    for end in self._pipe:
      os.set_blocking(end, False)
    self._in_main = threading.current_thread() is threading.main_thread()
    if self._in_main:
      # The byte in the pipe is written by C, at once; the handler waits for the main thread.
      self._pipe_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
      self._before = current_handlers(STOPS)
      for number in self._before:
        signal.signal(number, self._on_signal)
      if hasattr(signal, "SIGUSR2"):
        faulthandler.register(signal.SIGUSR2, file=2)
    # If the thread cannot run, this ends the program, with the stacks and code 1; the thread sets it anew.
    faulthandler.dump_traceback_later(self.limits.start, exit=True, file=2)
    self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
    try:
      self._thread.start()
    except RuntimeError:  # no thread, so nothing may run
      self._release()
      raise
    return self

  def __exit__(self, kind, error, _):
    self.report(kind, error, _)
    self._close()

  def report(self, kind, error, _) -> None:
    """Tells the other processes of an error that ends this one: as an exit callback, before anything is closed."""
    if error is None or not self._peers or self._reported:
      return
    self._reported = True
    code, message = exits.ending(error, alone=False)
    if code == exits.EXIT_PEER:
      self.leave(*(self._peers.reason(ACT) or (code, message)))
    if code == exits.EXIT_BUG:
      exits.tell("".join(traceback.format_exception(error)))
      self.leave(code, f"this is a bug; {self._again}")
    self._peers.end(code, message)
    # Closing may have to wait for the others, which are leaving.
    self._stopping, self._asked, self._request = True, time.monotonic(), (code, message)

  def _close(self):
    self._closed.set()
    os.write(self._pipe[1], b".")
    self._thread.join()
    self._release()

  def _release(self):
    """Restores the handlers of signals and closes what is open, but for the thread."""
    if self._in_main:
      signal.set_wakeup_fd(self._pipe_before)
      for number, before in self._before.items():
        signal.signal(number, before or signal.SIG_DFL)
    faulthandler.cancel_dump_traceback_later()
    if self._peers:
      self._peers.close()
    for end in self._pipe:
      os.close(end)

  @contextlib.contextmanager
  def phase(self, name: str, detail: Callable[[], str] = str) -> Iterator[None]:
    """What is inside has the limit of that name; `detail` says what it waits for.

    Phases: those of `config.Limits`, and "data", which has the limit of a step.
    """
    before = self._phase, self._detail
    self._enter(name, detail)
    try:
      yield
    finally:
      self._enter(*before)

  def _enter(self, name, detail):
    self._phase, self._detail, self._since = name, detail, time.monotonic()

  def poll(self) -> None:
    """Raises Preempted where the run shall stop, at the same call in every process."""
    now, (phase, before) = time.monotonic(), self._polled
    if phase == self._phase:
      self._durations[phase].append(now - before)
    self._polled, self._since = (self._phase, now), now
    self._polls += 1
    request = self._peers.request_at(self._polls) if self._peers else self._request
    if request and not self._stopping:
      self._stopping = True
      raise self._preempted(*request)

  def ask(self, code: int, message: str) -> None:
    """Asks all processes to stop at one of the next polls, and to end with `code` and `message`."""
    if self._request is None:
      self._request, self._asked = (code, message), time.monotonic()
      if self._peers:
        self._peers.ask(code, message)

  def _on_signal(self, number, _):
    """In the main thread, between two operations of Python; with other processes the thread below asks them."""
    if self._peers:
      return
    self.ask(*STOPS[number])
    if self._phase in INTERRUPTIBLE and not self._stopping:
      self._stopping = True
      raise self._preempted(*self._request)

  def _preempted(self, code, message):
    return Preempted(code, message if self._saves else f"{message}; {self._again}")

  # On the thread.

  def _run(self):
    armed, last, progress = -BACKSTOP, time.monotonic(), Progress()
    while not self._closed.is_set():
      ready, _, _ = select.select([self._pipe[0]], [], [], 0.25)
      for number in os.read(self._pipe[0], 64) if ready else b"":
        if number in STOPS:
          self.ask(*STOPS[number])
          self._interrupts += number == signal.SIGINT
      if self._closed.is_set():
        return
      now = time.monotonic()
      if now - last > PAUSED:
        self._since += now - last
      last = now
      if now - armed > BACKSTOP / 20:
        armed = now
        faulthandler.dump_traceback_later(BACKSTOP, exit=True, file=2)
      if self._parent and self._parent != str(os.getppid()):
        self.ask(*ORPHANED)
      progress.say(self.step, self._phase, self._polls)
      if self._peers:
        self._peers.status = f"poll {self._polls}, {self._phase}"
        self._check_peers(now)
      self._check_stop(now)
      self._check_limit(now)

  def _check_peers(self, now):
    if self._asked is None and self._peers.asked:
      self._asked = now
    if end := self._peers.lost():
      self.leave(*end)

  def _check_stop(self, now):
    """Ends a program that cannot act on a request to stop."""
    if self._asked is None:
      return
    waited, (code, message) = now - self._asked, self._request or self._peers.asked
    if self._interrupts > 1:
      self.leave(code, f"{message} twice; {self._again}")
    if self._stopping:
      if waited > self.limits.stop:
        self.leave(code, f"{message}; the save was not done after {waited:.0f} s (config.limits.stop) and is left "
                          "out: the same command continues from the checkpoint before")  # fmt: skip
    elif self._phase in BEFORE_STEPS:
      doing = {"start": "started", "compile": "was compiled", "restore": "was restored"}[self._phase]
      self.leave(code, f"{message} while it {doing}; nothing is lost, {self._later}")
    elif waited > self._patience():
      self.leave(code, f"{message} during {self._phase}, which did not end; {self._again}")

  def _patience(self):
    """Seconds that a phase may take to see a request to stop, after which there may be a save."""
    if self._phase == "save":
      return self.limits.stop
    return max(ACT - 1, 2 * self._pace(self._phase)) if self._saves else ACT - 1

  def _check_limit(self, now):
    key = {"data": "step"}.get(self._phase, self._phase)
    limit = getattr(self.limits, key)
    if key == "step":
      limit = max(limit, 10 * self._pace("step"))
    if now - self._since <= limit:
      return
    exits.tell(_stacks())
    whom = [self._detail(), exchange.missing(), self._peers.behind(self._polls) if self._peers else ""]
    details = "".join(f"; {text}" for text in whom if text)
    what = f"nothing happened for {round(limit, 1):g} s in {self._phase} (config.limits.{key})"
    self.leave(exits.EXIT_HANG, f"{what}{details}; "
                                f"the stacks of all threads are above; {self._later}")  # fmt: skip

  def _pace(self, phase):
    """Median seconds between polls."""
    return statistics.median(tuple(self._durations[{"data": "step"}.get(phase, phase)]) or (0.0,))

  def leave(self, code: int, message: str) -> None:
    """Ends the program, whatever the main thread is doing; from any thread."""
    try:
      where = f"process {exchange.process()}: " if self._peers else ""
      exits.tell(f"{where}{message}\n")
      if self._peers:
        self._peers.end(code, message)
        self._peers.linger()
    finally:
      os._exit(code)


def _stacks():
  """Of all threads. Not by faulthandler, which would hold all of them where nobody reads what it writes."""
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  frames = sys._current_frames().items()
  stacks = (f"thread {names.get(i, i)}, last call below:\n{''.join(traceback.format_stack(f))}" for i, f in frames)
  return "\n".join(stacks) + "\n"

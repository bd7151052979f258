"""A watchdog that handles requests to stop, waits that exceed a limit, and lost processes.

The main thread may be inside XLA or a file system for minutes without running Python code. A thread of the watchdog
therefore reacts within seconds.
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
from types import FrameType, TracebackType
from typing import Any, Self

from vit_jax import config
from vit_jax.runtime import exchange, exits
from vit_jax.runtime.peers import Peers
from vit_jax.runtime.progress import ProgressFile

# Signals that request a stop, with the exit code and the message.
STOPS: dict[int, tuple[int, str]] = {
  signal.SIGTERM: (exits.EXIT_PREEMPTED, "stopped on request (SIGTERM)"),
  signal.SIGHUP: (exits.EXIT_PREEMPTED, "stopped because its terminal was closed (SIGHUP)"),
  signal.SIGINT: (exits.EXIT_INTERRUPTED, "interrupted (Ctrl-C)"),
}
# Signals that stay ignored if the caller ignores them. nohup ignores SIGHUP, and a shell's `&` ignores SIGINT. SIGTERM
# is always a request, because clusters announce a preemption with it and containers may start programs that ignore it.
OPTIONAL = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
PARENT = "VITJAX_PARENT"  # the process that must be alive, for example a sweep for its trials
ORPHANED = exits.EXIT_PREEMPTED, "stopped because the process that started it has ended"
ACT = 5.0  # seconds after which a SIGTERM must have had its effect, unless a step takes longer
# Phases in which a single process may be interrupted at any point, because they change no state.
INTERRUPTIBLE = ("data", "evaluation")
# Phases that are left at once, even inside C code, because there is no unsaved state.
BEFORE_STEPS = ("start", "compile", "restore")
# Seconds between two checks after which the process counts as suspended (Ctrl-Z). That time counts towards no limit.
PAUSED = 2.0
BACKSTOP = 1800.0  # seconds without activity of any Python thread, after which the C library ends the process


class Preempted(exits.Stop):
  """A request to save the state and exit, raised on every process at the same poll.

  Args:
    code: exit code of the process.
    message: reason for the stop.
  """


def get_current_handlers(numbers: Iterable[int]) -> dict[int, Any]:
  """Returns the current handlers of the signals that a program must handle.

  A signal in `OPTIONAL` is omitted if it is ignored.

  Args:
    numbers: numbers of the signals.

  Returns:
    {number: handler}. A handler that C code installed is None.
  """
  handlers = {number: signal.getsignal(number) for number in numbers}
  return {n: handler for n, handler in handlers.items() if n not in OPTIONAL or handler != signal.SIG_IGN}


@contextlib.contextmanager
def convert_stop_signals() -> Iterator[None]:
  """Turns requests to stop into exceptions, for a program that has no steps to save.

  Inside the context, SIGTERM, SIGHUP and SIGQUIT raise an exception at the current position of the main thread. The
  program can therefore close its resources. Ctrl-C raises Python's KeyboardInterrupt as usual. In other threads the
  context has no effect.

  Raises:
    Stop: a signal was received. The exit code is EXIT_PREEMPTED.

  Example:
    from vit_jax import runtime

    with runtime.convert_stop_signals(), open("/tmp/rows.csv", "w") as file:
      print("image,label", file=file)
  """
  if threading.current_thread() is not threading.main_thread():
    yield
    return
  requests: dict[int, tuple[int, str]] = {number: STOPS[number] for number in (signal.SIGTERM, signal.SIGHUP)}
  requests[signal.SIGQUIT] = exits.EXIT_PREEMPTED, "stopped on request (SIGQUIT)"

  def stop(number: int, _: FrameType | None) -> None:
    code, message = requests[number]
    raise exits.Stop(code, f"{message}; the same command starts or continues it")

  before = get_current_handlers(requests)
  for number in before:
    signal.signal(number, stop)
  try:
    yield
  finally:
    for number, handler in before.items():
      signal.signal(number, handler or signal.SIG_DFL)


class Watch:
  """A context that ends the program with an exit code and a message if a limit is exceeded.

  Inside the context, SIGTERM, SIGHUP and Ctrl-C on any process request a stop. A second Ctrl-C ends the program at
  once. All processes must call `poll` at the same points: between steps, and between batches of an evaluation.

  Args:
    limits: the limits in seconds. The default is `config.Limits()`.
    again: description of what the same command does after a stop, for a program without checkpoints. Such a program is
      stopped without waiting for a save. By default the program continues from its last checkpoint.

  Attributes:
    step: the last completed step, set by the loop. It is reported together with the phase, see `ProgressFile`.
  """

  def __init__(self, limits: config.Limits | None = None, again: str | None = None) -> None:
    self.limits = limits or config.Limits()
    self._saves = again is None
    self._again = f"the same command {'continues from the last checkpoint, if there is one' if self._saves else again}"
    self._later = "the same command continues" if self._saves else self._again
    self.step = -1
    self._phase, self._since = "start", time.monotonic()
    self._detail: Callable[[], str] = str
    self._durations = collections.defaultdict(lambda: collections.deque(maxlen=100))  # seconds between polls, by phase
    self._polled: tuple[str | None, float] = (None, 0.0)  # phase and time of the last poll
    self._polls = 0
    self._request: tuple[int, str] | None = None  # (code, message) of a stop
    self._requested_at: float | None = None  # time of the request
    self._stopping = False
    self._reported = False
    self._interrupts = 0
    self._closed = threading.Event()
    self._parent = os.environ.get(PARENT)
    self._peers = None if exchange.is_alone() else Peers(self.limits.peer)

  def __enter__(self) -> Self:
    self._pipe = os.pipe()
    for end in self._pipe:
      os.set_blocking(end, False)
    self._in_main = threading.current_thread() is threading.main_thread()
    if self._in_main:
      # C code writes the byte to the pipe at once, while the Python handler waits for the main thread.
      self._pipe_before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
      self._before = get_current_handlers(STOPS)
      for number in self._before:
        signal.signal(number, self._on_signal)
      if hasattr(signal, "SIGUSR2"):
        faulthandler.register(signal.SIGUSR2, file=2)
    # If the thread cannot run, this timer prints the stacks and ends the program with code 1. The thread restarts it.
    faulthandler.dump_traceback_later(self.limits.start, exit=True, file=2)
    self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
    try:
      self._thread.start()
    except RuntimeError:  # without the watchdog the program must not run
      self._release()
      raise
    return self

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
    self.report(kind, error, _)
    self._close()

  def report(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
    """Reports an error that ends this process to the other processes.

    Register this method as an exit callback, so that it runs before any resource is closed.

    Args:
      kind: type of the error, as for `__exit__`.
      error: the error, or None.
      _: traceback, not used.
    """
    if error is None or not self._peers or self._reported:
      return
    self._reported = True
    code, message = exits.describe_exit(error, alone=False)
    if code == exits.EXIT_PEER:
      known = self._peers.wait_for_exit_reason(ACT)
      if not known and (quiet := self._peers.find_quiet()):  # a process that was killed reports no reason
        code, message = exits.describe_exit(error, alone=False, gone=f"process {', '.join(map(str, quiet))}")
      self.leave(*(known or (code, message)))
    if code == exits.EXIT_BUG:
      exits.print_last_message("".join(traceback.format_exception(error)))
      self.leave(code, f"this is a bug; {self._again}")
    self._peers.end(code, message)
    # Closing may have to wait for the other processes, which are ending too.
    self._stopping, self._requested_at, self._request = True, time.monotonic(), (code, message)

  def _close(self) -> None:
    self._closed.set()
    os.write(self._pipe[1], b".")
    self._thread.join()
    self._release()

  def _release(self) -> None:
    """Restores the signal handlers and closes all resources except the thread."""
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
    """Applies the limit of a phase to the body of the context.

    Args:
      name: a field of `config.Limits`, or "data", which has the limit of a step.
      detail: function that describes the operation for which the phase waits.
    """
    before = self._phase, self._detail
    self._enter(name, detail)
    try:
      yield
    finally:
      self._enter(*before)

  def _enter(self, name: str, detail: Callable[[], str]) -> None:
    self._phase, self._detail, self._since = name, detail, time.monotonic()

  def poll(self) -> None:
    """Raises an error if the run must stop. All processes raise it at the same call.

    Raises:
      Preempted: the run must save its state and exit.
    """
    now, (phase, before) = time.monotonic(), self._polled
    if phase == self._phase:
      self._durations[phase].append(now - before)
    self._polled, self._since = (self._phase, now), now
    self._polls += 1
    request = self._peers.find_request(self._polls) if self._peers else self._request
    if request and not self._stopping:
      self._stopping = True
      raise self._create_preempted(*request)

  def ask(self, code: int, message: str) -> None:
    """Requests that all processes stop at one of the next polls.

    Args:
      code: exit code of the processes.
      message: reason for the stop.
    """
    if self._request is None:
      self._request, self._requested_at = (code, message), time.monotonic()
      if self._peers:
        self._peers.ask(code, message)

  def _on_signal(self, number: int, _: FrameType | None) -> None:
    """Handles a signal in a run of one process. Otherwise the watchdog's thread informs the others."""
    if self._peers:
      return
    self.ask(*STOPS[number])
    if self._phase in INTERRUPTIBLE and not self._stopping:
      self._stopping = True
      assert self._request is not None
      raise self._create_preempted(*self._request)

  def _create_preempted(self, code: int, message: str) -> Preempted:
    return Preempted(code, message if self._saves else f"{message}; {self._again}")

  # Methods below run on the watchdog's thread.

  def _run(self) -> None:
    armed, last, progress = -BACKSTOP, time.monotonic(), ProgressFile()
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
        self._check_peers(self._peers, now)
      self._check_stop(now)
      self._check_limit(now)

  def _check_peers(self, peers: Peers, now: float) -> None:
    if self._requested_at is None and peers.stop_request:
      self._requested_at = now
    if end := peers.find_exit_reason():
      self.leave(*end)

  def _check_stop(self, now: float) -> None:
    """Ends a program that cannot react to a request to stop."""
    request = self._request or (self._peers.stop_request if self._peers else None)
    if self._requested_at is None or request is None:
      return
    waited, (code, message) = now - self._requested_at, request
    if self._interrupts > 1:
      self.leave(code, f"{message} twice; {self._again}")
    if self._stopping:
      if waited > self.limits.stop:
        self.leave(code, f"{message}; saving did not finish within {waited:.0f} s (config.limits.stop) "
                          f"and was abandoned: the same command continues from the previous checkpoint")  # fmt: skip
    elif self._phase in BEFORE_STEPS:
      doing = "compilation" if self._phase == "compile" else "the start"
      self.leave(code, f"{message} during {doing}; no work is lost, {self._later}")
    elif waited > self._patience():
      self.leave(code, f"{message} during {self._phase}, which did not end; {self._again}")

  def _patience(self) -> float:
    """Returns the seconds that a phase may take to react to a request to stop, before a save."""
    if self._phase == "save":
      return self.limits.stop
    return max(ACT - 1, 2 * self.compute_pace(self._phase)) if self._saves else ACT - 1

  def _check_limit(self, now: float) -> None:
    key = {"data": "step"}.get(self._phase, self._phase)
    limit = getattr(self.limits, key)
    if key == "step":
      limit = max(limit, 10 * self.compute_pace("step"))
    if now - self._since <= limit:
      return
    exits.print_last_message(_format_stacks())
    whom = [
      self._detail(),
      exchange.describe_missing(),
      self._peers.describe_behind(self._polls) if self._peers else "",
    ]
    details = "".join(f"; {text}" for text in whom if text)
    later = self._later
    if self._peers and self._phase in ("step", "data", "evaluation"):
      later += ". If the run stops here again, one process may be stuck or may read different data"
    what = f"no progress for {round(limit, 1):g} s in {self._phase} (config.limits.{key})"
    self.leave(exits.EXIT_HANG, f"{what}{details}; "
                                f"the stacks of all threads are above; {later}")  # fmt: skip

  def compute_pace(self, phase: str) -> float:
    """Returns the median of the seconds between polls in a phase, or 0 before the first poll."""
    return statistics.median(tuple(self._durations[{"data": "step"}.get(phase, phase)]) or (0.0,))

  def leave(self, code: int, message: str) -> None:
    """Ends the program immediately, from any thread, in any state of the main thread.

    Args:
      code: exit code of this process.
      message: reason for the end. It is printed and sent to the other processes.
    """
    try:
      where = f"process {exchange.process_index()}: " if self._peers else ""
      exits.print_last_message(f"{where}{message}\n")
      if self._peers:
        self._peers.end(code, message)
        self._peers.linger()
    finally:
      os._exit(code)


def _format_stacks() -> str:
  """Returns the stacks of all threads. faulthandler would block every thread if its output is not read."""
  names = {thread.ident: thread.name for thread in threading.enumerate()}
  frames = sys._current_frames().items()
  stacks = (f"thread {names.get(i, i)}, last call below:\n{''.join(traceback.format_stack(f))}" for i, f in frames)
  return "\n".join(stacks) + "\n"

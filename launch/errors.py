"""Exit codes and errors of `launch`, its assumptions about each external answer, and the lines that it prints.

Every call that leaves this process goes through `convert_unexpected`. An unexpected outcome becomes UnknownError. No
conclusion is drawn from such an error, and messages still name the machines that may be billed. The table of
docs/concepts/launcher.md is printed by `python -m launch.errors`.
"""

import concurrent.futures
import contextlib
import dataclasses
import functools
import http.client
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TextIO, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

# The command of this package: in a clone, and of an installed package, which has another name.
COMMAND = "python -m launch" if __package__ == "launch" else "vit-launch"
# The command that installs an extra of vit_jax, in the same two cases.
INSTALL = "pip install -e '.[{}]'" if __package__ == "launch" else "pip install 'vit-jax-framework[{}]'"
_WRITTEN = re.compile(r"\bpython -m launch(?![\w.])")  # the command in messages

DONE = 0
BUG = 1
USAGE = 2
UNKNOWN = 3  # `ls` and `gc`: a zone did not answer
NO_CAPACITY = 10
DENIED = 11
GAVE_UP = 12
BILLING = 13
DETACHED = 42
INTERRUPTED = 130

# The meaning of each code, and the remedy. The page reference/exit-codes.md of the documentation shows them, and those
# of the program.
EXITS = {
  DONE: ("the run is complete, and its machines are deleted", "nothing"),
  USAGE: ("a mistake in the command or in the config of the run", "follow the message"),
  UNKNOWN: ("`ls`, `gc`: a zone or cluster did not answer", "follow the message, or try again"),
  NO_CAPACITY: ("no capacity within --queue-timeout; no machine is billed",
    "use other --zones, another --tpu, or try later"),
  DENIED: ("quota, permissions or credentials are missing", "follow the message; `python -m launch gc` frees quota"),
  GAVE_UP: ("three attempts without a new checkpoint, or --max-hours or --max-cost is used up",
    "read the log above; the same command tries again"),
  BILLING: ("machines may still be billed, because their deletion was not confirmed",
    "run the command that is printed"),
  DETACHED: ("no longer watched after Ctrl-C, or stopped by `python -m launch stop`: the machines continue to cost",
    "`python -m launch adopt NAME`, `restart` or `down`"),
  INTERRUPTED: ("Ctrl-C before anything was created, or during `down` or `gc`", "the same command"),
}  # fmt: skip


class LaunchError(Exception):
  """An error that ends `launch` with a message (problem and fix) and an exit code."""

  def __init__(self, message: str, code: int = USAGE) -> None:
    super().__init__(message)
    self.code = code


class QuotaError(LaunchError):
  """A quota is used up, possibly by machines that are being deleted."""

  def __init__(self, message: str) -> None:
    super().__init__(message, DENIED)


class UnknownError(Exception):
  """The cloud, a bucket or a host gave no usable answer, so the last known state remains valid."""


def retry_request(ask: Callable[[], T], seconds: float, pause: Callable[[UnknownError], None]) -> T:
  """Returns the result of `ask()`. Calls it again while it raises an UnknownError.

  Args:
    ask: the function.
    seconds: time after which the last UnknownError is raised.
    pause: called with each UnknownError before the next try.
  """
  deadline = time.monotonic() + seconds
  while True:
    try:
      return ask()
    except UnknownError as error:
      if time.monotonic() > deadline:
        raise
      pause(error)


class PrintableStream:
  """A stream, such as standard output, to which only printable text is written."""

  def __init__(self, stream: TextIO) -> None:
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes text, in which words of clouds, programs, event logs and reports may contain control characters.

    Messages contain the command of a clone. It is replaced by the command of this package.
    """
    self._stream.write(replace_unprintable(_WRITTEN.sub(COMMAND, text)))
    return len(text)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._stream, name)


def replace_unprintable(text: str) -> str:
  """Replaces characters that move a cursor, change colours or have no encoding by "�"."""
  return text if text.isprintable() else "".join(c if c.isprintable() or c in "\t\n" else "�" for c in text)


def join_lines(text: object) -> str:
  """Returns a text without line breaks, with which a text of others could imitate further lines."""
  return " ".join(str(text).split())


def format_amount(number: int, noun: str, plural: str = "") -> str:
  """Returns a number with its noun, as `format_amount` of vit_jax.schema does, which `launch` cannot import."""
  return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def print_line(text: str) -> None:
  """Prints a line with the time at once."""
  try:
    print(f"{format_utc(time.time())} {text}", flush=True)
  except (OSError, ValueError):  # a closed terminal, or an unknown letter, must not end a run
    with contextlib.suppress(OSError):
      sys.stdout = open(os.devnull, "w")


def catch_interruptions() -> None:
  """Makes SIGTERM and SIGHUP end this process like Ctrl-C, with a line about the machines that continue."""
  for number in (signal.SIGTERM, signal.SIGHUP):
    # nohup ignores SIGHUP. SIGTERM is a request also if the caller ignored it, as some containers do.
    if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
      signal.signal(number, signal.default_int_handler)


def ignore_interruptions() -> None:
  """Ignores further interruptions, so that this process can print its last lines."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    with contextlib.suppress(ValueError):  # not in the main thread
      signal.signal(number, signal.SIG_IGN)


def format_utc(seconds: float) -> str:
  """Formats a time in seconds since the epoch."""
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


# Assumptions about external answers.

CALL = 180.0  # seconds that a call of gcloud, or a command on a host, may take
CLUSTER_CALL = 60.0  # the same of kubectl
IN_FLIGHT = 240.0  # seconds for which a request without an answer may still take effect
AT_HOME = 15.0  # the same on this machine
SKEW = 60.0  # seconds by which this machine's clock may differ from the service's without a message
LOOKS = 2  # consecutive answers that an existing machine is absent, before the answer is believed
SIGNS = 3.0  # times limits.beat: the age up to which a worker's report proves that its machine lives

# Exceptions that an answer of an unexpected form can cause, or a system without memory, files or processes.
UNEXPECTED = (
  OSError,
  ValueError,
  TypeError,
  LookupError,
  AttributeError,
  ArithmeticError,
  RuntimeError,
  MemoryError,
  EOFError,
  zlib.error,
  subprocess.SubprocessError,
  http.client.HTTPException,
)


@dataclasses.dataclass(frozen=True)
class Assumption:
  """The meaning of one answer.

  Args:
    source: the command or file.
    answer: its content.
    meaning: the conclusion.
    age: the allowed age of the answer.
    fallback: the reaction if the answer is missing, malformed, late or about another object.
  """

  source: str
  answer: str
  meaning: str
  age: str
  fallback: str


TABLE = (
  Assumption(
    "gcloud create, kubectl create", "exit code 0", "accepted; a repeated request finds the resource", "new",
    "The intent stays open. `look` searches for the name.",
  ),
  Assumption(
    "gcloud create, kubectl create", "ALREADY_EXISTS", "an earlier request was accepted, if the labels are ours", "new",
    "With other labels: an error, the name is taken.",
  ),
  Assumption(
    "gcloud create", "quota exceeded", "no resource was created", "new",
    "After an earlier attempt, the watcher waits. Otherwise the run ends.",
  ),
  Assumption(
    "gcloud describe", "an object with the requested name", "the state of the machines", "one poll",
    "Unknown. The last state holds.",
  ),
  Assumption(
    "gcloud describe", "NOT_FOUND with the name of the resource", "absent, if a list of the zone confirms it",
    "`limits.appear` after an answered create", "Unknown. The last state holds.",
  ),
  Assumption(
    "gcloud list", "a list of objects with names", "all machines of the zone", "one poll",
    "The zone is UNKNOWN, never empty.",
  ),
  Assumption(
    "gcloud describe", "health of a node", "advice only", "one poll", "Recent reports of all workers outweigh it.",
  ),
  Assumption(
    "gcloud delete, kubectl delete", "exit code 0", "a deletion was requested", "new",
    "It is requested again, until the resource is absent.",
  ),
  Assumption(
    "kubectl get", "an object or list of the requested type", "the state of the JobSet and its pods", "one poll",
    "Unknown. The last state holds.",
  ),
  Assumption(
    "kubectl get", "(NotFound) with the name of the JobSet", "absent, if a list by label confirms it",
    "`limits.appear` after an answered create", "Unknown. The last state holds.",
  ),
  Assumption(
    "ssh HOST look", "a JSON list after the marker line", "the workers of the host", "one poll",
    "Unknown. The last state holds.",
  ),
  Assumption(
    "run directory: event log", "lines of events", "state of the run; never a command for a laptop", "one poll",
    "ELSEWHERE. Removal requires `--force`.",
  ),
  Assumption(
    "run directory: lease", "a holder and its age", "one watcher at a time", "6 polls",
    "No action until it is answered.",
  ),
  Assumption(
    "run directory: reports", "one JSON object per worker", "the worker is alive and made progress", "`limits.silence`",
    "Treated as a worker without a report.",
  ),
  Assumption(
    "run directory: Date header", "the service's time", "all deadlines", "continued by the monotonic clock",
    "The last known service time.",
  ),
  Assumption(
    "clock of this machine", "seconds since the epoch", "display only", "not used for decisions",
    "A difference of over a minute is reported.",
  ),
  Assumption(
    "local event log", "lines of events", "backend, project, hosts, code and module of the run", "always current",
    "Only this run is affected.",
  ),
  Assumption(
    "subprocesses", "an exit code and UTF-8 text", "see the command", "60 to 180 s", "Killed, then unknown.",
  ),
)  # fmt: skip


@contextlib.contextmanager
def convert_unexpected(place: str, protocol: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
  """Turns unexpected exceptions of a call into UnknownError.

  Args:
    place: the command, file or service, for the message.
    protocol: exceptions that are valid answers and are not changed.
  """
  expected: tuple[type[BaseException], ...] = (UnknownError, LaunchError, *protocol)
  try:
    yield
  except expected:
    raise
  except UNEXPECTED as error:
    text = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    raise UnknownError(f"{place}: unexpected answer ({' '.join(str(text).split())[:200]})") from error


def call(
  words: Sequence[str],
  timeout: float,
  install: str,
  content: bytes = b"",
  folder: str | None = None,
  missing: int = DENIED,
) -> tuple[int, bytes, str]:
  """Runs a program and returns (exit code, standard output, text of the standard error).

  The program has a process group of its own, which is killed as a whole if the call ends early. Ctrl-C in a terminal
  therefore does not reach the program.

  Args:
    words: the argument list.
    timeout: seconds.
    install: how to install the program, for the message.
    content: the standard input.
    folder: the working directory.
    missing: the exit code of `launch` if the program is not installed.

  Raises:
    UnknownError: the program did not answer in time, or cannot run now.
    LaunchError: the program is not installed.
  """
  try:
    process = subprocess.Popen(
      words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
  except OSError as error:
    if isinstance(error, FileNotFoundError) and os.path.isdir(folder or "/"):
      raise LaunchError(f"{words[0]} is not installed. {install}", missing) from None
    raise UnknownError(f"{words[0]} cannot be run: {error.strerror}") from None
  _running.add(process)
  try:
    output, complaint = process.communicate(content, timeout)
  except subprocess.TimeoutExpired:
    raise UnknownError(f"`{shlex.join(words[:6])}` did not answer within {timeout:g} s") from None
  finally:
    _running.discard(process)
    if process.poll() is None:
      _kill(process)
      process.wait()
      for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
          stream.close()
  return process.returncode, output, complaint.decode(errors="replace")


_running: set[subprocess.Popen[bytes]] = (
  set()
)  # processes of `call`, which `map_in_threads` kills after an interruption


def map_in_threads(function: Callable[[V], T], values: Sequence[V], most: int) -> list[T]:
  """Returns the results of a function for all values, in up to `most` threads. Raises the first error at the end.

  An interruption kills the programs that the calls wait for.
  """
  with concurrent.futures.ThreadPoolExecutor(max(1, min(most, len(values)))) as pool:
    answers = [pool.submit(function, value) for value in values]
    try:
      concurrent.futures.wait(answers)
    finally:  # after an interruption, calls still run
      pool.shutdown(wait=False, cancel_futures=True)
      if not all(answer.done() for answer in answers):
        for process in list(_running):
          _kill(process)
  return [answer.result() for answer in answers]


def _kill(process: subprocess.Popen[bytes]) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, signal.SIGKILL)


def parse_json(text: bytes, place: str) -> Any:
  """Returns a JSON value, or None for an empty text. Raises UnknownError for other text."""
  with convert_unexpected(f"JSON from {place}"):
    return json.loads(text) if text.strip() else None


class GuardedObject:
  """A wrapper of an object, such as an engine. Unexpected exceptions of its methods become UnknownError."""

  def __init__(self, inner: object, place: str) -> None:
    self._inner, self._place = inner, place

  def __getattr__(self, name: str) -> Any:
    value = getattr(self._inner, name)
    return guard_function(self._place)(value) if callable(value) else value


def guard_function(
  place: str, protocol: tuple[type[BaseException], ...] = ()
) -> Callable[[Callable[P, T]], Callable[P, T]]:
  """Returns a decorator with which unexpected exceptions of a function become UnknownError."""

  def decorate(function: Callable[P, T]) -> Callable[P, T]:
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
      with convert_unexpected(place, protocol):
        return function(*args, **kwargs)

    return call

  return decorate


def format_table() -> str:
  """Returns the table of the documentation."""
  heads = [field.name for field in dataclasses.fields(Assumption)]
  rows = [heads, ["---"] * len(heads), *([getattr(each, head) for head in heads] for each in TABLE)]
  return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


if __name__ == "__main__":
  print(format_table(), end="")

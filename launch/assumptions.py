"""The assumptions of the launcher about each external answer, and the treatment of unexpected answers.

Every call that leaves this process goes through `boundary`. An unexpected outcome becomes UnknownError: no conclusion
is drawn from it, and machines that may cost stay named. The table of docs/concepts/launcher.md is printed by
`python -m launch.assumptions`.
"""

import contextlib
import dataclasses
import functools
import http.client
import json
import os
import shlex
import signal
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence

from launch.errors import DENIED, LaunchError, UnknownError

CALL = 180.0  # seconds that a call of gcloud, or a command on a host, may take
CLUSTER_CALL = 60.0  # the same of kubectl
IN_FLIGHT = 240.0  # seconds for which a request without an answer may still take effect
AT_HOME = 15.0  # the same on this machine
SKEW = 60.0  # seconds by which this machine's clock may differ from the service's without a message
LOOKS = 2  # answers in turn that a machine is absent, after which it is believed of one that was there
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
    asked: the command or file.
    answer: what comes back.
    meaning: what is concluded from it.
    stale: how old the answer may be.
    otherwise: what is done if it is missing, malformed, late or about something else.
  """

  asked: str
  answer: str
  meaning: str
  stale: str
  otherwise: str


TABLE = (
  Assumption(
    "gcloud create, kubectl create", "exit code 0", "accepted; a duplicate arrives while it exists", "not at all",
    "intent stays open; looked for by name",
  ),
  Assumption(
    "gcloud create, kubectl create", "ALREADY_EXISTS", "an earlier request arrived, if the labels are ours",
    "not at all", "error: name taken",
  ),
  Assumption(
    "gcloud create", "quota exceeded", "nothing was made", "not at all",
    "after an earlier attempt: waited for; else the end",
  ),
  Assumption(
    "gcloud describe", "an object with the name asked for", "the state of the machine", "one poll",
    "unknown; the last state holds",
  ),
  Assumption(
    "gcloud describe", "NOT_FOUND that names the resource", "absent, if a list of the zone confirms it",
    "limits.appear after an answered create", "unknown; the last state holds",
  ),
  Assumption(
    "gcloud list", "a list of objects with names", "all machines of the zone", "one poll",
    "the zone is UNKNOWN, never empty",
  ),
  Assumption(
    "gcloud describe", "health of a node", "advice only", "one poll", "fresh reports of all workers outweigh it",
  ),
  Assumption(
    "gcloud delete, kubectl delete", "exit code 0", "a deletion was requested", "not at all",
    "asked again; gone only when seen absent",
  ),
  Assumption(
    "kubectl get", "an object or list of the kind asked for", "the state of the JobSet and its pods", "one poll",
    "unknown; the last state holds",
  ),
  Assumption(
    "kubectl get", "(NotFound) that names the JobSet", "absent, if a list by label confirms it",
    "limits.appear after an answered create", "unknown; the last state holds",
  ),
  Assumption(
    "ssh HOST look", "a JSON list after the marker line", "the workers of the host", "one poll",
    "unknown; the last state holds",
  ),
  Assumption(
    "run's directory: journal", "lines of events", "state of the run; never what a laptop executes", "one poll",
    "elsewhere: nothing is removed without --force",
  ),
  Assumption(
    "run's directory: lease", "a holder and its age", "one watcher at a time", "6 polls",
    "no action until it answers",
  ),
  Assumption(
    "run's directory: reports", "one JSON object per worker", "the worker lives and made progress", "limits.silence",
    "as if the worker had not reported",
  ),
  Assumption(
    "run's directory: Date header", "the service's time", "all deadlines", "extrapolated by the monotonic clock",
    "the last known service time",
  ),
  Assumption(
    "this machine's clock", "seconds since the epoch", "display only", "not used for decisions",
    "a skew of over a minute is reported",
  ),
  Assumption(
    "local journal", "lines of events", "backend, project, hosts, code and module of the run", "always current",
    "only this run is affected",
  ),
  Assumption(
    "subprocesses", "an exit code and UTF-8 text", "see the command", "60 to 180 s",
    "killed, then unknown",
  ),
)  # fmt: skip


@contextlib.contextmanager
def boundary(place: str, protocol: tuple = ()) -> Iterator[None]:
  """Raises UnknownError for an outcome that is not expected of `place`.

  Args:
    place: what was asked, for the message.
    protocol: exceptions that are answers, and pass.
  """
  try:
    yield
  except (UnknownError, LaunchError, *protocol):
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
    UnknownError: the program gave no answer in time, or cannot run now.
    LaunchError: the program is not installed.
  """
  streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
  try:
    process = subprocess.Popen(words, cwd=folder, start_new_session=True, **streams)
  except OSError as error:
    if isinstance(error, FileNotFoundError) and os.path.isdir(folder or "/"):
      raise LaunchError(f"{words[0]} is not installed. {install}", missing) from None
    raise UnknownError(f"{words[0]} cannot be run: {error.strerror}") from None
  try:
    output, complaint = process.communicate(content, timeout)
  except subprocess.TimeoutExpired:
    raise UnknownError(f"`{shlex.join(words[:6])}` did not answer within {timeout:g} s") from None
  finally:
    if process.poll() is None:
      os.killpg(process.pid, signal.SIGKILL)
      process.wait()
      for stream in (process.stdin, process.stdout, process.stderr):
        stream.close()
  return process.returncode, output, complaint.decode(errors="replace")


def parse_json(text: bytes, place: str) -> object:
  """Returns a JSON value; None for an empty text. Raises UnknownError for anything else."""
  with boundary(f"JSON from {place}"):
    return json.loads(text) if text.strip() else None


class Guarded:
  """Puts all methods of an object, such as an engine, behind the boundary."""

  def __init__(self, inner: object, place: str):
    self._inner, self._place = inner, place

  def __getattr__(self, name: str) -> object:
    value = getattr(self._inner, name)
    return guarded(self._place)(value) if callable(value) else value


def guarded(place: str, protocol: tuple = ()) -> Callable:
  """Returns a decorator that puts a function behind the boundary."""

  def decorate(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> object:
      with boundary(place, protocol):
        return function(*args, **kwargs)

    return call

  return decorate


def table() -> str:
  """Returns the table of the documentation."""
  heads = [field.name for field in dataclasses.fields(Assumption)]
  rows = [heads, ["---"] * len(heads), *([getattr(each, head) for head in heads] for each in TABLE)]
  return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


if __name__ == "__main__":
  print(table(), end="")

"""Exit codes, errors, and the lines that `launch` prints."""

import contextlib
import os
import signal
import sys
import time

DONE = 0
BUG = 1
USAGE = 2
UNKNOWN = 3  # `ls` and `gc`: a zone gave no answer
NO_CAPACITY = 10
DENIED = 11
GAVE_UP = 12
BILLING = 13
DETACHED = 42
INTERRUPTED = 130

# The meaning of each code, and what to do. docs/pods.md has the same table. Other codes are those of the program, which
# docs/runs.md lists.
EXITS = {
  DONE: ("the run is complete, and its machines are deleted", "nothing"),
  USAGE: ("a mistake in the command or in the config of the run", "follow the message"),
  UNKNOWN: ("`ls`, `gc`: a zone or cluster did not answer, and may not be empty", "follow the message, or try again"),
  NO_CAPACITY: ("no capacity within --queue-timeout; nothing costs", "use other --zones, another --tpu, or try later"),
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

  def __init__(self, message: str, code: int = USAGE):
    super().__init__(message)
    self.code = code


class QuotaError(LaunchError):
  """A quota is used up, possibly by machines that are being deleted."""

  def __init__(self, message: str):
    super().__init__(message, DENIED)


class UnknownError(Exception):
  """The cloud, a bucket or a host gave no usable answer, so that the last known state holds."""


class Screen:
  """A stream, such as standard output, to which only printable text is written."""

  def __init__(self, stream):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes text, in which words of clouds, programs, event logs and reports may contain control characters."""
    self._stream.write(printable(text))
    return len(text)

  def __getattr__(self, name):
    return getattr(self._stream, name)


def printable(text: str) -> str:
  """Returns the text with "�" for characters that move a cursor, change colours, or have no encoding."""
  return text if text.isprintable() else "".join(c if c.isprintable() or c in "\t\n" else "�" for c in text)


def amount(number: int, noun: str, plural: str = "") -> str:
  """Returns a number with its noun, as `amount` of vit_jax.schema does, which `launch` cannot import."""
  return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def say(text: str) -> None:
  """Prints a line with the time at once."""
  try:
    print(f"{utc(time.time())} {text}", flush=True)
  except (OSError, ValueError):  # a closed terminal, or an unknown letter, must not end a run
    with contextlib.suppress(OSError):
      sys.stdout = open(os.devnull, "w")


def catch_interruptions() -> None:
  """Makes SIGTERM and SIGHUP end this process as Ctrl-C does, with a line that names what continues."""
  for number in (signal.SIGTERM, signal.SIGHUP):
    # nohup ignores SIGHUP. SIGTERM is a request also if the caller ignored it, as some containers do.
    if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
      signal.signal(number, signal.default_int_handler)


def ignore_interruptions() -> None:
  """Lets this process finish its last lines."""
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    with contextlib.suppress(ValueError):  # not in the main thread
      signal.signal(number, signal.SIG_IGN)


def utc(seconds: float) -> str:
  """Formats a time in seconds since the epoch."""
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))

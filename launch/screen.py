"""What people see: lines with the time, and nothing that would command their terminal."""

import contextlib
import os
import signal
import sys
import time


class Screen:
  """A stream, as standard output, for text of which only what is printable gets there."""

  def __init__(self, stream):
    self._stream = stream

  def write(self, text: str) -> int:
    """Writes it; words of clouds, programs, journals and reports may hold anything."""
    self._stream.write(printable(text))
    return len(text)

  def __getattr__(self, name):
    return getattr(self._stream, name)


def printable(text: str) -> str:
  """The text with "�" in place of all that moves a cursor, changes colours, or has no encoding."""
  return text if text.isprintable() else "".join(c if c.isprintable() or c in "\t\n" else "�" for c in text)


def amount(number: int, noun: str, plural: str = "") -> str:
  """Returns a number with its noun, as `amount` of vit_jax.schema does, which `launch` cannot import."""
  return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def say(text: str) -> None:
  """A line with the time, at once."""
  try:
    print(f"{utc(time.time())} {text}", flush=True)
  except (OSError, ValueError):  # nobody reads any longer, or its encoding has no such letter: that ends no run
    with contextlib.suppress(OSError):
      sys.stdout = open(os.devnull, "w")


def catch_interruptions() -> None:
  """Makes SIGTERM and SIGHUP end this process as Ctrl-C does: with a line that names what goes on."""
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
  """A time, of seconds since the epoch."""
  return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))

"""Standard streams that a program can use, whatever the shell, the service manager or the locale made of them."""

import os
import sys

NAMES = ("stdin", "stdout", "stderr")


def repair() -> None:
  """Opens closed standard streams on the null device, and makes printing independent of the encoding.

  A file that the program opens would otherwise get the number of the closed stream, and what a C library prints would
  be written into that file. Characters outside the encoding (`PYTHONIOENCODING=latin-1`, names that are no Unicode)
  are printed as escapes such as \\xe9 instead of ending the program.
  """
  for number, name in enumerate(NAMES):
    if getattr(sys, name) is None:
      setattr(sys, name, open(_null(number), "w" if number else "r"))
  for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, "reconfigure"):  # not if a test or a notebook put another object there
      stream.reconfigure(errors="backslashreplace")


def _null(number: int) -> int:
  """A descriptor of the null device: `number` itself if it is free."""
  descriptor = os.open(os.devnull, os.O_RDWR)
  try:
    os.fstat(number)
  except OSError:
    os.dup2(descriptor, number)
    os.close(descriptor)
    return number
  return descriptor

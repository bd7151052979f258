"""Repair of standard streams that are not usable because of the shell, the service manager or the locale."""

import os
import sys

NAMES = ("stdin", "stdout", "stderr")


def repair_streams() -> None:
  """Opens closed standard streams on the null device, and makes printing independent of the encoding.

  Otherwise a file that the program opens would get the descriptor of the closed stream, and the output of C libraries
  would be written to that file. Characters outside the encoding (`PYTHONIOENCODING=latin-1`, file names that are not
  valid Unicode) are printed as escapes such as \\xe9 instead of raising an error.
  """
  for number, name in enumerate(NAMES):
    if getattr(sys, name) is None:
      setattr(sys, name, open(_open_null(number), "w" if number else "r"))
  for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, "reconfigure"):  # tests and notebooks replace the streams by objects without this method
      stream.reconfigure(errors="backslashreplace")


def _open_null(number: int) -> int:
  """Returns a descriptor of the null device, which is `number` if this descriptor is not in use."""
  descriptor = os.open(os.devnull, os.O_RDWR)
  try:
    os.fstat(number)
  except OSError:
    os.dup2(descriptor, number)
    os.close(descriptor)
    return number
  return descriptor

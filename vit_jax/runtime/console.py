"""Printed lines of a run: only the first of its processes prints."""

import errno
import os
import sys

from vit_jax.runtime.exchange import process_index
from vit_jax.schema.errors import make_printable


def print_note(text: str) -> None:
  """Prints a line with `print_line` unless the text is empty."""
  if text:
    print_line(text)


def print_line(text: str) -> None:
  """Prints a line without delay, on the first process only. Escapes replace characters that cannot be printed."""
  if process_index() == 0:
    try:
      print(make_printable(text, None), flush=True)
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EIO):
        raise
      # The reader has gone, for example behind `| head` or after the terminal was closed. Training must not end because
      # of it.
      sys.stdout = open(os.devnull, "w")

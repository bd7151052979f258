"""Tests of printed lines, also after the reader of the output has closed it."""

import errno
import os
import sys
import types

import pytest

from vit_jax import runtime


def test_closed_terminal_does_not_stop_a_run(monkeypatch):
  for number in (errno.EPIPE, errno.EIO):
    monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(write=lambda text, number=number: fail(number)))
    runtime.print_line("a line")
    runtime.print_line("another")
  monkeypatch.setattr(sys, "stdout", types.SimpleNamespace(write=lambda text: fail(errno.ENOSPC)))
  with pytest.raises(OSError, match="No space"):
    runtime.print_line("a line")


def fail(number):
  raise OSError(number, os.strerror(number))


def test_empty_note_is_not_printed(capsys):
  runtime.print_note("")
  runtime.print_note("a note")
  assert capsys.readouterr().out == "a note\n"

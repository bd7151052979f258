"""Tests of progress lines of long work: their text, their interval and their end."""

import threading
import time

import pytest

from vit_jax.planning import progress


def test_line_contains_the_activity_and_its_own_time():
  now = [100.0]
  lines = progress.Progress(lambda: now[0])
  lines.start("v3-32: building")
  now[0] += 7.9
  assert lines.line() == "v3-32: building, 0:07 elapsed"
  lines.start("v3-32: compiling")
  now[0] += 605.0
  assert lines.line() == "v3-32: compiling, 10:05 elapsed"


def test_lines_are_printed_to_stderr_until_the_work_ends(capsys):
  lines = progress.Progress(lambda: 0.0)
  printed = ""
  with lines.print_regularly(0.01):
    lines.start("compiling")
    deadline = time.monotonic() + 10
    while printed.count("compiling, 0:00 elapsed\n") < 3 and time.monotonic() < deadline:
      time.sleep(0.01)
      got = capsys.readouterr()
      assert got.out == ""
      printed += got.err
  assert printed.count("compiling, 0:00 elapsed\n") >= 3
  capsys.readouterr()
  time.sleep(0.05)
  assert capsys.readouterr().err == "" and "progress" not in [thread.name for thread in threading.enumerate()]


def test_short_work_prints_no_line_and_is_not_delayed(capsys):
  start_time = time.monotonic()
  with progress.Progress().print_regularly(15.0) as lines:
    lines.start("compiling")
  assert time.monotonic() - start_time < 5
  assert capsys.readouterr().err == ""


def test_error_of_the_work_ends_the_lines():
  with pytest.raises(ValueError, match="work"), progress.Progress().print_regularly(0.01):
    raise ValueError("work")
  assert "progress" not in [thread.name for thread in threading.enumerate()]

"""Tests of `repair_streams`: standard streams that are closed, or with an encoding that lacks some characters."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.heavy  # each test starts a program

SOURCE = pathlib.Path(__file__).parents[2] / "vit_jax/runtime/streams.py"
NAMES = "café, 日本, 🙂, \udce9"  # the last one is a byte of a file name that is not UTF-8
PROGRAM = f"""
exec(open({str(SOURCE)!r}).read())
repair_streams()
import os, sys
print({NAMES!a}, flush=True)
print({NAMES!a}, file=sys.stderr, flush=True)
first = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(1, b"by C")
assert first > 2 and sys.stdin.read() == "" and not sys.stdin.isatty() and not sys.stdout.isatty()
"""
ENVIRONMENTS = {
  "UTF-8": ({"PYTHONIOENCODING": "utf-8"}, "utf-8"),
  "Latin-1": ({"PYTHONIOENCODING": "latin-1"}, "latin-1"),
  "ASCII": ({"PYTHONIOENCODING": "ascii"}, "ascii"),
  "strict UTF-8": ({"PYTHONIOENCODING": "utf-8:strict"}, "utf-8"),
  "locale C": ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, "ascii"),
}


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_descriptor_of_a_closed_stream_is_not_reused_for_a_file(closed, tmp_path):
  command = f'exec "$0" "$@" {closed}'
  words = ["sh", "-c", command, sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
  done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL)
  assert done.returncode == 0, done.stderr
  assert (tmp_path / "file").read_bytes() == b""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_characters_missing_in_the_encoding_are_printed_as_escapes(name, tmp_path):
  changes, encoding = ENVIRONMENTS[name]
  words = [sys.executable, "-c", PROGRAM, str(tmp_path / "file")]
  done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, env=os.environ | changes)
  assert done.returncode == 0, done.stderr
  line = done.stdout.removesuffix(b"by C").decode(encoding).rstrip("\n")
  assert line == NAMES.encode(encoding, "backslashreplace").decode(encoding)
  assert done.stderr.decode(encoding).rstrip("\n") == line

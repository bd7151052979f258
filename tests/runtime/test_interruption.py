"""Tests that a program inside C code ends at once after a request to stop."""

import signal
import subprocess
import sys
import time

import pytest

from vit_jax import runtime

PROGRAM = """
import hashlib, pathlib, sys
from vit_jax import runtime
with runtime.end_on_stop_signals(lambda: pathlib.Path(sys.argv[1]).unlink()):
  print("ready", flush=True)
  hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)  # minutes in C code that calls no Python handler
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("number", "code", "message"),
  [
    (signal.SIGINT, 130, "interrupted (Ctrl-C); run the same command to start again\n"),
    (signal.SIGTERM, 42, "stopped on request (SIGTERM); run the same command to start again\n"),
  ],
  ids=["SIGINT", "SIGTERM"],
)
def test_signal_ends_c_code_with_one_line_and_its_exit_code(tmp_path, number, code, message):
  file = tmp_path / "temporary"
  file.touch()
  command = [sys.executable, "-c", PROGRAM, file]
  process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
  try:
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(number)
    start_time = time.monotonic()
    _, errors = process.communicate(timeout=30)
  finally:
    process.kill()
  assert (process.returncode, errors, file.exists()) == (code, message, False)
  assert time.monotonic() - start_time < 10


def test_handlers_are_restored_after_the_context():
  before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
  with runtime.end_on_stop_signals(lambda: None):
    assert signal.getsignal(signal.SIGTERM) != before[1]
  assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
  assert signal.set_wakeup_fd(-1) == -1

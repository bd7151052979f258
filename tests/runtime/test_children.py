"""Tests of vit_jax/runtime/children.py: child processes end with their parent process, or after their limit."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import runs
from vit_jax.runtime import children

PARENT = """
import subprocess, sys
from vit_jax.runtime import children
process = subprocess.Popen(children.tie_to_parent(["sleep", "100"]), stdout=subprocess.DEVNULL)
print(process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.heavy
def test_command_ends_after_its_limit():
  start_time = time.monotonic()
  assert subprocess.run(children.tie_to_parent(["sleep", "100"], limit=1), check=False).returncode == -signal.SIGALRM
  assert time.monotonic() - start_time < 30


@pytest.mark.heavy
def test_command_gets_its_arguments_and_cores():
  code = "import os, sys; print(sys.argv[1:], len(os.sched_getaffinity(0)))"
  core = min(os.sched_getaffinity(0))
  command = children.tie_to_parent([sys.executable, "-c", code, "a b", "--c"], [core], limit=100)
  assert subprocess.check_output(command, text=True) == "['a b', '--c'] 1\n"


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_command_ends_with_a_killed_parent():
  parent = subprocess.Popen(
    [sys.executable, "-c", PARENT], cwd=runs.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
  )
  with parent:
    number = int(parent.stdout.readline())
    parent.kill()
  deadline = time.monotonic() + 30
  while os.path.exists(f"/proc/{number}") and "Z (zombie)" not in open(f"/proc/{number}/status").read():
    assert time.monotonic() < deadline
    time.sleep(0.05)

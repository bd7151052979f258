"""Tests that low limits of files, address space or threads give one line and exit code 2 before any import."""

import os
import resource
import subprocess
import sys
import threading

import pytest

from tests import runs
from vit_jax import resources


def run_with_limit(number, value, *words):
  """Starts Python with a lower limit of the operating system."""
  return subprocess.run(
    [sys.executable, *words],
    cwd=runs.ROOT,
    preexec_fn=lambda: resource.setrlimit(number, (value, value)),
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.mark.heavy  # starts a process
@pytest.mark.parametrize(
  ("number", "value", "message"),
  [
    (resource.RLIMIT_AS, 2**30, "this process may use 1.0 GiB of address space; at least "),
    (resource.RLIMIT_AS, 3 * 2**30, "this process may use 3.0 GiB of address space; at least "),
    (
      resource.RLIMIT_NOFILE,
      40,
      "the limit of open files is 40; at least 64 are needed. Raise the limit (ulimit -n)",
    ),
  ],
)
@pytest.mark.parametrize("verb", ["train", "predict"])
def test_start_with_a_low_limit_is_an_error_of_one_line(verb, number, value, message):
  ended = run_with_limit(number, value, "-m", f"vit_jax.{verb}", "--help")
  assert (ended.returncode, ended.stdout) == (2, "")
  assert ended.stderr.startswith(f"error: {message}") and len(ended.stderr.splitlines()) == 1


FEW = """
import os, resource
from vit_jax import resources
resource.setrlimit(resource.RLIMIT_NPROC, (30, 30))
os.setuid(54321)
resources.check_limits()
"""


@pytest.mark.long  # starts a process
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another account, which only root may")
def test_low_limit_of_processes_is_an_error_of_one_line():
  ended = subprocess.run([sys.executable, "-c", FEW], cwd=runs.ROOT, capture_output=True, text=True, timeout=60)
  assert ended.returncode == 2
  assert ended.stderr.startswith("error: only 29 of 112 required threads") and len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("possible", [1, 5])
def test_started_threads_end_if_the_check_fails(monkeypatch, possible):
  before, start = threading.active_count(), threading.Thread.start

  def refuse(thread):
    if threading.active_count() >= before + possible:
      raise RuntimeError("can't start new thread")
    start(thread)

  monkeypatch.setattr(threading.Thread, "start", refuse)
  monkeypatch.setattr("os.cpu_count", lambda: 2)
  assert resources.find_problem() == (
    f"only {possible} of 112 required threads can be started. Raise the limit of processes (ulimit -u, or "
    "pids.max of the container), or end other processes of this account"
  )
  assert threading.active_count() == before


@pytest.mark.heavy  # starts a process
def test_sufficient_limits_pass_and_the_file_limit_is_raised():
  code = "import resource; from vit_jax import resources; print(resources.find_problem(), resource.getrlimit(7))"
  code = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (32, 1000)); {code}".replace(
    "getrlimit(7)", "getrlimit(resource.RLIMIT_NOFILE)"
  )
  ended = subprocess.run([sys.executable, "-c", code], cwd=runs.ROOT, capture_output=True, text=True, timeout=60)
  assert ended.stdout == "None (1000, 1000)\n", ended.stderr

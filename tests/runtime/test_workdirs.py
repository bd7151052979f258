"""Tests of the lock on a workdir."""

import os
import subprocess
import sys

import pytest

from vit_jax import runtime
from vit_jax.schema import ConfigError


@pytest.mark.heavy
def test_workdir_is_locked_for_other_processes_until_a_kill(tmp_path):
  program = (
    "import sys, time, pathlib, jax\njax.config.update('jax_platforms', 'cpu')\nfrom vit_jax import cli, runtime\n"
    "def verb():\n  with runtime.claim_workdir(pathlib.Path(sys.argv[1])):\n"
    "    print('mine', flush=True)\n    time.sleep(60)\n"
    "cli.run_verb(verb)"
  )
  start = [sys.executable, "-c", program, str(tmp_path / "new")]
  first = subprocess.Popen(start, stdout=subprocess.PIPE, text=True)
  assert first.stdout.readline() == "mine\n"
  second = subprocess.run(start, capture_output=True, text=True, timeout=60)
  assert second.returncode == 2
  assert f"in use by process {first.pid} on" in second.stderr
  first.kill()
  first.wait()
  with runtime.claim_workdir(tmp_path / "new"):
    assert (tmp_path / "new/lock").read_text().startswith(f"{os.getpid()} on")


def test_lock_that_is_not_a_regular_file_is_named(tmp_path):
  os.mkfifo(tmp_path / "lock")
  with pytest.raises(ConfigError, match=r"lock is not a regular file. Remove it"), runtime.claim_workdir(tmp_path):
    pass


def test_uncreatable_workdir_is_reported_and_leaves_no_files(tmp_path):
  (tmp_path / "file").write_text("")
  assert runtime.check_creatable(tmp_path / "a" / "b") is runtime.check_creatable(tmp_path) is None
  problem = runtime.check_creatable(tmp_path / "file" / "run")
  assert problem.startswith(f"--workdir: {tmp_path}/file/run cannot be made in {tmp_path}/file: Not a directory. ")
  assert [path.name for path in tmp_path.iterdir()] == ["file"]

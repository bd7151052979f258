"""Test of the first command of the page on pods, with a smaller model in a clone of the repository."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from tests import runs
from tests.launch import repositories
from vit_jax.corpora.builders import prepare_dataset

pytestmark = pytest.mark.heavy
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def clone(tmp_path):
  """A repository with the code and the recipes."""
  for name in ("launch", "vit_jax", "configs"):
    shutil.copytree(ROOT / name, tmp_path / "clone" / name, ignore=shutil.ignore_patterns("__pycache__"))
  shutil.copy(ROOT / "setup.py", tmp_path / "clone")
  return repositories.made(tmp_path / "clone", {".gitignore": "__pycache__/\nruns/\n"})


def run_command(words, clone, **variables):
  """Runs a command in the clone, as a user does."""
  flags = re.sub(r"device_count=\d+", "device_count=1", os.environ["XLA_FLAGS"])
  environment = os.environ | {"XLA_FLAGS": flags, "XDG_STATE_HOME": str(clone.parent / "state")} | variables
  environment.pop("PYTHONPATH", None)
  return subprocess.run(
    [sys.executable, *words], cwd=clone, env=environment, capture_output=True, text=True, timeout=900
  )


@pytest.mark.long
def test_first_command_of_the_page_trains_in_a_relative_workdir(clone):
  prepare_dataset("digits")
  page = (ROOT / "docs/guides/tpu-vms.md").read_text().replace("\\\n", " ")
  (command,) = re.findall(r"^python (-m launch run try .*)$", page, re.MULTILINE)
  words = shlex.split(command)
  assert words[-1] == "--workdir=runs/try"
  # Shorter pauses between two looks of the launcher. The default pauses would take most of the time.
  words[words.index("--") : words.index("--")] = ["--limit=poll=1s", "--limit=beat=1s"]
  words += [f"--config.{key}={text}" for key, text in (runs.SMALL | {"total": "2", "evals.test.every": "2"}).items()]
  done = run_command(words, clone)
  assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
  assert "Traceback" not in done.stdout + done.stderr
  assert json.loads((clone / "runs/try/result.json").read_text())["steps"] == 2
  assert (clone / "runs/try/launch/journal.jsonl").exists()
  printed = run_command(["-m", "launch", "ls"], clone)
  assert printed.returncode == 0 and "try-a1" not in printed.stdout, printed.stdout + printed.stderr

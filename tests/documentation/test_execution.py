"""Documented commands and Python code are executed at reduced size, in one folder, with runs of two steps."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys

import pytest

from examples import photographs
from tests.documentation import extraction, reductions, snippets, test_metrics
from tests.documentation.test_commands import TABLE
from vit_jax import config

pytestmark = [pytest.mark.long, pytest.mark.sample(math.inf)]  # one process executes all commands
DONE = "exit "  # the line that `tests.several` prints after each command


@pytest.fixture(scope="module")
def home(tmp_path_factory):
  """A folder with photographs and the files of this repository that commands name by relative paths."""
  folder = tmp_path_factory.mktemp("documentation")
  for name in ("configs", "examples"):
    (folder / name).symlink_to(extraction.ROOT / name)
  photographs.main(str(folder / "photos"))
  pictures = sorted((folder / "photos/train").rglob("*.jpg"))
  for name, picture in zip(("photo.jpg", "a.jpg", "b.jpg"), pictures, strict=False):
    (folder / name).write_bytes(picture.read_bytes())
  (folder / "unlabelled/some").mkdir(parents=True)
  for picture in pictures[:12]:
    (folder / "unlabelled/some" / f"{picture.parent.name}{picture.name}").write_bytes(picture.read_bytes())
  (folder / "one_trial.py").write_text(reductions.ONE_TRIAL)
  return folder


def environment():
  """The environment of a shell in which `python` is this one."""
  flags = re.sub(r"device_count=\d+", "device_count=1", os.environ["XLA_FLAGS"])
  path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
  return os.environ | {"XLA_FLAGS": flags, "PATH": path, "PYTHONPATH": str(extraction.ROOT)}


@pytest.fixture(scope="module")
def executed(home):
  """{documented command: (what it printed, exit code)} of all reductions, which one process executes in turn."""
  commands = [each.arguments() for each in reductions.REDUCTIONS]
  process = subprocess.run(
    [sys.executable, "-m", "tests.several", json.dumps(commands)],
    cwd=home, env=environment(), capture_output=True, text=True, timeout=600,
  )  # fmt: skip
  *parts, rest = re.split(rf"^{DONE}(\d+)\n", process.stdout, flags=re.M)
  printed, codes = parts[::2], [int(code) for code in parts[1::2]]
  assert len(codes) == len(commands), f"{commands[len(codes)]}:\n{rest[-3000:]}{process.stderr[-3000:]}"
  pairs = zip(printed, codes, strict=True)
  return dict(zip([each.documented for each in reductions.REDUCTIONS], pairs, strict=True))


@pytest.mark.parametrize("reduction", reductions.REDUCTIONS, ids=lambda each: each.documented[17:60])
def test_a_documented_command_works(reduction, executed, home):
  printed, code = executed[reduction.documented]
  assert code == 0, printed[-3000:]
  assert "Traceback" not in printed
  assert [name for name in reduction.writes if not (home / name).exists()] == []


@pytest.mark.parametrize(("command", "word"), reductions.SHELL.items())
def test_a_documented_line_of_the_shell_works(command, word, executed, home):
  process = subprocess.run(["bash", "-c", command], cwd=home, env=environment(), capture_output=True, text=True)
  assert process.returncode == 0 and word in process.stdout, process.stdout + process.stderr


def test_documented_python_works(executed, home, monkeypatch):
  """The code of a page shares its names, as a reader would continue it."""
  monkeypatch.chdir(home)
  names, before = {}, None
  for snippet in snippets.snippets():
    if snippets.excerpt(snippet) is None:
      names = names if snippet.page == before else {"__name__": "snippet"}
      before = snippet.page
      exec(compile(snippet.code, snippet.page, "exec"), names)
      if "get_config" in names:
        config.resolve(names.pop("get_config")())
      if "sweep" in names:
        trials = names.pop("sweep")()
        assert len(trials if isinstance(trials, list) else trials.final) == 3


def test_every_metric_of_the_runs_is_defined(executed, home):
  for run in ("runs/digits", "runs/b"):
    lines = [json.loads(line) for line in (home / run / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((home / run / "result.json").read_text())
    names = {name for line in lines for name in line if name != "step"} | result.keys() | result["goodput"].keys()
    assert len(names) > 40 and test_metrics.undefined(sorted(names)) == [], run


def test_every_executed_command_is_documented():
  documented = [each.documented for each in reductions.REDUCTIONS]
  assert [command for command in documented if TABLE.get(command) != "resolve"] == []
  assert {command for command, way in TABLE.items() if way == "run"} == reductions.SHELL.keys()

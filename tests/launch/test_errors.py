"""Tests of the exit codes of `launch`, and of the page that explains them.

The codes are unique and do not contradict the exit codes of training. The real gcloud and the parsers of `launch` must
accept the commands of the page.
"""

import ast
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess

import pytest

from launch import errors, flags
from vit_jax import runtime

GUIDES = pathlib.Path(__file__).parents[2] / "docs/guides"
PAGE, AFTERWARDS = ((GUIDES / f"{name}.md").read_text() for name in ("tpu-vms", "launched-runs"))
NAMES = {name: value for name, value in vars(errors).items() if name.isupper() and type(value) is int}
del NAMES["LOOKS"]  # the only number that is not an exit code


def test_exit_codes_are_unique_and_have_advice():
  assert len(set(NAMES.values())) == len(NAMES)
  assert set(errors.EXITS) == set(NAMES.values()) - {errors.BUG}
  assert all(meaning and action for meaning, action in errors.EXITS.values())


def test_exit_codes_of_training_keep_their_meaning():
  # 0 is success, 1 a bug, 2 a user error, 42 a run that continues or can continue, and 130 is Ctrl-C.
  assert set(NAMES.values()) & set(runtime.EXITS) == {
    *(errors.DONE, errors.BUG, errors.USAGE, errors.DETACHED, errors.INTERRUPTED)
  }
  assert "mistake" in errors.EXITS[errors.USAGE][0] and "mistake" in runtime.EXITS[errors.USAGE][0]


def test_error_has_a_message_and_a_code():
  assert errors.LaunchError("a typo").code == errors.USAGE
  assert errors.LaunchError("no quota", errors.DENIED).code == errors.DENIED
  assert str(errors.LaunchError("a typo")) == "a typo"


def test_page_lists_defined_exit_codes():
  rows = re.findall(r"^\| (\d+) \| (.+) \|$", AFTERWARDS, re.MULTILINE)
  assert len(rows) > 5
  for code, meaning in rows:
    assert errors.EXITS[int(code)][0].startswith(re.split("[,;] ", meaning)[0]), code


def literals(file):
  """Yields (line, text) of the strings in a file that are not docstrings."""
  tree = ast.parse(file.read_text())
  documented = (ast.Module, ast.FunctionDef, ast.ClassDef)
  alone = {id(node.body[0].value) for node in ast.walk(tree) if isinstance(node, documented)
           and isinstance(node.body[0], ast.Expr)}  # fmt: skip
  for node in ast.walk(tree):
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
      yield node.lineno, node.value


def test_commands_in_messages_and_pages_are_complete():
  command = re.compile(rf"(?<!python -m )(?<![\w./-])launch (?:{'|'.join(flags.VERBS)})\b")
  files = sorted(pathlib.Path(errors.__file__).parent.rglob("*.py"))
  found = [f"{file.name}:{line}: {text}" for file in files for line, text in literals(file) if command.search(text)]
  assert not found, "\n".join(found)
  assert [each for each in re.findall("`[^`]*`", PAGE + AFTERWARDS) if command.search(each)] == []


def test_page_is_short():
  assert len(PAGE.splitlines()) < 150


def commands():
  """Returns the lines of the page's shell blocks, with values for the variables."""
  text = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
  values = {"P": "my-project", "ME": "user:me@example.com", "R": "us-central1", "B": "my-bucket", "Z": "us-central1-a",
            "SA": "vit@my-project.iam.gserviceaccount.com"}  # fmt: skip
  return re.sub(r"\$(\w+)", lambda match: values[match[1]], text)


def test_run_of_the_page_is_valid():
  (words,) = re.findall(r"^run=\((.*?)\)$", commands(), re.DOTALL | re.MULTILINE)
  run = flags.build_run(*flags.parse_flags(["run", *shlex.split(words)]))
  assert (run.backend, run.workers, run.workdir) == ("qr", 4, "gs://my-bucket/runs/vit-s16")
  for line in re.findall(r"`python -m launch (\w+)[^`]*`", PAGE + AFTERWARDS):
    assert line in flags.VERBS, line


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud is not installed")
def test_gcloud_accepts_every_command_of_the_page(tmp_path):
  lines = [line.partition("#")[0].strip() for line in commands().splitlines() if line.startswith("gcloud ")]
  every = [part for line in lines for part in line.split(" && ")]
  assert len(every) > 20
  (tmp_path / "commands").write_text(json.dumps([{"command_string": command} for command in every]))
  words = ["gcloud", "meta", "lint-gcloud-commands", f"--commands-file={tmp_path / 'commands'}"]
  alone = {"CLOUDSDK_CONFIG": str(tmp_path / "config"), "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true"}
  result = subprocess.run(words, capture_output=True, text=True, env=os.environ | alone, check=True)
  found = json.loads(result.stdout)
  assert len(found) == len(every)
  assert [(each["command_string"], each["error_message"]) for each in found if not each["success"]] == []

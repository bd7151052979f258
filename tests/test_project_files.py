"""Tests of the files for contributors and hosting sites: they are valid, and their commands and promises exist."""

import ast
import os
import re
import shlex
import subprocess

import pytest
import yaml

from tests.runs import ROOT
from tests.test_house import FILES, LAUNCH, parse
from vit_jax.schema import extras


def read_yaml(name):
  return yaml.safe_load((ROOT / name).read_text())


def read_targets():
  """Returns the phony targets of the Makefile."""
  return {*re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()}


def test_workflow_calls_the_script_on_the_oldest_and_newest_python():
  workflow = read_yaml(".github/workflows/ci.yml")
  assert workflow["permissions"] == {"contents": "read"}
  (job,) = workflow["jobs"].values()
  ((script, arguments),) = [step["run"].split(maxsplit=1) for step in job["steps"] if "run" in step]
  assert (script, arguments) == (".ci/run", "${{ github.event_name == 'schedule' && '--full' || '' }}")
  assert "make test-full" in (ROOT / ".ci/run").read_text() and "schedule" in workflow[True]  # YAML reads `on` as True
  assert os.access(ROOT / ".ci/run", os.X_OK)
  low, high = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
  assert job["strategy"]["matrix"]["python"] == [f"3.{low}", f"3.{int(high) - 1}"]


def test_script_uses_the_newest_supported_python_that_is_present():
  text = (ROOT / ".ci/run").read_text()
  high = int(re.search(r"<3\.(\d+)", (ROOT / "pyproject.toml").read_text())[1])
  assert f"for newest in python3.{high - 1} python3.{high - 2}; do" in text
  assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= read_targets()


def test_hooks_run_programs_of_the_environment_on_existing_files():
  (repository,) = read_yaml(".pre-commit-config.yaml")["repos"]
  assert repository["repo"] == "local"  # nothing is downloaded
  for hook in repository["hooks"]:
    program, *words = hook["entry"].split()
    assert {"id", "name", "entry", "language"} <= hook.keys() and hook["language"] == "system"
    assert re.fullmatch(r"\.venv/bin/(ruff|python)", program)
    assert [word for word in words if "/" in word and not (ROOT / word).exists()] == []


def plan_make(*words):
  """Returns the commands that make would execute, and its error."""
  # `make test` sets variables for each make that its tests start. They would change the output.
  environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
  done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, env=environment, capture_output=True, text=True)
  return done.stdout.splitlines(), done.stderr


def test_values_of_make_reach_the_shell_as_one_word():
  workdir, seed = "my runs/it's;ls", "1; ls `id`"
  commands, _ = plan_make("digits", f"WORKDIR={workdir}", f"SEED={seed}")
  assert shlex.split(commands[-1])[-2:] == [f"--workdir={workdir}", f"--config.seed={seed}"]
  commands, _ = plan_make("bench", "ROUNDS=2 3", "MODEL=$$HOME")
  assert [shlex.split(command)[-1] for command in commands[-2:]] == ["--rounds=2 3", "--model=$HOME"]


def test_make_without_a_lock_upgrades_and_refuses_several_locks():
  installed = {lock: [line for line in plan_make("digits", "VENV=absent", lock)[0] if "--editable" in line]
               for lock in ("LOCK=", "LOCK=requirements/gpu.txt")}  # fmt: skip
  assert ["--upgrade --upgrade-strategy=eager --editable ." in line for (line,) in installed.values()] == [True, False]
  commands, error = plan_make("digits", "LOCK=requirements/cpu.txt requirements/gpu.txt")
  assert commands == [] and "LOCK: expected one file, got 'requirements/cpu.txt requirements/gpu.txt'. Use" in error


# The fields that the Citation File Format 1.2.0 requires, and the optional ones that are used here.
REQUIRED = {"cff-version", "message", "title", "authors"}
OPTIONAL = {"abstract", "type", "version", "keywords", "references"}
REFERENCE = {"type", "title", "authors", "year", "url", "identifiers"}
PAPERS = {
  "arXiv:2010.11929": ("Dosovitskiy", 12, "An Image is Worth 16x16 Words"),
  "arXiv:2104.05704": ("Hassani", 6, "Escaping the Big Data Paradigm with Compact Transformers"),
}


def test_citation_has_valid_fields_and_both_papers():
  citation = read_yaml("CITATION.cff")
  assert citation.keys() >= REQUIRED and citation.keys() <= REQUIRED | OPTIONAL
  assert (citation["cff-version"], citation["type"], citation["version"]) == ("1.2.0", "software", extras.VERSION)
  assert all(entity.keys() == {"name"} for entity in citation["authors"])
  found = {}
  for reference in citation["references"]:
    assert reference.keys() == REFERENCE and reference["type"] == "article" and type(reference["year"]) is int
    assert all(person.keys() == {"given-names", "family-names"} for person in reference["authors"])
    ((kind, name),) = [each.values() for each in reference["identifiers"]]
    assert kind == "other" and reference["url"] == name.replace("arXiv:", "https://arxiv.org/abs/")
    found[name] = reference["authors"][0]["family-names"], len(reference["authors"]), reference["title"]
  assert found.keys() == PAPERS.keys()
  for name, (author, count, title) in found.items():
    assert (author, count) == PAPERS[name][:2] and title.startswith(PAPERS[name][2])


def test_commands_for_contributors_are_targets_or_scripts():
  text = (ROOT / "CONTRIBUTING.md").read_text()
  spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
  targets = {span.removeprefix("make ") for span in spans if span.startswith("make ")}
  assert {"lint", "check", "test", "test-long", "test-full", "golden-check", "notebook"} == targets <= read_targets()
  assert ".ci/run" in spans and (ROOT / ".ci/run").exists()


def test_readme_asks_the_owner_for_a_licence():
  assert not [*ROOT.glob("LICENSE*"), *ROOT.glob("COPYING*")]
  assert "The owner has to add one before publication" in (ROOT / "README.md").read_text()


def list_promises():
  """Returns {first sentence of a promise: its tests}."""
  chapter = (ROOT / "SECURITY.md").read_text().partition("## Promises\n")[2].partition("\n## ")[0]
  return {
    re.search(r"\*\*(.*?)\*\*", part)[0]: re.findall(r"^- `(tests/\S+)`$", part, re.MULTILINE)
    for part in re.split(r"\n(?=\*\*)", chapter)[1:]
  }


@pytest.mark.parametrize("promise", list_promises())
def test_promise_names_existing_tests(promise):
  tests = list_promises()[promise]
  assert tests
  for test in tests:
    file, _, name = test.partition("::")
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, test


def find_execution(tree):
  """Yields (line, name) of calls that execute data: unpickling, evaluation of text, unsafe YAML and pickled arrays."""
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    name = ast.unparse(node.func)
    evaluates = name in ("eval", "exec", "compile", "__import__", "yaml.load", "torch.load", "marshal.loads")
    unpickles = re.fullmatch(r"(cloudpickle|dill|joblib|pickle)\.(loads?|Unpickler)", name)
    allows = [key for key in node.keywords if key.arg == "allow_pickle" and ast.unparse(key.value) != "False"]
    if evaluates or unpickles or allows:
      yield node.lineno, name


def test_execution_of_data_is_found():
  lines = [
    "pickle.load(f)",
    "eval(x)",
    "np.load(f, allow_pickle=True)",
    "np.load(f, allow_pickle=False)",
    "re.compile(x)",
  ]
  assert [*find_execution(ast.parse("\n".join(lines)))] == [(1, "pickle.load"), (2, "eval"), (3, "np.load")]


def test_package_never_unpickles_or_evaluates_text():
  assert [f"{file}:{line} {name}" for file in (*FILES, *LAUNCH) for line, name in find_execution(parse(file))] == []

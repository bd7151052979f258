"""Tests of the Dockerfile without Docker: its instructions, the files that it copies, and its documented commands."""

import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from launch import spec
from tests.documentation import checks, extraction
from tests.launch import launches
from tests.runs import ROOT

ALLOWED = {"ARG", "FROM", "ENV", "RUN", "WORKDIR", "COPY", "USER", "ENTRYPOINT"}  # not ADD, which may download files
TARGETS = {"tpu": "requirements/tpu.txt", "cpu": "requirements/gcs.txt"}


def read_instructions(text):
  """Returns [(instruction, arguments)] of a Dockerfile, with continued lines joined."""
  lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
  return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def read_stages():
  """Returns {stage: (base, instructions)}."""
  stages = {}
  for name, arguments in read_instructions((ROOT / "Dockerfile").read_text()):
    if name == "FROM":
      base, stage = re.fullmatch(r"(\S+) AS (\w+)", arguments).groups()
      stages[stage] = base, []
    elif stages:
      stages[stage][1].append((name, arguments))
  return stages


def list_all(stage):
  """Returns the instructions of a stage after those of its base stages."""
  stages = read_stages()
  base, own = stages[stage]
  return [*(list_all(base) if base in stages else []), *own]


def is_sent(path):
  """Returns whether .dockerignore lets a file into the build. The last pattern that matches decides."""
  sent = True
  for pattern in (ROOT / ".dockerignore").read_text().splitlines():
    if pattern and not pattern.startswith("#"):
      parts = [path, *(str(parent) for parent in (ROOT / path).relative_to(ROOT).parents)]
      name = pattern.removeprefix("!").removeprefix("**/")
      if any(fnmatch.fnmatch(part, name) or fnmatch.fnmatch(part, f"*/{name}") for part in parts):
        sent = pattern.startswith("!")
  return sent


def list_copied(stage):
  """Returns the sources of all COPY instructions of a stage."""
  return [path for name, words in list_all(stage) if name == "COPY" for path in shlex.split(words)[:-1]]


def test_instructions_are_known_and_run_nothing_from_the_network_but_pip():
  for name, arguments in read_instructions((ROOT / "Dockerfile").read_text()):
    assert name in ALLOWED
    assert not re.search(r"\bcurl\b|\bwget\b|://|sudo|--index-url|chmod", arguments), arguments
    assert not re.search(r"(?i)token|secret|password|credential", arguments), arguments
    for command in arguments.split("&&") if name == "RUN" else ():
      if "pip install" in command:
        assert "--require-hashes" in command or "--no-deps" in command, command


@pytest.mark.parametrize("stage", TARGETS)
def test_stage_installs_its_lock_and_ends_as_a_user_without_rights(stage):
  instructions = list_all(stage)
  installed = [path for path in list_copied(stage) if path.startswith("requirements/")]
  assert installed == [TARGETS[stage]]
  assert any(name == "RUN" and f"--requirement {installed[0]}" in words for name, words in instructions)
  *_, user = [words for name, words in instructions if name == "USER"]
  assert user == "vit" and any(f"useradd --create-home --uid 1000 {user}" in words for _, words in instructions)
  after = instructions[instructions.index(("USER", user)) + 1 :]
  assert {name for name, _ in after} <= {"ENTRYPOINT"}


def test_base_image_has_a_supported_python_and_a_tag():
  (base,) = {base for base, _ in read_stages().values() if base not in read_stages()}
  assert base == "python:${PYTHON}-slim-bookworm"
  (version,) = re.findall(r"^ARG PYTHON=3\.(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
  low, high = re.search(r'requires-python = ">=3\.(\d+),<3\.(\d+)"', (ROOT / "pyproject.toml").read_text()).groups()
  assert int(low) <= int(version) < int(high)


def test_copied_files_exist_and_reach_the_build():
  for stage in TARGETS:
    assert [path for path in list_copied(stage) if not (ROOT / path).exists() or not is_sent(path)] == []


def test_other_files_do_not_reach_the_build():
  for path in (
    "runs/a/config.json",
    ".env",
    ".git/config",
    "tests/runs.py",
    "photos/a.jpg",
    "vit_jax/__pycache__/a.pyc",
  ):
    assert not is_sent(path), path
  assert is_sent("vit_jax/models/vit.py") and is_sent("launch/startup.sh.in")


def test_tpu_image_has_packages_without_code_and_the_cpu_image_starts_vit_jax():
  assert list_copied("tpu") == ["requirements/tpu.txt"]
  assert {"vit_jax", "launch", "configs", "setup.py"} <= {*list_copied("cpu")}
  entry = [json.loads(words) for name, words in list_all("cpu") if name == "ENTRYPOINT"]
  assert entry == [["vit-jax"]]
  assert '\nvit-jax = "vit_jax.__main__:main"\n' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.long
def test_package_builds_from_the_copied_files_alone(tmp_path):
  (tmp_path / "source").mkdir()
  for path in list_copied("cpu"):
    if (ROOT / path).is_dir():
      ignored = shutil.ignore_patterns("__pycache__")
      shutil.copytree(ROOT / path, tmp_path / "source" / path, ignore=ignored)
    elif not path.startswith("requirements/"):
      (tmp_path / "source" / path).write_bytes((ROOT / path).read_bytes())
  words = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), "./source"]
  subprocess.run([sys.executable, *words], cwd=tmp_path, check=True, capture_output=True)
  assert [*tmp_path.glob("vit_jax_framework-*.whl")]


def test_documented_commands_build_the_stages_and_name_the_image_by_digest():
  page = (ROOT / "docs/guides/gke.md").read_text()
  built = re.findall(r"^docker build --target=(\w+) --tag=(\S+) \.$", page, re.MULTILINE)
  assert {stage for stage, _ in built} == TARGETS.keys()
  tag = dict(built)["tpu"]
  assert f"docker push {tag}\n" in page and f"RepoDigests 0}}}}' {tag}\n" in page
  (image,) = re.findall(r"--image=(\S+)@sha256:DIGEST", page)
  assert image == tag.replace("$P", "my-project")
  run = launches.run("gke", image=f"{image}@sha256:{64 * '0'}")
  assert spec.loads(run.dumps()) == run


def test_documented_container_trains_in_the_mounted_folders():
  commands = extraction.of_markdown((ROOT / "docs/guides/gke.md").read_text())
  (command,) = [text for text in commands if text.startswith("docker run ")]
  container, program = command.split(" vit-jax ")
  checks.resolve(f"vit-jax {program}")
  mounted = re.findall(r"--volume=\S+?:(/\w+)", container)
  named = [word.partition("=")[2] for word in shlex.split(program) if "=/" in word]
  assert len(named) == 2 and {f"/{path.split('/')[1]}" for path in named} == {*mounted}

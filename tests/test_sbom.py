"""Test of `make sbom`: its command lists the packages of the environment in the format CycloneDX."""

import importlib.metadata
import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest


@pytest.mark.long
def test_list_contains_the_installed_packages_with_their_versions(tmp_path):
  pytest.importorskip("cyclonedx_py", reason="the extra sbom is not installed")
  makefile = (pathlib.Path(__file__).parents[1] / "Makefile").read_text()
  (line,) = re.findall(r"^sbom:.*\n\t\$\(BIN\)/(.*)$", makefile, re.M)
  program, *words = shlex.split(line.replace("$(BIN)/python", sys.executable))
  command = [str(pathlib.Path(sys.executable).with_name(program)), *words]
  subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
  content = json.loads((tmp_path / "sbom.json").read_text())
  versions = {part["name"].lower(): part["version"] for part in content["components"]}
  assert content["bomFormat"] == "CycloneDX"
  assert {name: versions[name] for name in ("jax", "numpy")} == {
    name: importlib.metadata.version(name) for name in ("jax", "numpy")
  }

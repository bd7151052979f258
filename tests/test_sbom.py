"""Test of `make sbom`: its command lists the packages of the environment in the format CycloneDX."""

import importlib.metadata
import json
import subprocess
import sys

import pytest

from tests.runs import ROOT


@pytest.mark.full
def test_list_contains_the_installed_packages_with_versions_and_no_path(tmp_path):
  pytest.importorskip("cyclonedx_py", reason="the extra sbom is not installed")
  environment = f"VENV={sys.prefix}"
  words = ["make", f"--file={ROOT}/Makefile", "sbom", environment, f"--old-file={sys.prefix}/installed-sbom"]
  subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
  assert [file.name for file in tmp_path.iterdir()] == ["sbom.json"]
  text = (tmp_path / "sbom.json").read_text()
  assert "file://" not in text and str(ROOT) not in text
  content = json.loads(text)
  versions = {part["name"].lower(): part["version"] for part in content["components"]}
  assert content["bomFormat"] == "CycloneDX"
  assert {name: versions[name] for name in ("jax", "numpy")} == {
    name: importlib.metadata.version(name) for name in ("jax", "numpy")
  }

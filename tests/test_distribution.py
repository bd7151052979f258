"""Tests of the wheel: its files and metadata, and a run in an empty folder with nothing else of the repository."""

import configparser
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

import vit_jax
from tests import notebook
from tests.runs import ROOT

pytestmark = pytest.mark.long  # one test builds the wheel, and the others share it


def run(words, folder, code=0, **changes):
  """Runs a command in a folder, and returns its output and errors."""
  environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | changes
  done = subprocess.run(
    [str(word) for word in words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
  )
  assert done.returncode == code, done.stdout + done.stderr
  return done.stdout + done.stderr


def list_files(folder):
  """Returns the files of a folder that git tracks or would add."""
  words = ["git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", folder]
  names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
  return [name for name in names if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """Builds the wheel from a copy of the repository, because setuptools writes into the source folder."""
  source, built = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("built")
  for name in list_files("."):
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes((ROOT / name).read_bytes())
  stale = source / "build/lib/vit_jax/removed.py"  # of an earlier build
  stale.parent.mkdir(parents=True)
  stale.touch()
  run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", built, "."], source)
  (file,) = built.iterdir()
  return file


def make_environment(folder):
  """Creates an environment that has the other packages of this one, but not this repository.

  Files with the ending .pth in a folder that is itself named in such a file have no effect. An editable installation of
  this repository is therefore not visible.
  """
  run([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
  (packages,) = folder.glob("lib/python*/site-packages")
  (packages / "shared.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
  """Installs the wheel into an environment that has the other packages of this one."""
  folder = tmp_path_factory.mktemp("environment")
  make_environment(folder)
  pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python"]
  run([*pip, "install", "--no-deps", "--no-index", wheel], folder)
  return folder / "bin"


def test_wheel_has_all_files_below_two_names_and_no_others(wheel):
  expected = {*list_files("vit_jax")}
  expected |= {f"vit_launch/{name.removeprefix('launch/')}" for name in list_files("launch")}
  expected |= {f"vit_jax/recipes/{name.removeprefix('configs/')}" for name in list_files("configs")}
  names = zipfile.ZipFile(wheel).namelist()
  assert {name for name in names if ".dist-info/" not in name} == expected
  assert {"vit_jax/py.typed", "vit_launch/py.typed", "vit_launch/startup.sh.in"} <= expected


def test_metadata_is_complete(wheel):
  archive = zipfile.ZipFile(wheel)
  (metadata,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
  (points,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/entry_points.txt")]
  head, _, body = metadata.partition("\n\n")
  assert f"\nName: vit-jax-framework\nVersion: {vit_jax.__version__}\nSummary: " in head
  assert {"Keywords", "Classifier", "Requires-Python", "Requires-Dist"} <= {*re.findall(r"^([\w-]+):", head, re.M)}
  assert "Classifier: Typing :: Typed" in head and "Description-Content-Type: text/markdown" in head
  assert body.strip() == (ROOT / "README.md").read_text().strip()
  parser = configparser.ConfigParser()
  parser.read_string(points)
  assert {*parser["console_scripts"]} == {"vit-jax", "vit-launch"}


def test_recipe_by_name_trains_and_evaluates_in_an_empty_folder(programs, tmp_path):
  (tmp_path / "empty").mkdir()
  folder, data = tmp_path / "empty", f"--config.data.path={tmp_path / 'data'}"
  place = run([programs / "python", "-c", "import vit_jax; print(vit_jax.__file__)"], folder)
  assert pathlib.Path(place.strip()).is_relative_to(programs.parent)
  run([programs / "vit-jax", "prepare", "digits", f"--data_dir={tmp_path / 'data'}"], folder)
  words = ["--config=digits", "--workdir=run", "--config.total=2", data]
  assert "2/2  100%" in run([programs / "vit-jax", "train", *words], folder)
  assert json.loads((folder / "run/result.json").read_text())["steps"] == 2 and (folder / "run/report.html").exists()
  assert [file.name for file in folder.iterdir()] == ["run"]
  error = run([programs / "vit-jax", "train", "--config=digitz", "--workdir=run"], folder, 2)
  assert "error: --config: no file or recipe 'digitz'. Did you mean 'digits'?" in error


def test_first_cell_of_the_notebook_installs_a_wheel_of_its_folder_once(wheel, tmp_path):
  folder, python = tmp_path / "notebook", tmp_path / "environment/bin/python"
  folder.mkdir()
  make_environment(tmp_path / "environment")
  (cell,) = [cell for cell in notebook.read().cells if cell.id == "install"]
  offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
  assert "Upload a wheel, or set SOURCE" in run([python, "-c", cell.source], folder, 1, **offline)
  (folder / wheel.name).write_bytes(wheel.read_bytes())
  run([python, "-c", f"{cell.source}\nimport vit_jax"], folder, **offline)
  (folder / wheel.name).unlink()
  place = run([python, "-c", f"{cell.source}\nimport vit_jax\nprint(vit_jax.__file__)"], folder, **offline)
  assert pathlib.Path(place.strip()).is_relative_to(tmp_path / "environment")


def test_installed_launcher_lists_runs_and_explains_that_it_sends_a_clone(programs, tmp_path):
  state, launch = {"XDG_STATE_HOME": str(tmp_path / "state")}, programs / "vit-launch"
  for program in ("vit-jax", "vit-launch"):
    assert run([programs / program, "--version"], tmp_path) == f"{vit_jax.__version__}\n"
  assert "no machines and no unfinished runs" in run([launch, "ls"], tmp_path, **state)
  assert "see vit-launch ls" in run([launch, "status", "absent"], tmp_path, 2, **state)
  assert "usage: vit-launch run NAME" in run([launch, "run", "--help"], tmp_path, **state)
  words = ["run", "a", "--backend=local", "--", "vit_jax.train", "--config=digits", f"--workdir={tmp_path / 'run'}"]
  assert "Start from a clone of vit_jax" in run([launch, *words], tmp_path, 2, **state)
  code = "from vit_launch import manifests; print(len(manifests.pack_launch()))"
  assert int(run([programs / "python", "-c", code], tmp_path)) > 10_000


def test_installed_launcher_runs_a_program_of_a_clone(programs, tmp_path):
  clone = tmp_path / "clone"
  (clone / "launch").mkdir(parents=True)
  (clone / "launch/worker.py").touch()
  (clone / "hello.py").write_text("print('hello from', __file__)")
  for words in (["init", "-q"], ["add", "."]):
    run(["git", *words], clone)
  state = {"XDG_STATE_HOME": str(tmp_path / "state")}
  python, workdir = f"--python={programs / 'python'}", f"--workdir={tmp_path / 'run'}"
  words = ["run", "a", "--backend=local", "--max-hours=1", python, workdir, "--", "hello"]
  run([programs / "vit-launch", *words], clone, **state)
  assert "hello from" in run([programs / "vit-launch", "logs", "a", workdir], clone, **state)

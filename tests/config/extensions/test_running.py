"""Tests that files of users run once, and that their errors are one line."""

import sys

import pytest

from tests.extension_files import TASK, clean, forget, recorded, written  # noqa: F401  a fixture
from vit_jax.config import extensions
from vit_jax.config.extensions import running
from vit_jax.schema import ConfigError
from vit_jax.tasks import TASKS

pytestmark = pytest.mark.usefixtures("clean")


def test_file_runs_once_and_again_after_a_change(tmp_path):
  file = written(tmp_path)
  module = extensions.run_file(file)
  assert extensions.run_file(file) is module and TASKS["own_task"] is module.Own
  file.write_text(TASK.format(name="other_task"))
  assert extensions.run_file(file) is not module
  assert "other_task" in TASKS and "own_task" not in TASKS


def test_file_that_fails_registers_no_name(tmp_path):
  file = written(tmp_path)
  file.write_text(file.read_text() + "\nraise OSError('no disk')\n")
  with pytest.raises(ConfigError, match=r"^--config: .*own\.py, line 9: OSError: no disk$"):
    extensions.run_file(file)
  assert "own_task" not in TASKS and extensions.list_registered() == []


@pytest.mark.parametrize(
  ("text", "problem"),
  [
    ("nowhere.py", r"^--import: no file 'nowhere\.py'\."),
    ("no_such_module_of_tests", r"^--import: no module 'no_such_module_of_tests' on Python's import path"),
    (
      "json",
      r"^--import: json does not register anything. Use the decorators of vit_jax.register, see docs/extend/index.md$",
    ),
  ],
)
def test_invalid_import_is_an_error_of_one_line(text, problem):
  with pytest.raises(ConfigError, match=problem):
    extensions.import_named(text)


def test_import_accepts_a_file_or_a_module(tmp_path):
  extensions.import_named(str(written(tmp_path)))
  assert extensions.list_registered() == [("task", "own_task")]
  written(tmp_path / "x", "second_task", "second_module_of_tests")
  sys.path.append(str(tmp_path / "x"))
  extensions.import_named("second_module_of_tests")
  assert extensions.list_registered() == [("task", "own_task"), ("task", "second_task")]


def test_other_processes_of_a_run_import_the_active_extensions(tmp_path, monkeypatch):
  extensions.run_file(written(tmp_path))
  active = extensions.list_active()
  forget()
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))  # the process trusts the one that started it
  extensions.import_active([tuple(each) for each in active])
  assert "own_task" in TASKS


def test_file_named_like_a_built_in_module_is_imported(tmp_path):
  """A built-in module has no `__file__`, so its path cannot be compared."""
  running.import_again(running.Extension(str(written(tmp_path, stem="time")), "time"))


class Point:
  """An entry point of an installed package."""

  name, value, dist = "own", "own_plugin:main", None

  def __init__(self, load):
    self.load = load


def test_entry_points_of_installed_packages_are_imported(tmp_path, monkeypatch):
  file = written(tmp_path)
  monkeypatch.setattr(running.importlib.metadata, "entry_points", lambda group: [Point(lambda: None)])
  extensions.import_installed.cache_clear()
  extensions.import_installed()
  broken = Point(lambda: extensions.run_file(tmp_path / "absent.py"))
  monkeypatch.setattr(running.importlib.metadata, "entry_points", lambda group: [broken])
  extensions.import_installed.cache_clear()
  with pytest.raises(ConfigError, match=r"^extension 'own' of an installed package: own_plugin:main"):
    extensions.import_installed()
  loaded = Point(lambda: extensions.run_file(file))
  monkeypatch.setattr(running.importlib.metadata, "entry_points", lambda group: [loaded])
  extensions.import_installed.cache_clear()
  extensions.import_installed()
  assert "own_task" in TASKS
  extensions.import_installed.cache_clear()

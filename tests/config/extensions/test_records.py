"""Tests that a run's record of extensions imports files again only if the rules allow it."""

import logging
import sys

import pytest

from tests.extension_files import clean, forget, recorded, written  # noqa: F401  a fixture
from vit_jax.config import extensions
from vit_jax.schema import ConfigError
from vit_jax.tasks import TASKS

pytestmark = pytest.mark.usefixtures("clean")


def test_modules_next_to_a_file_are_imported_and_recorded_by_name(tmp_path):
  helper = written(tmp_path, stem="own_helper_module")
  config = tmp_path / "config.py"
  config.write_text("import own_helper_module\n")
  extensions.run_file(config)
  (row,) = extensions.record({"own_task", "adamw"})
  assert row["file"] == str(helper) and row["module"] == "own_helper_module" and row["names"] == ["task own_task"]
  assert extensions.record({"adamw"}) == []


def test_file_that_the_user_ran_before_is_imported_again(tmp_path, caplog):
  rows = recorded(written(tmp_path))
  assert "own_task" not in TASKS
  extensions.restore(rows, tmp_path / "run")
  assert "own_task" in TASKS and not caplog.records


def test_module_is_imported_again_by_its_name(tmp_path):
  package = tmp_path / "own_package_of_tests"
  written(package, stem="inner")
  (package / "__init__.py").write_text("")
  (tmp_path / "config.py").write_text("import own_package_of_tests.inner\n")
  extensions.run_file(tmp_path / "config.py")
  rows = extensions.record({"own_task"})
  forget()
  del sys.modules["own_package_of_tests"]
  sys.path.remove(str(tmp_path))
  extensions.restore(rows, tmp_path / "run")
  assert TASKS["own_task"].__module__ == "own_package_of_tests.inner"


@pytest.mark.parametrize("case", ["another user", "another place", "inside the workdir", "not there", "no file"])
def test_records_never_run_code_that_the_user_did_not_run(tmp_path, monkeypatch, case):
  file = written(tmp_path / "run" if case == "inside the workdir" else tmp_path)
  (row,) = recorded(file)
  match case:
    case "another user":
      monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    case "another place":
      row["file"] = str(written(tmp_path / "else"))
    case "not there":
      file.unlink()
    case "no file":
      row["file"] = ""
  reason = {
    "another user": "you did not use",
    "another place": "You did not use",
    "inside the workdir": "is inside the workdir",
    "not there": "does not exist",
    "no file": "code without a file",
  }[case]
  with pytest.raises(ConfigError) as error:
    extensions.restore([row], tmp_path / "run")
  message = str(error.value)
  assert reason.lower() in message.lower() and "the task 'own_task'" in message and "Add --import=" in message
  assert message.startswith(str(tmp_path / "run")) and "\n" not in message and "own_task" not in TASKS
  extensions.import_named(str(written(tmp_path / "given")))  # the user names the file explicitly
  extensions.restore([row], tmp_path / "run")


def test_module_name_of_a_record_is_not_trusted(tmp_path):
  (row,) = recorded(written(tmp_path))
  (tmp_path / "module_of_an_attacker.py").write_text("raise SystemExit('run')")
  sys.path.append(str(tmp_path))
  extensions.restore([row | {"module": "module_of_an_attacker"}], tmp_path / "run")
  assert "own_task" in TASKS and "module_of_an_attacker" not in sys.modules


def test_changed_extension_file_is_a_warning(tmp_path, caplog):
  file = written(tmp_path)
  rows = recorded(file)
  file.write_text(file.read_text() + "# more\n")
  with caplog.at_level(logging.WARNING):
    extensions.restore(rows, tmp_path / "run")
    extensions.restore(rows, tmp_path / "run")
  assert [record.message for record in caplog.records] == [
    f"{file} changed since the run in {tmp_path / 'run'} used it: results may differ"
  ]
  now = extensions.record({"own_task"})
  assert extensions.list_changes(rows, now) == [f"{file} changed"] and extensions.list_changes(now, now) == []


def test_name_that_the_file_no_longer_registers_is_an_error(tmp_path):
  file = written(tmp_path)
  rows = recorded(file)
  file.write_text("")
  with pytest.raises(ConfigError, match="It no longer registers the name"):
    extensions.restore(rows, tmp_path / "run")


@pytest.mark.parametrize("row", [3, {}, {"file": 3, "module": "", "sha256": "", "names": []}, None])
def test_invalid_record_is_an_error(tmp_path, row):
  with pytest.raises(ValueError, match="its record of extensions is not valid"):
    extensions.check([row])
  with pytest.raises(ConfigError, match="Use a workdir that a run wrote"):
    extensions.restore_for_workdir(tmp_path, {"identity": {"extensions": [row]}})

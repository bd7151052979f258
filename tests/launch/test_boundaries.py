"""Tests of responses in an unexpected form, and of the table of assumptions."""

import dataclasses
import http.client
import pathlib
import subprocess

import pytest

from launch import decisions, errors, event_log, gcloud, removal, states
from launch.errors import LaunchError, UnknownError
from tests.launch import cloud
from tests.launch.descriptions import item
from tests.launch.scripted import Answer, api_error

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs/concepts/launcher.md"
NAME = "vit-b16-a1"
GONE = "Resource 'projects/proj-x/locations/europe-west4-a/queuedResources/{}' was not found"


def test_page_contains_the_table_of_assumptions():
  assert PAGE.read_text().endswith(errors.format_table())


def test_constants_of_the_table_are_used_by_the_code():
  assert gcloud.TIMEOUT is errors.CALL and event_log.IN_FLIGHT is errors.IN_FLIGHT
  assert removal.errors.LOOKS == decisions.errors.LOOKS == 2


@pytest.mark.parametrize(
  "error",
  [
    PermissionError(13, "Permission denied"),
    OSError(8, "Exec format error"),
    OSError(24, "Too many open files"),
    OSError(28, "No space left on device"),
    IsADirectoryError(21, "Is a directory"),
    BrokenPipeError(32, "Broken pipe"),
    ValueError("x"),
    KeyError("name"),
    AttributeError("get"),
    RecursionError(),
    MemoryError(),
    http.client.BadStatusLine("x"),
    subprocess.TimeoutExpired("x", 1),
  ],
  ids=repr,
)
def test_unexpected_exception_of_a_call_is_unknown(error):
  class Broken:
    restarts = False

    def look(self, attempt):
      raise error

  engine = errors.GuardedObject(Broken(), "qr")
  with pytest.raises(UnknownError, match="qr: unexpected answer"):
    engine.look(1)
  assert engine.restarts is False


@pytest.mark.parametrize("error", [UnknownError("x"), LaunchError("y", 11), KeyboardInterrupt()], ids=repr)
def test_known_errors_and_interruptions_pass_the_boundary(error):
  with pytest.raises(type(error)) as found, errors.convert_unexpected("x"):
    raise error
  assert found.value is error


@pytest.fixture
def engine(tmp_path, program, monkeypatch):
  """An engine as the verbs use it, with a scripted gcloud."""
  monkeypatch.chdir(tmp_path)
  return states.make_engine(cloud.run())


NAMED = {"name": f"projects/proj-x/locations/europe-west4-a/queuedResources/{NAME}"}
SHAPES = [None, [], {}, "x", 7, [1], {"name": 5}, {**NAMED, "state": [1]}, {**NAMED, "tpu": 3}, {"name": "a/b"}, NAMED,
          {**item(cloud.run(), "FAILED"), "state": {"state": "FAILED", "failedData": [1]}},
          {**NAMED, "tpu": {"nodeSpec": 4}}]  # fmt: skip


@pytest.mark.parametrize("shape", [*SHAPES, Answer(""), Answer("", code=7), Answer("null")], ids=str)
def test_description_in_another_form_is_unknown(engine, program, shape):
  program.answers("queued-resources", "describe", shape)
  with pytest.raises(UnknownError):
    engine.look(1)


@pytest.mark.parametrize("shape", [None, {}, "x", 7, [1], [{"name": 5}], [{}], Answer(""), Answer("", code=7)], ids=str)
def test_list_in_another_form_is_unknown_and_not_empty(engine, program, shape):
  program.answers("queued-resources", "list", shape)
  found, silent = engine.list_resources(("europe-west4-a",))
  assert not found and list(silent) == ["europe-west4-a"]


def test_item_in_another_form_does_not_hide_other_items(engine, program):
  whole = {"name": f"{NAMED['name'][:-1]}2", "state": {"state": "ACTIVE"},
           "tpu": {"nodeSpec": [{"node": {"labels": {"vitjax": "1", "vitjax-attempt": "2"}}}]}}  # fmt: skip
  program.answers("queued-resources", "list", [{**NAMED, "tpu": 3}, whole])
  found, silent = engine.list_resources(("europe-west4-a",))
  assert [each.attempt for each in found] == [2] and list(silent) == ["europe-west4-a"]


@pytest.mark.parametrize("mode", [0o644, 0o755])
def test_program_that_cannot_be_run_is_unknown(engine, program, mode):
  (program.folder / "gcloud").write_text("no program")
  (program.folder / "gcloud").chmod(mode)
  with pytest.raises((UnknownError, LaunchError)):
    engine.look(1)


def test_missing_temporary_directory_delays_a_request(engine, program, tmp_path, monkeypatch):
  monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
  monkeypatch.setattr("launch.storage.open_storage", lambda _: cloud.store(tmp_path / "run", cloud.run()))
  with pytest.raises(UnknownError):
    engine.create(1, 0)
  assert program.verbs() == []


@pytest.mark.parametrize(
  "text", [GONE.format("vit-b16-a10"), GONE.format("other"), "Resource 'projects/x' was not found", "no such thing"]
)
def test_absence_of_another_resource_is_ignored(engine, program, text):
  program.answers("queued-resources", "describe", api_error("NOT_FOUND", text))
  with pytest.raises((UnknownError, LaunchError)):
    engine.look(1)


def test_absence_that_the_list_contradicts_is_ignored(engine, program):
  program.answers("queued-resources", "describe", api_error("NOT_FOUND", GONE.format(NAME)))
  program.answers("queued-resources", "list", [NAMED])
  with pytest.raises(UnknownError, match="lists it"):
    engine.look(1)
  program.answers("queued-resources", "list", [])
  program.answers("tpu-vm", "describe", api_error("NOT_FOUND", GONE.format(NAME)))
  assert engine.look(1).state == "absent"


def test_node_matches_its_queued_resource_by_project_number_or_id(engine, program):
  node = {"labels": {"vitjax": "1", "vitjax-run": "vit-b16", "vitjax-attempt": "1"}}
  queued = {**NAMED, "state": {"state": "ACTIVE"}, "tpu": {"nodeSpec": [{"node": node}]}}
  number = NAMED["name"].replace("proj-x", "123456789")
  nodes = [{"name": f"projects/proj-x/locations/europe-west4-a/nodes/{NAME}-{i}", "state": "READY", **node,
            "queuedResource": number} for i in range(2)]  # fmt: skip
  program.answers("queued-resources", "list", [queued])
  program.answers("tpu-vm", "list", nodes)
  found, silent = engine.list_resources(("europe-west4-a",))
  assert [each.name for each in found] == [NAME] and not silent


def test_every_assumption_is_complete():
  assert all(all(dataclasses.astuple(each)) for each in errors.TABLE)

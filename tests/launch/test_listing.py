"""Tests of `ls`, `status` and `gc`: machines of the cloud and of event logs, and deletion of unneeded machines."""

import json

import pytest

from launch import errors, flags, listing, spec, states
from launch.event_log import EventLog
from launch.states import OVER, WATCHING, State
from launch.storage import open_storage
from launch.watch import Watcher
from tests.launch.providers import Queued

pytestmark = pytest.mark.heavy


@pytest.fixture
def cloud(bucket_server, tmp_path, monkeypatch, request):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  monkeypatch.setattr(spec, "get_user_label", lambda: "alice")
  with Queued(tmp_path, f"gs://bkt/{request.node.name}") as made:
    yield made


def begin(cloud, steps=10**6):
  """Starts a run and waits until its workers run."""
  cloud.crew(1, steps=steps)
  with Watcher(cloud.run, EventLog("vit", open_storage(cloud.run.folder))) as watch:
    watch.begin(None)
    while not (watch.state.start_known and watch.engine.look(1).state == states.READY):
      watch.step()


def run_ls(capsys, *words):
  capsys.readouterr()
  code = listing.ls(flags.parse_flags(["ls", "--json", "--project=proj-x", *words])[0])
  return code, json.loads(capsys.readouterr().out)


def run_gc(capsys, *words):
  capsys.readouterr()
  code = listing.gc(flags.parse_flags(["gc", "--project=proj-x", *words])[0])
  return code, capsys.readouterr().out


def test_active_run_is_listed_and_not_deleted(cloud, capsys):
  begin(cloud)
  code, found = run_ls(capsys)
  (row,) = found["resources"]
  assert code == errors.DONE and (row["name"], row["owner"], row["flag"], row["state"]) == (
    "vit-a1",
    "alice",
    "",
    "ready",
  )
  assert row["step"] >= 0 and row["kind"] == "v3-32" and row["location"] == "europe-west4-a"
  code, output = run_gc(capsys, "--yes")
  assert code == errors.DONE and "no machine is to be deleted" in output and cloud.states()


@pytest.mark.long
def test_empty_list_is_reported_in_words(cloud, capsys):
  assert listing.ls(flags.parse_flags(["ls", "--project=proj-x"])[0]) == errors.DONE
  assert capsys.readouterr().out == "no machines and no unfinished runs\n"
  listing.ls(flags.parse_flags(["ls", "--project=proj-x", "--all"])[0])
  assert capsys.readouterr().out == "no machines and no runs\n"
  assert run_ls(capsys)[1]["resources"] == []


def test_suspended_machine_is_deleted_only_with_yes(cloud, capsys):
  begin(cloud)
  cloud.preempt("vit-a1")
  code, output = run_gc(capsys)
  assert "SUSPENDED" in output and "without --yes" in output and cloud.everything()
  code, output = run_gc(capsys, "--yes")
  assert code == errors.DONE and "deleted" in output and not cloud.states()


@pytest.mark.long
def test_machine_of_another_laptop_is_listed_and_not_deleted(cloud, capsys, tmp_path, monkeypatch):
  begin(cloud)
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
  assert [row["flag"] for row in run_ls(capsys)[1]["resources"]] == ["ELSEWHERE"]
  assert "no machine is to be deleted" in run_gc(capsys, "--yes")[1] and cloud.states()


@pytest.mark.long
def test_machine_of_an_ended_run_is_an_orphan(cloud, capsys):
  begin(cloud)
  book = EventLog("vit")
  book.append("end", State(attempt=1, stage=OVER, end=(12, "x")), code=12, text="x")
  assert [row["flag"] for row in run_ls(capsys)[1]["resources"]] == ["ORPHAN"]
  assert "no machine is to be deleted" in run_gc(capsys, "--older-than=2h", "--yes")[1] and cloud.states()
  assert run_gc(capsys, "--yes")[0] == errors.DONE and not cloud.states()


@pytest.mark.long
def test_another_user_sees_machines_and_does_not_delete_them(cloud, capsys, monkeypatch, tmp_path):
  begin(cloud)
  cloud.preempt("vit-a1")
  monkeypatch.setattr(spec, "get_user_label", lambda: "bob")
  assert [row["owner"] for row in run_ls(capsys)[1]["resources"]] == [
    "alice"
  ]  # the event log on this machine contains it
  assert "no machine is to be deleted" in run_gc(capsys, "--yes")[1] and cloud.everything()
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
  assert run_ls(capsys)[1]["resources"] == []
  listing.ls(flags.parse_flags(["ls", "--project=proj-x"])[0])
  assert (
    "no machines of yours" in (output := capsys.readouterr().out) and "1 of alice" in output and "you are bob" in output
  )
  assert len(run_ls(capsys, "--all-users")[1]["resources"]) == 1


def test_unreachable_zone_is_unknown_and_not_empty(cloud, capsys):
  begin(cloud)
  cloud.mute()
  code, found = run_ls(capsys)
  assert code == errors.UNKNOWN and "europe-west4-a" in found["unknown"]
  (row,) = found["resources"]
  assert (row["name"], row["state"]) == ("vit-a1", "not listed")
  code, output = run_gc(capsys, "--yes")
  assert code == errors.UNKNOWN and "in the locations that answered, no machine is to be deleted" in output


@pytest.mark.long
def test_unconfirmed_deletion_ends_with_exit_code_13_and_the_command(cloud, capsys):
  begin(cloud)
  cloud.preempt("vit-a1")
  cloud.keep()
  code, output = run_gc(capsys, "--yes")
  assert code == errors.BILLING and "gcloud compute tpus queued-resources delete vit-a1" in output


@pytest.mark.long
def test_status_shows_events_and_workers(cloud, capsys):
  begin(cloud)
  assert listing.status(flags.parse_flags(["status", "vit"])[0]) == errors.DONE
  output = capsys.readouterr().out
  assert "vit  qr v3-32  running" in output and "it has no watcher; continue with: python -m launch adopt vit" in output
  assert "intent" in output and "w03  h3" in output and "step" in output
  listing.status(flags.parse_flags(["status", "vit", "--json"])[0])
  values = json.loads(capsys.readouterr().out)
  assert len(values["workers"]) == 4 and values["state"]["attempt"] == 1


@pytest.mark.long
def test_unreadable_event_log_does_not_hide_other_runs(cloud, capsys):
  begin(cloud)
  book = EventLog("odd")
  book.append("intent", State(attempt=1, stage=WATCHING), location="x")
  listing.ls(flags.parse_flags(["ls", "--project=proj-x"])[0])
  output = capsys.readouterr()
  assert "vit-a1" in output.out and "odd" in output.err

"""What is there, of the cloud and of journals; what nobody needs is deleted, and nothing else."""

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
  """A run whose workers run."""
  cloud.crew(1, steps=steps)
  with Watcher(cloud.run, EventLog("vit", open_storage(cloud.run.folder))) as watch:
    watch.begin(None)
    while not (watch.state.start_known and watch.engine.look(1).state == states.READY):
      watch.step()


def listed(capsys, *words):
  capsys.readouterr()
  code = listing.ls(flags.parse_flags(["ls", "--json", "--project=proj-x", *words])[0])
  return code, json.loads(capsys.readouterr().out)


def collected(capsys, *words):
  capsys.readouterr()
  code = listing.gc(flags.parse_flags(["gc", "--project=proj-x", *words])[0])
  return code, capsys.readouterr().out


def test_a_run_that_is_alive_is_shown_and_not_collected(cloud, capsys):
  begin(cloud)
  code, found = listed(capsys)
  (row,) = found["resources"]
  assert code == errors.DONE and (row["name"], row["owner"], row["flag"], row["state"]) == (
    "vit-a1",
    "alice",
    "",
    "ready",
  )
  assert row["step"] >= 0 and row["kind"] == "v3-32" and row["location"] == "europe-west4-a"
  code, said = collected(capsys, "--yes")
  assert code == errors.DONE and "no machine is to be deleted" in said and cloud.states()


@pytest.mark.long
def test_f10_no_machines_are_reported_in_words(cloud, capsys):
  assert listing.ls(flags.parse_flags(["ls", "--project=proj-x"])[0]) == errors.DONE
  assert capsys.readouterr().out == "no machines and no unfinished runs\n"
  listing.ls(flags.parse_flags(["ls", "--project=proj-x", "--all"])[0])
  assert capsys.readouterr().out == "no machines and no runs\n"
  assert listed(capsys)[1]["resources"] == []


def test_what_has_expired_or_is_suspended_is_deleted_and_only_with_yes(cloud, capsys):
  begin(cloud)
  cloud.preempt("vit-a1")
  code, said = collected(capsys)
  assert "SUSPENDED" in said and "without --yes" in said and cloud.everything()
  code, said = collected(capsys, "--yes")
  assert code == errors.DONE and "deleted" in said and not cloud.states()


@pytest.mark.long
def test_a_machine_that_is_watched_from_elsewhere_is_shown_and_not_collected(cloud, capsys, tmp_path, monkeypatch):
  begin(cloud)
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
  assert [row["flag"] for row in listed(capsys)[1]["resources"]] == ["ELSEWHERE"]
  assert "no machine is to be deleted" in collected(capsys, "--yes")[1] and cloud.states()


@pytest.mark.long
def test_a_machine_of_a_run_that_has_ended_is_an_orphan(cloud, capsys):
  begin(cloud)
  book = EventLog("vit")
  book.append("end", State(attempt=1, stage=OVER, end=(12, "x")), code=12, text="x")
  assert [row["flag"] for row in listed(capsys)[1]["resources"]] == ["ORPHAN"]
  assert "no machine is to be deleted" in collected(capsys, "--older-than=2h", "--yes")[1] and cloud.states()
  assert collected(capsys, "--yes")[0] == errors.DONE and not cloud.states()


@pytest.mark.long
def test_another_login_name_sees_that_there_are_machines_and_deletes_none(cloud, capsys, monkeypatch, tmp_path):
  begin(cloud)
  cloud.preempt("vit-a1")
  monkeypatch.setattr(spec, "get_user_label", lambda: "bob")
  assert [row["owner"] for row in listed(capsys)[1]["resources"]] == ["alice"]  # this machine's journal knows it
  assert "no machine is to be deleted" in collected(capsys, "--yes")[1] and cloud.everything()
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
  assert listed(capsys)[1]["resources"] == []
  listing.ls(flags.parse_flags(["ls", "--project=proj-x"])[0])
  assert "no machines of yours" in (said := capsys.readouterr().out) and "1 of alice" in said and "you are bob" in said
  assert len(listed(capsys, "--all-users")[1]["resources"]) == 1


def test_a_zone_that_does_not_answer_is_unknown_and_not_empty(cloud, capsys):
  begin(cloud)
  cloud.mute()
  code, found = listed(capsys)
  assert code == errors.UNKNOWN and "europe-west4-a" in found["unknown"]
  (row,) = found["resources"]
  assert (row["name"], row["state"]) == ("vit-a1", "not listed")
  code, said = collected(capsys, "--yes")
  assert code == errors.UNKNOWN and "in the locations that answered, no machine is to be deleted" in said


@pytest.mark.long
def test_a_deletion_that_is_not_seen_ends_with_13_and_the_command(cloud, capsys):
  begin(cloud)
  cloud.preempt("vit-a1")
  cloud.keep()
  code, said = collected(capsys, "--yes")
  assert code == errors.BILLING and "gcloud compute tpus queued-resources delete vit-a1" in said


@pytest.mark.long
def test_status_says_what_was_done_and_how_each_worker_is(cloud, capsys):
  begin(cloud)
  assert listing.status(flags.parse_flags(["status", "vit"])[0]) == errors.DONE
  said = capsys.readouterr().out
  assert "vit  qr v3-32  running" in said and "it has no watcher; continue with: python -m launch adopt vit" in said
  assert "intent" in said and "w03  h3" in said and "step" in said
  listing.status(flags.parse_flags(["status", "vit", "--json"])[0])
  values = json.loads(capsys.readouterr().out)
  assert len(values["workers"]) == 4 and values["state"]["attempt"] == 1


@pytest.mark.long
def test_a_journal_that_cannot_be_read_hides_no_other(cloud, capsys):
  begin(cloud)
  book = EventLog("odd")
  book.append("intent", State(attempt=1, stage=WATCHING), location="x")
  listing.ls(flags.parse_flags(["ls", "--project=proj-x"])[0])
  said = capsys.readouterr()
  assert "vit-a1" in said.out and "odd" in said.err

"""Tests of the launcher commands for local runs that have no watcher or have ended."""

import pytest

from launch import commands, errors, flags, listing, spec
from launch.errors import LaunchError
from launch.event_log import EventLog
from launch.mailbox import Lease
from launch.states import DELETING, IDLE, OVER, WATCHING, State
from launch.storage import open_storage


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def make_event_log(tmp_path, *events, name="vit"):
  """Returns an event log with one attempt and the given further events: (event, state)."""
  folder = str(tmp_path / name)
  run = spec.check_and_complete(
    spec.Run(name, "local", "m", (f"--workdir={folder}",), folder, limits=spec.Limits(delete=0.2))
  )
  made = EventLog(name, open_storage(run.folder))
  made.append("run", State(), run=run.dumps())
  for event in ("intent", "created"):
    made.append(event, State(attempt=1, stage=WATCHING))
  for event, state in events:
    made.append(event, state, **({"code": state.end[0], "text": state.end[1]} if event == "end" else {}))
  return made


def make_end_state(code=0, text="done", **changes):
  return State(attempt=1, stage=OVER, end=(code, text), **changes)


def make_ended_event_log(tmp_path, *end):
  return make_event_log(tmp_path, ("deleted", State(attempt=1, stage=IDLE)), ("end", make_end_state(*end)))


def run_verb(verb, *words):
  args = flags.parse_flags([verb, *words])[0]
  return {"ls": listing.ls, "gc": listing.gc, "status": listing.status}.get(verb, getattr(commands, verb, None))(args)


def read_output(capsys, verb, *words):
  run_verb(verb, *words)
  return capsys.readouterr().out


KEPT = "end", make_end_state(42, "stopped", kept=True, unverified=(1,))
UNSEEN = "end", make_end_state(13, "not seen", unverified=(1,))
BETWEEN, GOING = ("deleted", State(attempt=1, stage=IDLE)), ("lost", State(attempt=1, stage=DELETING))


@pytest.mark.parametrize(
  ("verbs_", "last", "command"),
  [
    (("adopt", "stop"), KEPT, "launch restart vit continues with its machines"),
    (("adopt", "restart", "stop"), UNSEEN, "vit-a1 may still exist. python -m launch down vit"),
    (("restart",), BETWEEN, "launch adopt vit"),
    (("restart",), GOING, "launch adopt vit"),
    (("stop",), BETWEEN, "launch down vit"),
    (("stop",), GOING, "launch down vit"),
  ],
)
def test_wrong_command_names_the_right_command(tmp_path, verbs_, last, command):
  make_event_log(tmp_path, last)
  for verb in verbs_:
    with pytest.raises(LaunchError, match=command) as error:
      run_verb(verb, "vit")
    assert "billed" not in str(error.value)


@pytest.mark.parametrize("verb", ["adopt", "restart", "stop"])
def test_ended_run_refers_to_the_same_command(tmp_path, verb):
  make_ended_event_log(tmp_path)
  with pytest.raises(LaunchError, match=r"vit has ended \(done\), and has no machines. The same command continues"):
    run_verb(verb, "vit")


def test_down_does_not_change_a_finished_run(tmp_path, capsys):
  before = make_ended_event_log(tmp_path).events
  assert run_verb("down", "vit", "--yes") == errors.DONE and EventLog("vit").events == before
  assert "ended with 0: done" in read_output(capsys, "status", "vit")


def test_down_without_a_lease_deletes_only_with_force(tmp_path, capsys):
  made = make_event_log(tmp_path)
  (tmp_path / "vit/launch/watcher.json").mkdir()  # the lease cannot be taken
  assert run_verb("down", "vit", "--yes") == errors.BILLING
  output = capsys.readouterr().out
  assert "Nothing is deleted" in output and "launch.worker stop" in output and "down vit --force" in output
  made.read()
  assert made.list_remaining() == [1]
  assert run_verb("down", "vit", "--yes", "--force") == errors.BILLING
  output = capsys.readouterr().out
  assert (
    "cannot be stopped" in output
    and "python -m launch down vit once more" in output
    and "all its machines are deleted" not in output
  )
  made.read()
  assert made.list_remaining() == [] and made.events[-1]["code"] == errors.BILLING


@pytest.mark.parametrize(
  ("state", "end"),
  [
    (make_end_state(44, "not finite", kept=True, unverified=(1,)), (44, "not finite")),
    (make_end_state(42, "stopped, its machines are kept", kept=True, unverified=(1,)), (0, "deleted by down")),
    (make_end_state(13, "could not be deleted", unverified=(1,)), (0, "deleted by down")),
  ],
)
def test_down_deletes_kept_machines_and_keeps_the_end_of_a_failure(tmp_path, state, end):
  make_event_log(tmp_path, ("end", state))
  assert run_verb("down", "vit", "--yes") == errors.DONE
  after = EventLog("vit")
  assert after.list_remaining() == [] and after.state.end == end and not after.state.unverified
  with pytest.raises(LaunchError, match="has no machines"):
    run_verb("stop", "vit")


def test_status_names_the_watcher_or_the_next_command(tmp_path, capsys):
  run = make_event_log(tmp_path).run
  text = read_output(capsys, "status", "vit")
  assert "vit  local 1  running" in text and "it has no watcher; continue with: python -m launch adopt vit" in text
  Lease(open_storage(run.folder), 60).take()
  assert "watched by process" in (text := read_output(capsys, "status", "vit")) and "no watcher" not in text


def test_ls_has_one_line_per_run_and_ended_runs_only_with_all(tmp_path, capsys):
  make_ended_event_log(tmp_path)
  make_event_log(tmp_path, name="open")
  make_event_log(tmp_path, ("deleted", State(attempt=1, stage=IDLE)), name="between")
  rows = read_output(capsys, "ls").splitlines()[1:-1]
  assert [row.split()[0] for row in rows] == ["between", "open-a1"] and "no machines" in rows[0]
  rows = read_output(capsys, "ls", "--all").splitlines()[1:-1]
  assert [row.split()[0] for row in rows] == ["between", "open-a1", "vit"] and "ended with 0" in rows[2]


@pytest.mark.parametrize("verb", ["ls", "gc"])
def test_commands_report_that_no_cloud_was_queried(verb, capsys):
  assert "no cloud service was queried. Add --project=" in read_output(capsys, verb)
  with pytest.raises(LaunchError, match="--zone: the project is missing"):
    run_verb(verb, "--zone=europe-west4-a")


def test_another_workdir_is_refused_and_not_changed(tmp_path):
  make_event_log(tmp_path, BETWEEN)
  (tmp_path / "other").mkdir()
  for verb in ("adopt", "stop", "down", "restart", "status"):
    with pytest.raises(
      LaunchError, match=f"vit on this machine is the run of {tmp_path}/vit, and .*/other has no run of that name"
    ):
      run_verb(verb, "vit", f"--workdir={tmp_path / 'other'}")
    with pytest.raises(LaunchError, match=r"--workdir: .*/other has no run nobody"):
      run_verb(verb, "nobody", f"--workdir={tmp_path / 'other'}")
  assert not [*(tmp_path / "other").iterdir()]


def test_name_of_a_sweep_lists_its_runs(tmp_path):
  for name in ("s-t00", "s-t01", "s-f00", "s-t", "sx-t00"):
    make_event_log(tmp_path, name=name)
  with pytest.raises(LaunchError, match=r"s is a sweep; its runs are s-f00, s-t00, s-t01$"):
    run_verb("status", "s")

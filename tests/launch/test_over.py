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


def book(tmp_path, *events, name="vit"):
  """A journal with one attempt, which these events follow: (event, state)."""
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


def done(code=0, text="done", **changes):
  return State(attempt=1, stage=OVER, end=(code, text), **changes)


def ended(tmp_path, *end):
  return book(tmp_path, ("deleted", State(attempt=1, stage=IDLE)), ("end", done(*end)))


def asked(verb, *words):
  args = flags.parse_flags([verb, *words])[0]
  return {"ls": listing.ls, "gc": listing.gc, "status": listing.status}.get(verb, getattr(commands, verb, None))(args)


def read_output(capsys, verb, *words):
  asked(verb, *words)
  return capsys.readouterr().out


KEPT = "end", done(42, "stopped", kept=True, unverified=(1,))
UNSEEN = "end", done(13, "not seen", unverified=(1,))
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
def test_what_does_not_fit_a_run_names_the_command_that_does(tmp_path, verbs_, last, command):
  book(tmp_path, last)
  for verb in verbs_:
    with pytest.raises(LaunchError, match=command) as error:
      asked(verb, "vit")
    assert "billed" not in str(error.value)


@pytest.mark.parametrize("verb", ["adopt", "restart", "stop"])
def test_a_run_that_is_over_is_given_again_by_its_own_command(tmp_path, verb):
  ended(tmp_path)
  with pytest.raises(LaunchError, match=r"vit has ended \(done\), and has no machines. The same command continues"):
    asked(verb, "vit")


def test_down_lets_a_run_that_is_done_be_done(tmp_path, capsys):
  before = ended(tmp_path).events
  assert asked("down", "vit", "--yes") == errors.DONE and EventLog("vit").events == before
  assert "ended with 0: done" in read_output(capsys, "status", "vit")


def test_down_that_cannot_tell_who_watches_deletes_and_does_not_say_that_all_is_well(tmp_path, capsys):
  made = book(tmp_path)
  (tmp_path / "vit/launch/watcher.json").mkdir()  # the lease cannot be taken
  assert asked("down", "vit", "--yes") == errors.BILLING
  output = capsys.readouterr().out
  assert "Nothing is deleted" in output and "launch.worker stop" in output and "down vit --force" in output
  made.read()
  assert made.list_remaining() == [1]
  assert asked("down", "vit", "--yes", "--force") == errors.BILLING
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
    (done(44, "not finite", kept=True, unverified=(1,)), (44, "not finite")),
    (done(42, "stopped, its machines are kept", kept=True, unverified=(1,)), (0, "deleted by down")),
    (done(13, "could not be deleted", unverified=(1,)), (0, "deleted by down")),
  ],
)
def test_down_deletes_what_was_kept_and_the_end_says_how_it_ended(tmp_path, state, end):
  book(tmp_path, ("end", state))
  assert asked("down", "vit", "--yes") == errors.DONE
  after = EventLog("vit")
  assert after.list_remaining() == [] and after.state.end == end and not after.state.unverified
  with pytest.raises(LaunchError, match="has no machines"):
    asked("stop", "vit")


def test_status_says_who_watches_or_that_nobody_does_and_what_to_do(tmp_path, capsys):
  run = book(tmp_path).run
  text = read_output(capsys, "status", "vit")
  assert "vit  local 1  running" in text and "it has no watcher; continue with: python -m launch adopt vit" in text
  Lease(open_storage(run.folder), 60).take()
  assert "watched by process" in (text := read_output(capsys, "status", "vit")) and "no watcher" not in text


def test_ls_has_one_line_for_a_run_and_those_that_are_over_only_if_asked(tmp_path, capsys):
  ended(tmp_path)
  book(tmp_path, name="open")
  book(tmp_path, ("deleted", State(attempt=1, stage=IDLE)), name="between")
  rows = read_output(capsys, "ls").splitlines()[1:-1]
  assert [row.split()[0] for row in rows] == ["between", "open-a1"] and "no machines" in rows[0]
  rows = read_output(capsys, "ls", "--all").splitlines()[1:-1]
  assert [row.split()[0] for row in rows] == ["between", "open-a1", "vit"] and "ended with 0" in rows[2]


@pytest.mark.parametrize("verb", ["ls", "gc"])
def test_where_no_cloud_was_asked_it_is_said(verb, capsys):
  assert "no cloud service was queried. Add --project=" in read_output(capsys, verb)
  with pytest.raises(LaunchError, match="--zone: the project is missing"):
    asked(verb, "--zone=europe-west4-a")


def test_a_workdir_that_is_not_the_run_s_is_refused_and_stays_as_it_is(tmp_path):
  book(tmp_path, BETWEEN)
  (tmp_path / "other").mkdir()
  for verb in ("adopt", "stop", "down", "restart", "status"):
    with pytest.raises(
      LaunchError, match=f"vit on this machine is the run of {tmp_path}/vit, and .*/other has no run of that name"
    ):
      asked(verb, "vit", f"--workdir={tmp_path / 'other'}")
    with pytest.raises(LaunchError, match=r"--workdir: .*/other has no run nobody"):
      asked(verb, "nobody", f"--workdir={tmp_path / 'other'}")
  assert not [*(tmp_path / "other").iterdir()]


def test_a_sweep_s_name_says_its_runs(tmp_path):
  for name in ("s-t00", "s-t01", "s-f00", "s-t", "sx-t00"):
    book(tmp_path, name=name)
  with pytest.raises(LaunchError, match=r"s is a sweep; its runs are s-f00, s-t00, s-t01$"):
    asked("status", "s")

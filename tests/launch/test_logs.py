"""Tests of the logs of all workers in one stream."""

import pytest

from launch import flags, logs, spec
from launch.errors import LaunchError
from launch.event_log import EventLog
from launch.mailbox import Mailbox
from launch.states import State
from launch.storage import open_storage


@pytest.fixture
def files(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
  run = spec.check_and_complete(spec.Run("vit", "local", "m", ("--workdir=x",), str(tmp_path / "run"), processes=2))
  book = EventLog("vit")
  book.append("run", State(), run=run.dumps())
  book.append("intent", State(attempt=1))
  return Mailbox(open_storage(run.folder), 1)


def printed(capsys, *words):
  assert logs.logs(flags.parse_flags(["logs", "vit", *words])[0]) == 0
  return capsys.readouterr().out.splitlines()


def test_lines_name_their_worker_and_are_in_order_of_time(files, capsys):
  files.write_log(1, 0, b"one\ntwo\n")
  files.write_log(0, 0, b"three\n")
  files.write_log(1, 1, b"four")
  assert printed(capsys) == ["[w01] one", "[w01] two", "[w00] three", "[w01] four"]


def test_line_in_two_pieces_is_joined(files, capsys):
  for piece, content in enumerate((b"step 1\nst", b"ep 2\n", "schön".encode()[:4], "schön".encode()[4:])):
    files.write_log(0, piece, content)
  assert printed(capsys) == ["[w00] step 1", "[w00] step 2", "[w00] schön"]


def test_worker_and_grep_select_lines(files, capsys):
  files.write_log(0, 0, b"loss 1\nacc 2\n")
  files.write_log(1, 0, b"loss 3\n")
  assert printed(capsys, "-w", "0", "--grep=loss") == ["[w00] loss 1"]


def test_control_characters_are_replaced(files, capsys):
  files.write_log(0, 0, b"\x1b[2J\x07ok\xff\r\n")
  assert printed(capsys) == ["[w00] \ufffd[2J\ufffdok\ufffd"]


@pytest.mark.parametrize("worker", ["2", "-1", "x", ""])
def test_unknown_worker_is_refused(files, worker):
  with pytest.raises(LaunchError, match="allowed: all, 0 to 1"):
    logs.logs(flags.parse_flags(["logs", "vit", f"--worker={worker}"])[0])


def test_unknown_attempt_is_refused_with_the_known_attempts(files):
  with pytest.raises(LaunchError, match="--attempt: 9; allowed: 1"):
    logs.logs(flags.parse_flags(["logs", "vit", "--attempt=9"])[0])


def test_attempt_without_output_names_the_status_command(files, capsys):
  logs.logs(flags.parse_flags(["logs", "vit"])[0])
  assert "launch status vit" in capsys.readouterr().err

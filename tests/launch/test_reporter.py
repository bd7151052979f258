"""Tests of the thread that exchanges reports, pieces of a log, and orders."""

import contextlib
import os
import threading
import time

import pytest

from launch import executor, mailbox, storage
from launch.errors import LaunchError
from launch.program import WorkerLog


@pytest.fixture
def letters(tmp_path):
  log = WorkerLog(tmp_path / "log")
  log.hide(["a-long-secret"])
  files = mailbox.Mailbox(storage.open_storage(str(tmp_path / "run")), 1)
  with contextlib.closing(executor.Reporter(files, mailbox.WorkerReport(2), 30.0, log)) as letters:
    letters.log = log
    yield letters


def test_new_phase_is_sent_at_once_and_progress_with_the_beat(letters):
  letters.update(phase=mailbox.READY, detail="with a-long-secret")
  assert letters.flush(5)
  report, _ = letters.mailbox.read_report(2)
  assert (report.phase, report.detail) == (mailbox.READY, "with ***")
  assert abs(report.clock - time.time()) < 5
  letters.update(step=7)
  time.sleep(0.1)
  assert letters.mailbox.read_report(2)[0].step == -1
  assert letters.flush(5) and letters.mailbox.read_report(2)[0].step == 7


def test_reports_hide_secrets(letters):
  letters.update(detail="with a-long-secret", doing=f"{'x' * 95} a-long-secret", tail="a-long-secret!")
  assert letters.flush(5)
  report, _ = letters.mailbox.read_report(2)
  assert (report.detail, report.doing, report.tail) == ("with ***", f"{'x' * 95} ***", "***!")


def test_order_is_read_with_each_report(letters):
  letters.mailbox.write_order(mailbox.Order(4, stop=True))
  assert letters.flush(5)
  assert letters.order == mailbox.Order(4, stop=True)
  letters.mailbox.storage.write("a1/order.json", b"{")
  letters.update(phase=mailbox.EXITED, exit=3)
  assert letters.flush(5)  # an unreadable order does not delay reports
  assert letters.order == mailbox.Order(4, stop=True) and "not in the format of `launch`" in letters.trouble
  assert letters.mailbox.read_report(2)[0].exit == 3


def test_log_is_sent_before_the_report_of_its_end(letters):
  letters.log.write("the last line with a-long-secret")
  letters.update(phase=mailbox.EXITED)
  assert letters.flush(5)
  names = letters.mailbox.list_pieces(2)
  pieces = [letters.mailbox.storage.read(name).content for name in names]
  assert b"the last line with ***\n" in b"".join(pieces)
  run = letters.mailbox.storage
  assert os.stat(run._folder / names[-1]).st_mtime_ns <= os.stat(run._folder / "a1/w02.json").st_mtime_ns


def test_error_in_the_thread_is_reported(tmp_path, letters, monkeypatch):
  letters.check()
  monkeypatch.setattr(threading, "excepthook", lambda _: None)  # the default hook would print the error
  letters.log.read_piece = None
  letters.update(phase=mailbox.RUNNING)
  assert not letters.flush(5)
  with pytest.raises(LaunchError, match=r"worker\.txt"):
    letters.check()
  letters.update(phase=mailbox.ENDED, detail="cannot go on")
  assert not letters.flush(5)
  assert letters.mailbox.read_report(2)[0].detail == "cannot go on"


def test_pieces_continue_existing_numbers(tmp_path, letters):
  letters.flush(5)
  here = storage.open_storage(str(tmp_path / "other"))
  mailbox.Mailbox(here, 1).write_log(0, 41, b"of a life before")
  here.write("a1/log/w00.9z", b"of nobody")
  log = WorkerLog(tmp_path / "second")
  log.write("on")
  with contextlib.closing(executor.Reporter(mailbox.Mailbox(here, 1), mailbox.WorkerReport(0), 30.0, log)) as second:
    assert second.flush(5)
    assert [name[-5:] for name in second.mailbox.list_pieces(0)] == ["00041", "00042"]

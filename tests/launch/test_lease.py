"""One watches a run at a time."""

import json
import os
import subprocess
import sys
import time

import pytest

from launch import mailbox
from launch.errors import LaunchError, UnknownError
from launch.mailbox import FILE, Lease, LeaseHeldError
from launch.storage import Disk, open_storage


@pytest.fixture
def folder(tmp_path):
  return open_storage(str(tmp_path))


def test_a_second_one_is_told_who_watches_until_the_first_gives_back(folder):
  first, second = Lease(folder, 60), Lease(folder, 60)
  assert second.holder() == ""
  first.take()
  assert second.holder().startswith(f"process {os.getpid()} on")
  with pytest.raises(LeaseHeldError, match=f"watched by process {os.getpid()} on"):
    second.take()
  first.give_back()
  assert second.holder() == ""
  second.take()
  with pytest.raises(LeaseHeldError, match="this one ends"):
    first.renew()
  assert second.renew()


def test_25_one_that_takes_by_force_ends_the_other(folder):
  first, second = Lease(folder, 60), Lease(folder, 60)
  first.take()
  second.take(force=True)
  assert second.renew()
  with pytest.raises(LeaseHeldError):
    first.renew()


def test_one_that_is_not_renewed_is_free_after_its_duration(folder, monkeypatch):
  monkeypatch.setattr(mailbox.socket, "gethostname", lambda: "elsewhere")
  Lease(folder, 0.2).take()
  monkeypatch.undo()
  other = Lease(folder, 0.2)
  with pytest.raises(LeaseHeldError, match="elsewhere"):
    other.take()
  time.sleep(0.3)
  other.take()
  assert other.renew()


@pytest.mark.heavy
def test_one_of_a_process_of_this_machine_that_was_killed_is_free_at_once(folder, tmp_path):
  code = "import sys, time; from launch.mailbox import *; from launch.storage import open_storage; "
  code += f"Lease(open_storage({str(tmp_path)!r}), 1000).take(); print('held', flush=True); time.sleep(60)"
  process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
  assert process.stdout.readline() == "held\n"
  with pytest.raises(LeaseHeldError):
    Lease(folder, 1000).take()
  process.kill()
  process.wait()
  process.stdout.close()
  Lease(folder, 1000).take()


class Away(Disk):
  """A folder that does not answer while `away`."""

  away = False

  def write(self, *arguments):
    if self.away:
      raise UnknownError("no answer")
    return super().write(*arguments)


def test_a_folder_that_is_away_is_waited_for_half_of_the_duration(tmp_path):
  folder = Away(str(tmp_path))
  held = Lease(folder, 0.6)
  held.take()
  folder.away = True
  assert held.renew()
  time.sleep(0.35)
  assert not held.renew()
  folder.away = False
  assert held.renew()


@pytest.mark.parametrize("content", [b"", b"null", b"[1]", b"\xff", json.dumps({"host": 1, "process": 2}).encode()])
def test_a_file_that_says_nothing_is_held_by_nobody_known_until_it_is_old(folder, content):
  folder.write(FILE, content)
  with pytest.raises(LaunchError, match="the run is watched by"):
    Lease(folder, 60).take()
  time.sleep(0.02)
  Lease(folder, 0.01).take()

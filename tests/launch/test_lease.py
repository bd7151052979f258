"""Tests of the lease, which allows one watcher per run."""

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


def test_second_watcher_is_refused_until_the_first_releases_the_lease(folder):
  first, second = Lease(folder, 60), Lease(folder, 60)
  assert second.describe_holder() == ""
  first.take()
  assert second.describe_holder().startswith(f"process {os.getpid()} on")
  with pytest.raises(LeaseHeldError, match=f"watched by process {os.getpid()} on"):
    second.take()
  first.give_back()
  assert second.describe_holder() == ""
  second.take()
  with pytest.raises(LeaseHeldError, match="this one ends"):
    first.renew()
  assert second.renew()


def test_forced_lease_ends_the_other_watcher(folder):
  first, second = Lease(folder, 60), Lease(folder, 60)
  first.take()
  second.take(force=True)
  assert second.renew()
  with pytest.raises(LeaseHeldError):
    first.renew()


def test_lease_without_renewal_is_free_after_its_duration(folder, monkeypatch):
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
def test_lease_of_a_killed_local_process_is_free_at_once(folder, tmp_path):
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
  """A folder that does not respond if `away` is True."""

  away = False

  def write(self, *arguments):
    if self.away:
      raise UnknownError("no answer")
    return super().write(*arguments)


def test_unreachable_folder_is_waited_for_half_of_the_duration(tmp_path):
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
def test_unreadable_lease_is_held_until_it_expires(folder, content):
  folder.write(FILE, content)
  with pytest.raises(LaunchError, match="the run is watched by"):
    Lease(folder, 60).take()
  time.sleep(0.02)
  Lease(folder, 0.01).take()

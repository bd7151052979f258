"""Tests of the engine for workers on this machine."""

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest

from launch import hosts, mailbox, service, spec, states
from launch.errors import LaunchError
from tests.launch.workers import Lab, zombies

pytestmark = pytest.mark.heavy
WAIT = "print('waits', flush=True); time.sleep(60)"


@pytest.fixture
def lab(tmp_path, monkeypatch):
  with Lab(tmp_path, WAIT, processes=2) as lab:
    monkeypatch.setenv("XDG_STATE_HOME", str(lab.state))
    monkeypatch.chdir("/")  # workers do not depend on the current directory of `launch`
    yield lab


def find_process(lab, number):
  return service.Service(f"vit-a1-w{number:02d}", lab.state / "vit_jax/launch").process()


def test_workers_are_created_once_observed_and_deleted(lab):
  made = hosts.Engine(lab.run)
  assert made.look(1) == states.MachineStatus(states.ABSENT)
  made.delete(1)  # no workers exist yet
  made.create(1, lab.attempt.expires)
  made.create(1, lab.attempt.expires)
  assert made.look(1) == states.MachineStatus(states.READY, hosts=2)
  assert made.look(2).state == states.ABSENT
  for number in range(2):
    lab.wait(lambda _, number=number: "waits" in lab.text(number), number)
  assert len(lab.programs()) == 2
  (one,), silent = made.list_resources(())
  assert (one.name, one.run, one.attempt, one.state, silent) == ("vit-a1", "vit", 1, states.READY, {})
  assert (one.owner, one.expires, one.kind) == (lab.run.owner, lab.attempt.expires, "2 processes")
  made.delete(1)
  assert made.look(1).state == states.ABSENT and made.list_resources(()) == ([], {})
  assert not lab.programs() and not zombies()
  assert [lab.report(number).exit for number in range(2)] == [143, 143]


@pytest.mark.long
def test_dead_worker_is_a_lost_machine(lab):
  made = hosts.Engine(lab.run)
  made.create(1, 0)
  lab.wait(lambda _: "waits" in lab.text())
  os.kill(find_process(lab, 1), signal.SIGKILL)
  deadline = time.monotonic() + 10
  while (look := made.look(1)).state == states.READY:
    assert time.monotonic() < deadline
  assert (look.state, look.hosts) == (states.LOST, 1)
  assert "worker 1" in look.detail
  made.delete(1)
  assert made.look(1).state == states.ABSENT and not lab.programs()


@pytest.mark.long
def test_workers_that_end_by_themselves_are_absent(lab):
  made = hosts.Engine(lab.run)
  lab.mailbox.publish(dataclasses.replace(lab.attempt, expires=int(time.time()) + 3))
  made.create(1, 0)
  lab.wait(mailbox.ENDED)
  lab.wait(mailbox.ENDED, 1)
  deadline = time.monotonic() + 10
  while made.look(1).state != states.ABSENT:
    assert time.monotonic() < deadline


@pytest.mark.long
def test_printed_command_deletes_the_workers(lab):
  made = hosts.Engine(lab.run)
  made.create(1, 0)
  result = subprocess.run(["sh", "-c", made.build_commands(1, 0).delete], capture_output=True, text=True, timeout=30)
  assert result.returncode == 0, result
  assert made.look(1).state == states.ABSENT
  assert made.build_shell_command(1, 0, ["a b", "c"]) == ["a b", "c"] and made.build_shell_command(1, 0, [])


@pytest.mark.long
def test_only_services_of_the_same_directory_are_removed(lab):
  made = hosts.Engine(lab.run)
  made.create(1, 0)
  (found,), _ = made.list_resources(())
  made.delete(dataclasses.replace(found, mark=spec.compute_label("/another")))
  assert made.look(1).state == states.READY
  made.delete(found)
  assert made.look(1).state == states.ABSENT and not lab.programs()


def test_unpublished_attempt_and_relative_workdir_are_reported(lab, tmp_path):
  lab.storage.delete("a1/spec.json")
  with pytest.raises(LaunchError, match="there is no attempt 1"):
    hosts.Engine(lab.run).create(1, 0)
  relative = spec.check_and_complete(spec.Run("vit", "local", "job", ("--workdir=runs/a",), "runs/a"))
  with pytest.raises(LaunchError, match=f"'runs/a' is relative.*{os.getcwd()}"):
    hosts.Engine(relative)
  assert sys.executable

"""Tests of workers on hosts behind ssh. A replacement of ssh runs the remote command in a separate home."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from launch import hosts, mailbox, service, spec, states
from launch.errors import LaunchError, UnknownError
from tests.launch.workers import LIMITS, Lab

pytestmark = pytest.mark.heavy
WAIT = "print('waits', flush=True); time.sleep(60)"
# The arguments of ssh: options, host, and a command for the remote shell. The file `drops` breaks the connection after
SSH = """#!{python} -IS
import json, os, subprocess, sys
words = sys.argv[1:]
while words[0].startswith("-"):
  words = words[2:] if words[0] == "-o" else words[1:]
host, command = words[0], words[1] if len(words) > 1 else "exit 9"
with open("{folder}/asked", "a") as file:
  file.write(json.dumps(sys.argv) + "\\n")
if host in os.environ.get("SSH_AWAY", "").split():
  sys.exit(255)
home = "{folder}/" + host
os.makedirs(home, exist_ok=True)
greets = "vitjax-answer" in command
print(*["[] Welcome to " + host] * greets, flush=True, end="\\n" * greets)
code = subprocess.run(["bash", "-c", command], env={{k: v for k, v in os.environ.items() if k != "XDG_STATE_HOME"}} |
  {{"HOME": home}}, cwd=home).returncode
drops = "{folder}/drops"
if os.path.exists(drops):
  os.unlink(drops)
  sys.exit(255)
print(*["[]"] * greets, end="\\n" * greets)
sys.exit(255 if code < 0 else code)
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
  """Two hosts and a run on them."""
  ssh = tmp_path / "bin/ssh"
  ssh.parent.mkdir()
  ssh.write_text(SSH.format(python=sys.executable, folder=tmp_path))
  ssh.chmod(0o755)
  python = tmp_path / "bin/python3"
  python.symlink_to(sys.executable)
  monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
  monkeypatch.setattr(hosts, "DEADLINE", 30.0)
  changes = {"backend": "hosts", "hosts": ("alice@one", "two"), "python": sys.executable}
  with Lab(tmp_path, WAIT, **changes) as lab:
    lab.state = tmp_path
    yield lab


def is_alive(lab, host):
  return service.Service("vit-a1", lab.state / host / ".local/state/vit_jax/launch").is_alive()


@pytest.mark.long
def test_greeting_of_a_host_is_not_part_of_its_response(lab):
  made = hosts.Engine(lab.run)
  assert made.look(1).state == states.ABSENT and made.list_resources(()) == ([], {})
  with pytest.raises(UnknownError, match="expected a list of workers"):
    hosts.parse_services("Welcome\n[]", "one")
  assert hosts.parse_services('[{"run": "vit"}]\ngoodbye', "one") == [{"run": "vit"}]


def test_each_host_receives_the_package_and_one_worker(lab):
  made = hosts.Engine(lab.run)
  assert made.look(1).state == states.ABSENT
  made.create(1, 0)
  made.create(1, 0)
  assert made.look(1) == states.MachineStatus(states.READY, hosts=2)
  for number in range(2):
    lab.wait(lambda _, number=number: "waits" in lab.text(number), number)
  assert len(lab.programs()) == 2
  found, silent = made.list_resources(())
  assert [(each.name, each.location, each.state) for each in found] == [
    ("vit-a1", "alice@one", states.READY), ("vit-a1", "two", states.READY)]  # fmt: skip
  assert not silent
  (package,) = (lab.state / "two/.local/state/vit_jax/launch/package").iterdir()
  assert (package / "launch/worker.py").read_bytes() == pathlib.Path(service.ROOT, "launch/worker.py").read_bytes()
  made.delete(1)
  assert made.look(1).state == states.ABSENT and not lab.programs()
  asked = [json.loads(line) for line in (lab.state / "asked").read_text().splitlines()]
  assert all(words[-1].endswith("; exit $?") and "BatchMode=yes" in words for words in asked)


@pytest.mark.long
def test_lost_connection_after_the_command_starts_no_second_worker(lab):
  made = hosts.Engine(lab.run)
  (lab.state / "drops").touch()
  with pytest.raises(UnknownError, match=r"one|two"):
    made.create(1, 0)
  made.create(1, 0)
  assert made.look(1).state == states.READY
  for number in range(2):
    lab.wait(lambda _, number=number: "waits" in lab.text(number), number)
    assert lab.text(number).count("try 1 of") == 1
  assert len(lab.programs()) == 2
  result = subprocess.run(["sh", "-c", made.build_commands(1, 0).delete], capture_output=True, text=True, timeout=60)
  assert result.returncode == 0, result
  assert not is_alive(lab, "alice@one") and not is_alive(lab, "two")


@pytest.mark.long
def test_unreachable_host_is_unknown_and_a_dead_worker_is_lost(lab, monkeypatch):
  made = hosts.Engine(lab.run)
  made.create(1, 0)
  lab.wait(mailbox.RUNNING)
  monkeypatch.setenv("SSH_AWAY", "two")
  for call in (made.look, made.delete):
    with pytest.raises(UnknownError, match="two: ssh did not answer"):
      call(1)
  _, silent = made.list_resources(())
  assert list(silent) == ["two"]
  monkeypatch.delenv("SSH_AWAY")
  made.create(1, 0)  # `delete` had reached the first host
  os.kill(service.Service("vit-a1", lab.state / "two/.local/state/vit_jax/launch").process(), 9)
  look = made.look(1)
  assert look.state == states.LOST and "worker 1" in look.detail
  made.delete(1)
  assert made.look(1).state == states.ABSENT and not lab.programs()


def test_words_reach_a_shell_unchanged_and_return_its_code(lab):
  made = hosts.Engine(lab.run)
  words = ["printf", "%s|", "a b", "$(id)", "'\"", "-x", "ä\n", ""]
  result = subprocess.run(made.build_shell_command(1, 1, words), capture_output=True, text=True)
  assert result.stdout == "a b|$(id)|'\"|-x|ä\n||"
  killed = subprocess.run(made.build_shell_command(1, 1, ["sh", "-c", "kill -9 $$"]))
  assert killed.returncode == 137  # instead of 255, which means unknown


def test_workdir_that_hosts_cannot_share_is_refused(lab):
  with pytest.raises(LaunchError, match=r"'runs/a' is relative"):
    hosts.Engine(spec.check_and_complete(spec.Run("vit", "hosts", "job", (), "runs/a", hosts=("one",))))
  with pytest.raises(LaunchError, match="Name each host once"):
    hosts.Engine(spec.check_and_complete(spec.Run("vit", "hosts", "job", (), "/x", hosts=("one", "one"))))
  elsewhere = spec.check_and_complete(spec.Run("vit", "hosts", "job", (), "/no/such", hosts=("one",), limits=LIMITS))
  with pytest.raises(LaunchError, match=r"one: .*there is no attempt 1 in the run's directory"):
    hosts.Engine(elsewhere).create(1, 0)


def test_package_is_the_same_for_the_same_files():
  first = hosts.get_package()
  hosts.get_package.cache_clear()
  assert hosts.get_package() == first and len(first) < 200_000

"""Tests of a unit's lock, of its description, and of the state of an attempt."""

import fcntl
import os
import pathlib
import subprocess
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch import hosts, service, spec, states
from launch.errors import LaunchError, UnknownError
from launch.service import Service
from tests.launch.systemd import expanded


def test_lock_is_held_by_one_process_despite_concurrent_looks(tmp_path):
  one = Service("vit-a1", tmp_path)
  assert not one.is_alive() and one.process() == 0
  looking, stop = [], threading.Event()

  def look():
    while not stop.is_set():
      looking.append(one.is_alive())

  threads = [threading.Thread(target=look) for _ in range(2)]
  (one.folder).mkdir(parents=True)
  for thread in threads:
    thread.start()
  try:
    for _ in range(20):  # a look holds the lock for a moment, which does not prevent other processes from taking it
      held = one.lock()
      assert held and one.is_alive() and one.process() == os.getpid()
      one._held.close()
  finally:
    stop.set()
    for thread in threads:
      thread.join()
  assert one.lock() and not Service("vit-a1", tmp_path).lock()
  one._held.close()
  assert True in looking


def test_reused_process_number_receives_no_signal(tmp_path):
  one = Service("vit-a1", tmp_path)
  other = subprocess.Popen(["sleep", "60"])
  try:
    one.folder.mkdir(parents=True)
    with open(one.folder / "lock", "w") as file:
      file.write(f"{other.pid} 12345")  # the number is of an earlier boot
      file.flush()
      fcntl.flock(file, fcntl.LOCK_EX)
      assert one.is_alive() and one.process() == 0 and not one.ask()
    assert other.poll() is None
  finally:
    other.kill()
    other.wait()


def test_service_is_listed_until_it_is_forgotten(tmp_path):
  one = Service("vit-a1-w00", tmp_path)
  assert one.about is None
  one.describe(
    {"run": "vit", "attempt": 1, "worker": 0, "engine": "local", "folder": "/x", "owner": "me", "expires": 9}
  )
  Service("b-a1", tmp_path).describe({"run": "b", "attempt": 1, "worker": 0, "engine": "hosts", "folder": "/x"})
  (found,) = service.list_services(tmp_path, "local")
  assert found["run"] == "vit" and not found["alive"] and abs(found["made"] - time.time()) < 60
  (resource,) = hosts.make_resources([found], "here")
  assert (resource.name, resource.state, resource.expires) == ("vit-a1", states.LOST, 9)
  assert abs(resource.created - time.time()) < 60 and resource.mark == spec.compute_label("/x")
  (one.folder / "about.json").write_text("{")
  assert one.about is None and service.list_services(tmp_path, "local") == []
  one.forget()
  one.forget()


@pytest.mark.parametrize(
  "alive, state",
  [({}, states.ABSENT), ({0: True, 1: True}, states.READY), ({0: True}, states.LOST), ({0: 0, 1: 1}, states.LOST)],
)
def test_attempt_is_ready_while_all_services_are_alive(alive, state, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
  run, held = spec.check_and_complete(spec.Run("vit", "local", "job", (), "/x", processes=2)), []
  for worker, value in alive.items():
    name = service.name_service("vit", 1, "local", worker)
    held.append(Service(name, service.get_default_home()))
    about = {"run": "vit", "attempt": 1, "worker": worker, "engine": "local"}
    held[-1].describe(about | {"folder": run.folder})
    assert not value or held[-1].lock()
    Service(f"vit-a2-w{worker:02d}", service.get_default_home()).describe(about | {"attempt": 2, "folder": "/y"})
  look = hosts.Engine(run).look(1)
  assert (look.state, look.hosts) == (state, sum(map(bool, alive.values())))


def test_services_of_an_attempt_are_found_by_name(tmp_path):
  made = ("vit-a1-w00", "vit-a1-w01", "vit-a10-w00", "vit-a1", "vit-a1-w", "a-vit-a1-w00", "vit-a2", "vit.a1")
  for name in made:
    (tmp_path / "units" / name).mkdir(parents=True)
  found = lambda *words: [each.folder.name for each in service.find_services(tmp_path, *words)]  # noqa: E731
  assert found("vit", 1, "local") == ["vit-a1-w00", "vit-a1-w01"] and found("vit", 1, "local", 1) == ["vit-a1-w01"]
  assert found("vit", 1, "hosts") == found("vit", 1, "qr", 3) == ["vit-a1"] and found("v", 1, "hosts") == []


def test_default_home_exists_in_every_environment(monkeypatch):
  monkeypatch.setenv("XDG_STATE_HOME", "/s")
  assert service.get_default_home() == pathlib.Path("/s/vit_jax/launch")
  monkeypatch.delenv("XDG_STATE_HOME")
  monkeypatch.setenv("HOME", "/h")
  assert service.get_default_home() == pathlib.Path("/h/.local/state/vit_jax/launch")
  monkeypatch.setattr(pathlib.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
  assert service.get_default_home().is_absolute()


@pytest.mark.heavy
def test_worker_that_ends_at_once_is_reported(tmp_path):
  with pytest.raises(LaunchError, match=r"vitjax-vit-a1 ended at once: .*arguments: --nonsense.*worker\.txt"):
    Service("vit-a1", tmp_path).start(["--nonsense"], 1.0)


DOLLARS = [
  "${HOME}",
  "$HOME",
  "$$",
  "$",
  "$WORDS",
  "--folder=gs://b/${HOME}/$x",
  "100%",
  "%h",
  "%%",
  "a b",
  "",
  "$$$HOME",
]


@given(st.lists(st.sampled_from(DOLLARS) | st.text("$%{}HOME ab", max_size=12), max_size=5))
def test_dollar_and_percent_signs_survive_systemd(words):
  run = ["/usr/bin/python3", "-m", "launch.worker", "run", *words]
  made = service.build_command("vitjax-a-a1", run, 30.0)
  assert expanded(made[made.index("/usr/bin/python3") :]) == run
  assert made[: made.index("/usr/bin/python3")].count("--unit=vitjax-a-a1") == 1


def test_expansion_matches_the_manual_of_systemd():
  """Uses the examples of systemd.service(5), COMMAND LINES, with ONE='one' and TWO='two two'."""
  variables = {"ONE": "one", "TWO": "two two"}
  assert expanded(["/bin/echo", "$ONE", "$TWO", "${TWO}"], variables) == ["/bin/echo", "one", "two", "two", "two two"]
  assert expanded(["/bin/echo", "$$ONE", "$$$$", "a$ONE", "${NONE}x"], variables)[1:] == ["$ONE", "$$", "a$ONE", "x"]


@pytest.mark.parametrize("name", ["lock", "about.json"])
def test_unreadable_file_is_unknown_and_not_absent(tmp_path, name):
  """Replaces the file with a directory, because root can read all other files."""
  one = Service("vit-a1", tmp_path)
  one.describe({"run": "vit", "attempt": 1, "engine": "local"})
  (one.folder / name).unlink(missing_ok=True)
  (one.folder / name).mkdir()
  with pytest.raises(UnknownError, match=name):
    service.list_services(tmp_path, "local")
  assert (
    service.list_services(tmp_path / "none", "local") == service.list_services(one.folder / name / "x", "local") == []
  )


@pytest.mark.parametrize("place", ["starting", "worker.txt"])
def test_start_that_cannot_write_is_unknown(tmp_path, place):
  one = Service("vit-a1", tmp_path)
  (one.folder / place).mkdir(parents=True)
  with pytest.raises(UnknownError, match=place):
    one.start([], 1.0)


@pytest.mark.parametrize("script", [None, "not a program", "#!/no/such/interpreter\n"])
def test_systemd_that_cannot_be_run_is_unknown(tmp_path, monkeypatch, script):
  monkeypatch.setattr(service, "SYSTEMD", tmp_path)
  monkeypatch.setattr(os, "geteuid", lambda: 0)
  monkeypatch.setenv("PATH", str(tmp_path))
  if script:
    for name in ("systemctl", "systemd-run"):
      (tmp_path / name).write_text(script)
      (tmp_path / name).chmod(0o755)
  one = Service("vit-a1", tmp_path)
  for call in (lambda: one.start([], 1.0), one.ask, lambda: one.stop(0.1)):
    with pytest.raises(UnknownError, match="cannot be run"):
      call()


def test_systemd_without_a_response_is_unknown(tmp_path, monkeypatch):
  monkeypatch.setattr(service, "SYSTEMD", tmp_path)
  monkeypatch.setattr(service, "CALL", 0.2)
  (tmp_path / "systemctl").write_text("#!/bin/sh\nexec sleep 5\n")
  (tmp_path / "systemctl").chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
  with pytest.raises(UnknownError, match="systemctl did not answer"):
    Service("vit-a1", tmp_path).ask()

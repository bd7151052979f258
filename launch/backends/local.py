"""Runs on this machine: processes over loopback, each under a worker of its own."""

import os
import shlex
import socket
import subprocess
import sys
import time

from launch import engine, errors, event_log, render, service, spec
from launch.errors import LaunchError, UnknownError
from launch.worker import named

_DEADLINE = 60.0  # seconds for a worker to start


class Engine:
  """See `launch.engine.Engine`. Workers are in sessions of their own, and outlive `launch`."""

  def __init__(self, run: spec.Run):
    check_workdir(run)
    self._run, self._home = run, service.home()

  def location(self, attempt: int) -> str:
    """This machine."""
    return socket.gethostname()

  def request(self, attempt: int, expires: int) -> str:
    """See `launch.engine.Engine`. The units are inspected and stopped in this process, as these commands do it."""
    numbers = range(self._run.workers)
    look = [sys.executable, "-m", "launch.worker", "look", "--engine=local", f"--name={self._run.name}"]
    return render.script(
      ("in this directory", [["cd", str(service.ROOT)]]),
      ("create", [self._words("start", attempt, number) for number in numbers]),
      ("inspect", [[*look, f"--attempt={attempt}", f"--folder={_folder(self._run)}"]]),
      ("delete", [self._words("stop", attempt, number) for number in numbers]),
      (f"ssh: python -m launch ssh {self._run.name}", [self.shell(attempt, 0, [])]),
    )

  def create(self, attempt: int, expires: int) -> None:
    """Starts the workers that do not live, which read from the published attempt when they end."""
    starts = [subprocess.Popen(self._words("start", attempt, number), cwd=service.ROOT, stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
              for number in range(self._run.workers)]  # fmt: skip
    deadline, trouble = time.monotonic() + _DEADLINE, None
    for each in starts:
      try:
        said = each.communicate(timeout=max(1.0, deadline - time.monotonic()))[1].decode(errors="replace")
      except subprocess.TimeoutExpired:
        each.kill()
        each.communicate()
        trouble = trouble or UnknownError(f"a worker of this machine did not start within {_DEADLINE:.0f} s")
        continue
      if each.returncode == errors.UNKNOWN:
        trouble = trouble or UnknownError(said.strip())
      elif each.returncode:
        trouble = LaunchError(said.strip(), each.returncode)
    if trouble:
      raise trouble

  def look(self, attempt: int) -> engine.Look:
    """READY while all workers live, ABSENT when none was made, or all have ended by themselves."""
    mine = (self._run.name, attempt, _folder(self._run))
    found = {each.get("worker"): each for each in service.every(self._home, "local")
             if (each.get("run"), each.get("attempt"), each.get("folder")) == mine}  # fmt: skip
    return service.look(found, self._run.workers)

  def delete(self, attempt: int) -> None:
    """Stops the workers and their programs, which have `limits.grace` to save."""
    if self.look(attempt).state == engine.ABSENT:
      return
    units = [service.Service(named(self._run.name, attempt, number), self._home) for number in range(self._run.workers)]
    for each in units:
      each.ask()
    left = [each.name for each in units if not each.stop(self._run.limits.grace + 30)]
    if left:
      raise UnknownError(f"{', '.join(left)}: still there; the next look says more")
    for each in units:
      each.forget()

  def remove(self, resource: engine.Resource) -> None:
    """Stops the workers of a listed attempt; another run of its name in another folder is another machine's."""
    for each in service.every(self._home, "local"):
      if (each.get("run"), each.get("attempt"), each.get("owner")) == (resource.run, resource.attempt, resource.owner):
        found = service.Service(named(resource.run, resource.attempt, each["worker"]), self._home)
        if not found.stop(self._run.limits.grace + 30):
          raise UnknownError(f"{found.name}: still there")
        found.forget()

  def deletion(self, attempt: int) -> str:
    """Commands that stop the workers."""
    stops = (shlex.join(self._words("stop", attempt, number)) for number in range(self._run.workers))
    return f"cd {shlex.quote(str(service.ROOT))} && " + " && ".join(stops)

  def inventory(self, zones: tuple) -> tuple:
    """All attempts on this machine."""
    return tuple(service.resources(service.every(self._home, "local"), socket.gethostname())), {}

  def shell(self, attempt: int, worker: int, words: list) -> list:
    """The words themselves, for the workers are here."""
    return list(words) or [os.environ.get("SHELL", "/bin/sh")]

  def _words(self, verb, attempt, number):
    words = [
      sys.executable,
      "-m",
      "launch.worker",
      verb,
      "--engine=local",
      f"--attempt={attempt}",
      f"--worker={number}",
    ]
    if verb == "start":
      proof = [f"--proof={digest}"] if (digest := event_log.proof(self._run)) else []
      return [*words, f"--folder={_folder(self._run)}", "--patience=30", *proof]
    return [*words, f"--name={self._run.name}", f"--grace={self._run.limits.grace}"]


def _folder(run):
  return run.folder if run.folder.startswith("gs://") else os.path.abspath(run.folder)


def check_workdir(run: spec.Run) -> None:
  """LaunchError for a --workdir that would mean another folder to every process: each is in the folder of the code."""
  for path in {run.workdir, spec.workdir_of(run.args)} - {""}:
    if not path.startswith(("gs://", "/")):
      raise LaunchError(f"--workdir: {path!r} is relative, and the program runs in the folder of its code; write "
                        f"{os.path.abspath(path)}")  # fmt: skip

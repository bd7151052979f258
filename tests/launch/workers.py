"""Real workers of small programs: a run's directory with a bundle, worker processes, and their reports."""

import contextlib
import hashlib
import io
import os
import pathlib
import signal
import subprocess
import sys
import tarfile
import time

from launch import mailbox, program, service, spec, storage
from launch.errors import UnknownError

ROOT = pathlib.Path(__file__).parent.parent.parent
LIMITS = spec.Limits(
  beat=0.1, grace=2.0, idle=30.0, stall=60.0, install=20.0, start=20.0, silence=10.0
)  # fmt: skip
# Prints its arguments and variables, before the code of a test.
PROGRAM = """
import json, os, signal, subprocess, sys, time
print("argv", json.dumps(sys.argv[1:]), flush=True)
words = ("VITJAX_", "MEGASCALE_", "JAX_COORD", "TPU_", "JOB_", "HOME", "PYTHONUNB", "http")
print("variables", json.dumps({k: v for k, v in os.environ.items() if k.startswith(words)}), flush=True)
"""


def bundle(files: dict) -> bytes:
  """Returns a gzipped tar of {name: text}."""
  content = io.BytesIO()
  with tarfile.open(fileobj=content, mode="w:gz") as tar:
    for name, text in files.items():
      member = tarfile.TarInfo(name)
      member.size = len(text.encode())
      tar.addfile(member, io.BytesIO(text.encode()))
  return content.getvalue()


class Lab:
  """A run's directory and its workers. The context manager checks that no processes are left at its end.

  Args:
    folder: folder for the state of this machine.
    code: code of the module `job` after PROGRAM.
    workdir: workdir of the run.
    attempt: number of the attempt.
    expires: seconds until the attempt expires.
    limits: limits of the run.
    **changes: other changes of the run.
  """

  def __init__(self, folder, code="", workdir=None, attempt=1, expires=3600.0, limits=LIMITS, **changes):
    content = bundle({"job.py": PROGRAM + code})
    self.digest = hashlib.sha256(content).hexdigest()
    values = {"name": "vit", "backend": "local", "module": "job", "args": (), "workdir": str(workdir or folder / "run")}
    self.run = spec.check_and_complete(spec.Run(**values | changes, limits=limits))
    self.folder, self.state = self.run.folder, folder / "state"
    self.storage = storage.open_storage(self.folder)
    self.mailbox = mailbox.Mailbox(self.storage, attempt)
    self.storage.write(f"code/{self.digest}.tgz", content)
    self.attempt = mailbox.Attempt(self.run, attempt, self.digest, int(time.time() + expires))
    self.mailbox.publish(self.attempt)
    self.processes = []
    self.environment = {**os.environ, "XDG_STATE_HOME": str(self.state), "PYTHONPATH": str(ROOT)}

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
          process.wait(10)
        process.kill()
      process.wait()
      process.stdout.close()
    units = [service.Service(path.name, path.parent.parent) for path in self.state.rglob("units/*")]
    for each in units:
      each.stop(5.0)
    assert not program.kill_all(str(self.state)) and not any(each.is_alive() for each in units)

  def start(self, *words, verb="run", engine="local", worker=0, **variables):
    """Starts a worker process."""
    number = [] if worker is None else [f"--worker={worker}"]
    process = subprocess.Popen(
      [sys.executable, "-m", "launch.worker", verb, f"--folder={self.folder}", f"--engine={engine}", *number, *words],
      env={key: value for key, value in (self.environment | variables).items() if value is not None},
      cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    self.processes.append(process)
    return process

  def starts(self, count=None):
    """Starts all workers of the run."""
    return [self.start(worker=number) for number in range(count or self.run.workers)]

  def report(self, worker=0):
    """Returns the report of a worker."""
    with contextlib.suppress(UnknownError):
      if found := self.mailbox.read_report(worker):
        return found[0]
    return mailbox.WorkerReport(worker)

  def wait(self, reached, worker=0, seconds=20.0):
    """Waits until `reached` is true for the report of a worker, or until its phase, and returns the report."""
    deadline = time.monotonic() + seconds
    test = reached if callable(reached) else lambda report: report.phase == reached
    while not test(report := self.report(worker)):
      assert time.monotonic() < deadline, f"{report}\n{self.text(worker)}"
      time.sleep(0.05)
    return report

  def text(self, worker=0):
    """Returns the log of a worker from the run's directory."""
    pieces = (self.storage.read(name) for name in self.mailbox.list_pieces(worker))
    return b"".join(piece.content for piece in pieces).decode()

  def output(self, word, worker=0, count=1):
    """Waits until the program has printed `count` lines that start with a word, and returns the rest of these lines."""
    lines, deadline = [], time.monotonic() + 20
    while len(lines) < count:
      lines = [line.partition(" ")[2] for line in self.text(worker).splitlines() if line.startswith(word + " ")]
      assert time.monotonic() < deadline, self.text(worker)
      time.sleep(0.05)
    return lines

  def programs(self):
    """Returns the running processes of programs."""
    return program.find_marked(str(self.state))


def zombies():
  """Returns ended processes that a descendant of this process has started and not waited for."""
  parents, ended = {}, []
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):
      words = path.read_text().rpartition(")")[2].split()
      parents[int(path.parent.name)] = int(words[1])
      ended += [int(path.parent.name)] if words[0] == "Z" else []
  below = lambda number: number in parents and (parents[number] == os.getpid() or below(parents[number]))  # noqa: E731
  return [number for number in ended if parents[number] != os.getpid() and below(number)]


def kill(process):
  """Kills a worker, so that it cannot report."""
  os.kill(process.pid, signal.SIGKILL)
  process.wait()

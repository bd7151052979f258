"""The program of a try: a process with all that it starts, from its environment to the meaning of its end."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from launch import machine, storage
from launch.errors import LaunchError, UnknownError
from launch.spec import Run

STATUS = "VITJAX_STATUS"
HANG, PEER, KILLED = 43, 134, 137  # of the contract in docs/runs.md
_INHERITED = re.compile(r"(?!MEGASCALE_|VITJAX_|JAX_COORDINATOR_|LAUNCH_).*(?<!_proxy)", re.IGNORECASE | re.DOTALL)
_HELD = re.compile(r"^.*is held by process .*$", re.MULTILINE)
# Of Python's faulthandler, which exits with 1.
_STOOD_STILL = re.compile(r"^Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!$", re.MULTILINE)
_LONGEST = 10_000  # bytes of what a program says of its progress
_REAPED = 10.0  # seconds that killed processes have to vanish


def environment(
  run: Run, worker: int, engine: str, coordinator: str, status: pathlib.Path, folder: pathlib.Path, secrets: dict
) -> dict:
  """The variables of a program: those of this process, but none that another job or a proxy left; the run's; ours.

  Args:
    coordinator: HOST:PORT of worker 0.
    status: the file in which the program says its progress.
    folder: of the code.
    secrets: variables and their values.
  """
  values = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
  if engine != "gke":  # where the machines' own plugin sets them
    values = {name: value for name, value in values.items() if not name.startswith("TPU_")}
  values.setdefault("HOME", os.path.expanduser("~") if os.path.expanduser("~") != "~" else str(status.parent))
  values.setdefault("PATH", os.defpath)
  values |= run.env | secrets
  beside = values.get("PYTHONPATH")
  values |= {
    "VITJAX_COORDINATOR": coordinator,
    "VITJAX_PROCESSES": str(run.workers),
    "VITJAX_PROCESS": str(worker),
    STATUS: str(status),
    "PYTHONUNBUFFERED": "1",
    "PYTHONPATH": f"{folder}{os.pathsep}{beside}" if beside else str(folder),  # for processes that it starts elsewhere
  }
  if run.devices:
    values["VITJAX_DEVICES"] = str(run.devices)
  if run.slices > 1:  # as Ray and levanter set them
    host, hosts = coordinator.rpartition(":")[0], run.workers // run.slices
    values |= {
      "MEGASCALE_COORDINATOR_ADDRESS": f"{host}:{machine.SLICES_PORT}",
      "MEGASCALE_PORT": str(machine.SLICES_PORT),
      "MEGASCALE_NUM_SLICES": str(run.slices),
      "MEGASCALE_SLICE_ID": str(worker // hosts),
    }
  return values


def secrets(run: Run) -> dict:
  """The values of a run's secrets on this machine. LaunchError, UnknownError."""
  values = {}
  for name, source in run.secrets.items():
    if source.startswith("projects/"):
      values[name] = machine.secret(source)
    elif source.startswith("file:"):
      try:
        values[name] = pathlib.Path(source[5:]).read_text().rstrip("\n")
      except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise LaunchError(f"--secret: {name}={source} cannot be read on this host: {why}") from None
    elif name in os.environ:  # Kubernetes has set it
      values[name] = os.environ[name]
    else:
      raise LaunchError(f"--secret: {name}={source}: Kubernetes did not set it; is it in the manifest?")
    if "\0" in values[name]:
      raise LaunchError(f"--secret: the value of {name} has a zero byte, which no variable can have")
  return values


class Program:
  """A process in a group of its own: a resource. LaunchError where it cannot be started."""

  def __init__(self, words: list, folder: pathlib.Path, environment: dict, log: pathlib.Path):
    self._status, self._killed = pathlib.Path(environment[STATUS]), False
    self._ooms = machine.oom_kills()
    _removed(self._status)
    self.progress, self._said, self.moved = {}, {}, time.monotonic()
    name = words[0]
    if not shutil.which(name):
      raise LaunchError(f"{name} cannot be started: it is no program on this host")
    if path := shutil.which("setpriv"):  # of util-linux: so it ends with this process, also where that is killed
      # Popen's preexec_fn could do it too, and is not safe beside threads.
      words = [path, "--pdeathsig=KILL", "--", *words]
    try:
      with open(log, "ab") as file:
        self._process = subprocess.Popen(
          words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    except (OSError, ValueError) as error:
      raise LaunchError(f"{name} cannot be started: {getattr(error, 'strerror', None) or error}") from None
    self.asked = None  # when it was asked to stop

  def poll(self) -> "int | None":
    """Its exit code, as a shell says it; None while it runs."""
    code = self._process.poll()
    return code if code is None or code >= 0 else 128 - code

  def look(self) -> None:
    """Reads what it says of its progress into `progress`; a file that is none, or half of one, is nothing.

    Of `progress` are only "step", "began" (0 to 1e15, else -1) and "doing", a text.
    """
    try:
      said = json.loads(storage.regular(self._status, _LONGEST)[0])
    except (OSError, ValueError, RecursionError):
      return
    if isinstance(said, dict) and type(said.get("step")) is int and said != self._said:
      self._said, self.moved = said, time.monotonic()
      self.progress = {key: _step(said.get(key)) for key in ("step", "began")} | {"doing": _text(said.get("doing"))}

  def ask(self) -> None:
    """Asks it to stop, once. Not what it has started: its workers end with it, and not before."""
    if self.asked is None:
      self.asked = time.monotonic()
      with contextlib.suppress(ProcessLookupError):
        self._process.send_signal(signal.SIGTERM)

  def print_stacks(self) -> None:
    """Asks it for the stacks of its threads."""
    with contextlib.suppress(ProcessLookupError):
      self._process.send_signal(signal.SIGUSR2)

  def kill(self) -> None:
    """Ends it at once."""
    self._killed = self._process.poll() is None
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)

  def close(self) -> list:
    """Ends all that it has started, wherever; returns the processes that do not die."""
    if self._process.poll() is None:
      self.kill()
      self._process.wait()
    return end(str(self._status), os.getpid())

  def meaning(self, code: int, tail: str) -> tuple:
    """(exit code by the contract, what it means in words) of its end."""
    if self._killed and self.asked is not None:
      return code, "it did not end within limits.grace of SIGTERM, and was killed"
    if code == KILLED and machine.oom_kills() > self._ooms:
      return code, "killed for want of memory of the host; take fewer data workers, a smaller batch or larger hosts"
    if code == KILLED:
      return code, "killed by the system (SIGKILL)"
    if code == HANG and (held := _HELD.findall(tail)):
      return code, held[-1].strip()[:500]
    if code == 1 and _STOOD_STILL.search(tail):
      return HANG, "Python itself stood still; the stacks are in the log"
    return code, ""


def _step(value):
  return value if type(value) is int and 0 <= value < 1e15 else -1


def _text(value):
  """A text that a file can hold; "" for what is none."""
  return re.sub("[\ud800-\udc7f\udd00-\udfff]", "?", value) if isinstance(value, str) else ""


def _removed(path):
  """Deletes what a program has left: a file, a link or a directory. UnknownError if it cannot be deleted."""
  try:
    if path.is_dir() and not path.is_symlink():
      shutil.rmtree(path)
    else:
      path.unlink(missing_ok=True)
  except OSError as error:
    raise UnknownError(f"{error.filename or path}: {error.strerror}") from None


def end(mark: str, worker: int = 0) -> list:
  """Kills what programs have started, and waits for it; returns the processes that do not die.

  Args:
    mark: how the names of their status files begin, which tells them also where whoever started them was killed.
    worker: the process below which all of them are, orphans too, whatever their environment says; 0 for none.
  """
  deadline, clean = time.monotonic() + _REAPED, 0
  while clean < 2:  # what forks meanwhile may be missed once
    try:
      marked, below = _marked(mark), _below(worker) if worker else {}
    except OSError as error:  # too many open files, for a while
      if time.monotonic() > deadline:
        raise UnknownError(f"the processes of this host cannot be listed: {error.strerror}") from None
      time.sleep(0.01)
      continue
    for kill, numbers in ((os.kill, marked), (os.killpg, set(below.values()))):
      for number in numbers:
        with contextlib.suppress(ProcessLookupError, PermissionError):
          kill(number, signal.SIGKILL)
    clean = 0 if marked or below else clean + 1
    if not clean and time.monotonic() > deadline:
      return sorted({*marked, *below})
    time.sleep(0.01)
  return []


def _below(worker):
  """{process: its group} of those that live below a worker: programs and what they have started.

  They have sessions of their own; what else the worker has started is in the worker's.
  """
  rows = {}  # state, parent, group and session, see proc_pid_stat(5)
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):  # it has ended
      state, *numbers = path.read_text().rpartition(")")[2].split()[:4]
      rows[int(path.parent.name)] = state, *map(int, numbers)
  found = {}
  for number, (state, parent, group, session) in rows.items():
    above = number
    while above in rows and above != worker:
      above = rows[above][1]
    if above != worker or session == rows.get(worker, (0, 0, 0, session))[3]:
      continue
    if state != "Z":
      found[number] = group
    elif parent == os.getpid():
      with contextlib.suppress(ChildProcessError):
        os.waitpid(number, os.WNOHANG)
  return found


def _marked(mark):
  found, start = [], f"{STATUS}={mark}".encode()
  for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
      words = path.read_bytes().split(b"\0")
    except OSError:  # ended, or somebody else's
      continue
    if any(word.startswith(start) for word in words) and int(path.parent.name) != os.getpid():
      found.append(int(path.parent.name))
  return found

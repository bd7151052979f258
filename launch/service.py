"""A worker as a service of its machine: a unit of systemd, or a daemon. Repeated starts have no effect.

The directory of a service contains a description and a lock. The worker holds the lock as long as it is alive. If a
file cannot be read, functions raise an UnknownError. They never conclude from such a failure that the worker is absent.
"""

import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import program
from .errors import LaunchError, UnknownError, convert_unexpected

ROOT = pathlib.Path(__file__).absolute().parent.parent  # the directory that contains the package
SYSTEMD = pathlib.Path("/run/systemd/system")  # exists if systemd is running: sd_booted(3)
PROBED = 0.3  # seconds, longer than `is_alive` holds a lock
START = 30.0  # seconds in which a worker must take its lock
CALL = 60.0  # seconds for a command of systemd
# The variables that a unit of systemd inherits.
_INHERITED = ("HOME", "PATH", "LANG", "XDG_STATE_HOME", "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST",
              "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER")  # fmt: skip
_ABSENT = (FileNotFoundError, NotADirectoryError)


def get_default_home() -> pathlib.Path:
  """Returns the directory for code, interpreters and services on this machine.

  The directory is below /tmp for users without a home directory.
  """
  if state := os.environ.get("XDG_STATE_HOME"):
    return pathlib.Path(state, "vit_jax/launch").absolute()
  try:
    return pathlib.Path.home() / ".local/state/vit_jax/launch"
  except RuntimeError:
    return pathlib.Path(f"/tmp/vit_jax-{os.getuid()}/launch")


def name_service(run: str, attempt: int, engine: str, worker: "int | None") -> str:
  """Returns the name of a worker's service. Only the backend local has several workers on a machine."""
  return f"{run}-a{attempt}" + (f"-w{worker or 0:02d}" if engine == "local" else "")


class Service:
  """A worker of this machine. All methods may raise an UnknownError.

  Args:
    name: such as vit-b16-a1, as `name_service` returns it.
    home: directory of the launcher on this machine.
  """

  def __init__(self, name: str, home: pathlib.Path) -> None:
    self.name, self.home, self.folder = f"vitjax-{name}", home, home / "units" / name

  def describe(self, about: Mapping[str, object]) -> None:
    """Writes the description of the service. Raises a LaunchError if the directory is not writable."""
    with self._writable():
      draft = self.folder / f".about.{os.getpid()}"
      draft.write_text(json.dumps(about))
      os.replace(draft, self.folder / "about.json")

  @property
  def about(self) -> dict[str, Any] | None:
    """The description, or None if it is missing or damaged."""
    try:
      with _convert_errors(self.folder / "about.json", ValueError, RecursionError) as path:
        about = json.loads(path.read_text())
    except (*_ABSENT, ValueError, RecursionError):
      return None
    return about if isinstance(about, dict) else None

  def forget(self) -> None:
    """Deletes the description of a service that has ended. The log stays."""
    with _convert_errors(self.folder / "about.json") as path:
      path.unlink(missing_ok=True)

  def lock(self) -> bool:
    """Takes the lock until this process ends. Returns False if another process holds it."""
    path, deadline = self.folder / "lock", time.monotonic() + PROBED
    with self._writable():
      file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
    while True:
      try:
        with _convert_errors(path):
          fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError:
        if time.monotonic() > deadline:
          return False
        time.sleep(0.01)
    self._held = file
    with contextlib.suppress(OSError):  # the disk is full; only systemd can stop this process then
      os.ftruncate(file.fileno(), 0)
      os.pwrite(file.fileno(), f"{os.getpid()} {_read_start_time(os.getpid())}".encode(), 0)
    return True

  def is_alive(self) -> bool:
    """Returns whether a process holds the lock."""
    try:
      with _convert_errors(self.folder / "lock") as path, open(path) as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
      return True
    except _ABSENT:
      pass
    return False

  def process(self) -> int:
    """Returns the ID of the process that holds the lock.

    Returns 0 if the lock is free, or if the disk was too full for the number of the process.
    """
    try:
      with _convert_errors(self.folder / "lock", ValueError) as path:
        text, started = path.read_text().split()
        number = int(text)
    except (*_ABSENT, ValueError):
      return 0
    return number if self.is_alive() and _read_start_time(number) == started else 0

  def start(self, words: Sequence[str], grace: float, systemd: bool = True) -> str:
    """Starts `python -m launch.worker run` unless it is alive.

    Args:
      words: arguments of the worker.
      grace: seconds that the worker may take to stop.
      systemd: whether the worker may become a unit of systemd. A unit does not inherit the environment of this process.

    Returns:
      A line that describes the result.

    Raises:
      LaunchError: the worker did not start.
      UnknownError: this machine does not answer.
    """
    with _convert_errors(self.folder / "starting") as path:
      self.folder.mkdir(parents=True, exist_ok=True)
      turn = open(path, "a")
    with turn:
      with _convert_errors(path):
        fcntl.flock(turn, fcntl.LOCK_EX)
      if self.is_alive():
        return f"{self.name} is already running as process {self.process()}"
      run = [sys.executable, "-m", f"{__package__}.worker", "run", *words]
      output, process = self.folder / "worker.txt", None
      if systemd and SYSTEMD.exists() and os.geteuid() == 0:
        result = _run_systemd(build_command(self.name, run, grace))
        if result.returncode and not _is_active(self.name):
          raise LaunchError(f"systemd-run {self.name}: {' '.join(result.stderr.split())[:300]}", 1)
      else:
        with _convert_errors(output), open(output, "ab") as file:
          process = subprocess.Popen(
            run, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
          )
      deadline = time.monotonic() + START
      while not self.is_alive():
        ended = process.poll() is not None if process else not _is_active(self.name)
        if ended or time.monotonic() > deadline:
          why = f"ended at once: {_read_last_line(output)}" if ended else f"has not taken its lock within {START:.0f} s"
          raise LaunchError(f"{self.name} {why}; see {output}, or journalctl", 1)
        time.sleep(0.02)
      return f"{self.name} is running as process {self.process()}"

  def ask(self) -> bool:
    """Requests the end of the worker without waiting. Returns whether a worker was found."""
    if SYSTEMD.exists() and _is_active(self.name):
      _run_systemd(["systemctl", "stop", "--no-block", self.name])
      return True
    if number := self.process():
      self._signal(number, signal.SIGTERM)
    return bool(number)

  def stop(self, grace: float) -> bool:
    """Stops the worker and its programs.

    Args:
      grace: seconds after which the processes are killed.

    Returns:
      Whether all processes have ended.
    """
    requested, deadline = self.ask(), time.monotonic() + grace
    while self.is_alive() and time.monotonic() < deadline:
      requested = requested or self.ask()  # the worker may be starting at this moment
      time.sleep(0.02)
    if number := self.process():
      program.kill_all(f"{self.folder}/", number)
      self._signal(number, signal.SIGKILL)
    survivors = program.kill_all(f"{self.folder}/")  # also those of a worker that was killed
    while self.is_alive() and time.monotonic() < deadline + 5:
      time.sleep(0.02)
    return not survivors and not self.is_alive()

  def _signal(self, number: int, kind: int) -> None:
    with contextlib.suppress(ProcessLookupError), _convert_errors(self.folder):
      os.kill(number, kind)

  @contextlib.contextmanager
  def _writable(self) -> Iterator[None]:
    try:
      self.folder.mkdir(parents=True, exist_ok=True)
      yield
    except OSError as error:
      advice = "Make it writable, or set XDG_STATE_HOME to another directory"
      raise LaunchError(f"{self.folder}: {error.strerror}. {advice}") from None


def find_services(
  home: pathlib.Path, run: str, attempt: int, engine: str, worker: "int | None" = None
) -> list["Service"]:
  """Returns the services of an attempt on this machine, including those that have ended.

  Args:
    home: directory of the launcher on this machine.
    run: name of the run.
    attempt: number of the attempt.
    engine: name of the backend.
    worker: number of the worker. Defaults to all workers.
  """
  shape = re.escape(name_service(run, attempt, engine, worker))
  if engine == "local" and worker is None:
    shape = re.sub(r"\d+$", r"\\d+", shape)
  return [Service(name, home) for name in _list_names(home) if re.fullmatch(shape, name)]


def list_services(home: pathlib.Path, engine: str) -> list[dict[str, Any]]:
  """Returns the descriptions of the services of an engine.

  Args:
    home: directory of the launcher on this machine.
    engine: name of the backend.

  Returns:
    Dictionaries with the description and three further keys: "alive" is whether the worker is alive, "made" the time of
    the description in seconds since the epoch, and "said" the last line of the output.
  """
  found = []
  for name in _list_names(home):
    service = Service(name, home)
    if (about := service.about) and about.get("engine") == engine:
      with (
        contextlib.suppress(*_ABSENT),
        _convert_errors(service.folder / "about.json") as path,
      ):  # the file may be deleted at this moment
        made = path.stat().st_mtime
        found.append(
          about | {"alive": service.is_alive(), "made": made, "said": _read_last_line(service.folder / "worker.txt")}
        )
  return found


def _list_names(home: pathlib.Path) -> list[str]:
  with contextlib.suppress(*_ABSENT), _convert_errors(home / "units"):
    return sorted(os.listdir(home / "units"))
  return []


def build_command(name: str, run: Sequence[str], grace: float) -> list[str]:
  """Returns the argument list that starts a unit of systemd.

  SIGTERM goes to the worker only, which forwards it to its program. If the program is killed because memory ran out,
  the worker continues and reports it.

  systemd replaces "${NAME}" and "$NAME" in all words but the first, and "$$" becomes "$": systemd.service(5), COMMAND
  LINES. It does not replace specifiers such as "%h" here: the manager doubles each "%" of a transient unit itself
  (UNIT_ESCAPE_SPECIFIERS in systemd's dbus-execute.c), so that "%%" would reach the program as "%%".

  Args:
    name: name of the unit.
    run: the command of the unit. Its words reach the program unchanged.
    grace: seconds that the program has to stop.
  """
  properties = ("KillMode=mixed", "KillSignal=SIGTERM", f"TimeoutStopSec={grace + 30:.0f}", "OOMPolicy=continue",
                "Restart=on-abnormal", "RestartSec=2", "LimitNOFILE=100000", "LimitMEMLOCK=infinity")  # fmt: skip
  variables = [f"--setenv={name}={os.environ[name]}" for name in _INHERITED if name in os.environ]
  return ["systemd-run", f"--unit={name}", "--collect", "--quiet", f"--working-directory={ROOT}",
          *(f"--property={each}" for each in properties), *variables, run[0],
          *(word.replace("$", "$$") for word in run[1:])]  # fmt: skip


def _is_active(name: str) -> bool | None:
  return _run_systemd(["systemctl", "is-active", "--quiet", name]).returncode == 0


def _run_systemd(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
  """Returns the result of a command of systemd with any exit code."""
  try:
    return subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", timeout=CALL)
  except subprocess.TimeoutExpired:
    raise UnknownError(f"{words[0]} did not answer within {CALL:.0f} s") from None
  except OSError as error:
    raise UnknownError(f"{words[0]} cannot be run: {error.strerror}") from None


@contextlib.contextmanager
def _convert_errors(path: pathlib.Path, *answers: type[Exception]) -> Iterator[pathlib.Path]:
  """Yields a path and turns errors into an UnknownError, except the exceptions in `answers`."""
  with convert_unexpected(str(path), (*_ABSENT, ProcessLookupError, BlockingIOError, *answers)):
    yield path


def _read_start_time(number: int) -> str:
  """Returns the start time of a process in ticks since the start of the machine, or "0" if it is unknown."""
  try:
    return pathlib.Path("/proc", str(number), "stat").read_text().rpartition(")")[2].split()[19]
  except (OSError, IndexError):
    return "0"


def _read_last_line(path: pathlib.Path) -> str:
  try:
    lines = path.read_text(errors="replace").split("\n")
  except OSError:
    return ""
  return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]

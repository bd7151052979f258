"""A worker as a unit of its machine: of systemd, or a daemon. It is started once, however often `start` is called.

The directory of a unit has a lock, which the worker holds as long as it is alive, and a description of the worker. What
cannot be read is unknown: an UnknownError, and never the conclusion that there is no worker.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from launch import engine, program
from launch.errors import LaunchError, UnknownError, amount

ROOT = pathlib.Path(__file__).absolute().parent.parent  # of the package
SYSTEMD = pathlib.Path("/run/systemd/system")  # there where it runs: sd_booted(3)
PROBED = 0.3  # seconds, longer than `alive` holds a lock
START = 30.0  # seconds that a worker may take until it has the lock
# What a unit of systemd keeps of the environment; the rest is not its business.
_ABSENT = (FileNotFoundError, NotADirectoryError)  # which say that there is no such file
CALL = 60.0  # seconds for a command of systemd
_KEPT = ("HOME", "PATH", "LANG", "XDG_STATE_HOME", "STORAGE_EMULATOR_HOST", "GCE_METADATA_HOST",
         "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU", "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER")  # fmt: skip


def home() -> pathlib.Path:
  """Where workers keep code, interpreters and units on a machine; where nobody has a home, below /tmp."""
  if state := os.environ.get("XDG_STATE_HOME"):
    return pathlib.Path(state, "vit_jax/launch")
  try:
    return pathlib.Path.home() / ".local/state/vit_jax/launch"
  except RuntimeError:
    return pathlib.Path(f"/tmp/vit_jax-{os.getuid()}/launch")


class Service:
  """A unit with a name, such as vit-b16-a1, and a directory below `home`. All methods may raise an UnknownError."""

  def __init__(self, name: str, home: pathlib.Path):
    self.name, self.folder = f"vitjax-{name}", home / "units" / name

  def make(self, about: dict) -> None:
    """Notes that it is to be, and what. LaunchError where the folder cannot be written."""
    try:
      self.folder.mkdir(parents=True, exist_ok=True)
      draft = self.folder / f".about.{os.getpid()}"
      draft.write_text(json.dumps(about))
      os.replace(draft, self.folder / "about.json")
    except OSError as error:
      raise LaunchError(f"{self.folder}: {error.strerror}; mend it, or set XDG_STATE_HOME to another folder") from None

  @property
  def about(self) -> "dict | None":
    """The description that `make` wrote; None if there is no such unit, or the description is damaged."""
    try:
      with _known(self.folder):
        about = json.loads((self.folder / "about.json").read_text())
    except (*_ABSENT, ValueError, RecursionError):
      return None
    return about if isinstance(about, dict) else None

  def forget(self) -> None:
    """Removes the description of a unit that has ended. Its log stays."""
    with _known(self.folder):
      (self.folder / "about.json").unlink(missing_ok=True)

  def lock(self) -> "int | None":
    """Takes the lock for this process, until it ends; None if another process has it. LaunchError."""
    try:
      self.folder.mkdir(parents=True, exist_ok=True)
      file = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
      raise LaunchError(f"{self.folder}: {error.strerror}; mend it, or set XDG_STATE_HOME to another folder") from None
    deadline = time.monotonic() + PROBED
    while True:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError:
        if time.monotonic() > deadline:
          os.close(file)
          return None
        time.sleep(0.01)
      except OSError as error:  # a file system without locks
        os.close(file)
        raise UnknownError(f"{self.folder}/lock: {error.strerror}") from None
    with contextlib.suppress(OSError):  # of a full disk; `stop` then finds it only through systemd
      os.ftruncate(file, 0)
      os.pwrite(file, f"{os.getpid()} {_began(os.getpid())}".encode(), 0)
    return file

  def alive(self) -> bool:
    """Returns whether a process holds the lock."""
    try:
      with _known(self.folder), open(self.folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
      return True
    except _ABSENT:
      pass
    return False

  def process(self) -> int:
    """Returns the process that holds the lock; 0 if none does, or it could not write its number."""
    try:
      with _known(self.folder):
        number, began = (self.folder / "lock").read_text().split()
      process = int(number)
    except (*_ABSENT, ValueError):
      return 0
    return process if self.alive() and _began(process) == began else 0

  def start(self, words: list, grace: float, systemd: bool = True) -> str:
    """Starts `python -m launch.worker run` with these words, unless it lives; says what was done. LaunchError.

    Args:
      grace: seconds that it may take to stop.
      systemd: not where its programs need the environment of this process.
    """
    with _known(self.folder):
      self.folder.mkdir(parents=True, exist_ok=True)
      turn = open(self.folder / "starting", "a")
    with turn:
      with _known(self.folder):
        fcntl.flock(turn, fcntl.LOCK_EX)
      if self.alive():
        return f"{self.name} lives already, process {self.process()}"
      run = [sys.executable, "-m", "launch.worker", "run", *words]
      output, process = self.folder / "worker.txt", None
      if systemd and SYSTEMD.exists() and os.geteuid() == 0:
        result = _call(command(self.name, run, grace))
        if result.returncode and not _active(self.name):
          raise LaunchError(f"systemd-run {self.name}: {' '.join(result.stderr.split())[:300]}", 1)
      else:
        with _known(output), open(output, "ab") as file:
          process = subprocess.Popen(
            run, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
          )
      deadline = time.monotonic() + START
      while not self.alive():
        if not (process.poll() is None if process else _active(self.name)):
          said = _last_line(output)
          raise LaunchError(f"{self.name} ended at once{': ' if said else ''}{said}; see {output}, or journalctl", 1)
        if time.monotonic() > deadline:
          raise LaunchError(f"{self.name} has not taken its lock within {START:.0f} s; see {output}, or journalctl", 1)
        time.sleep(0.02)
      return f"{self.name} is started, process {self.process()}"

  def ask(self) -> bool:
    """Asks it to stop, and returns at once: whether there was one to ask."""
    if SYSTEMD.exists() and _active(self.name):
      _call(["systemctl", "stop", "--no-block", self.name])
      return True
    if number := self.process():
      with contextlib.suppress(ProcessLookupError), _known(self.folder):
        os.kill(number, signal.SIGTERM)
    return bool(number)

  def stop(self, grace: float) -> bool:
    """Stops it with all that it has started; whether all is gone."""
    asked, deadline = self.ask(), time.monotonic() + grace
    while self.alive() and time.monotonic() < deadline:
      asked = asked or self.ask()  # it may just be starting
      time.sleep(0.02)
    if number := self.process():
      program.end(f"{self.folder}/", number)
      with contextlib.suppress(ProcessLookupError), _known(self.folder):
        os.kill(number, signal.SIGKILL)
    left = program.end(f"{self.folder}/")  # also of a worker that was killed
    while self.alive() and time.monotonic() < deadline + 5:
      time.sleep(0.02)
    return not left and not self.alive()


def every(home: pathlib.Path, engine: str) -> list:
  """What is known of the units of an engine that were made on this machine, with "alive" and "made", when."""
  found = []
  try:
    with _known(home / "units"):
      names = sorted(os.listdir(home / "units"))
  except _ABSENT:
    return found
  for name in names:
    service = Service(name, home)
    if (about := service.about) and about.get("engine") == engine:
      with contextlib.suppress(*_ABSENT), _known(service.folder):  # it may be removed just now
        made, said = (service.folder / "about.json").stat().st_mtime, _last_line(service.folder / "worker.txt")
        found.append(about | {"alive": service.alive(), "made": made, "said": said})
  return found


def look(found: dict, workers: int) -> engine.Look:
  """How an attempt is of which these units, by their workers, were found."""
  if not found:
    return engine.Look(engine.ABSENT)
  alive = [worker for worker, each in found.items() if each.get("alive")]
  dead = [f"worker {worker}: {found[worker].get('said') or 'it has ended'}" if worker in found else
          f"worker {worker} was never started" for worker in range(workers) if worker not in alive]  # fmt: skip
  return engine.Look(engine.LOST if dead else engine.READY, "; ".join(dead)[:1000], hosts=len(alive))


def resources(found: list, location: str) -> list:
  """Units as what they cost: one resource for each attempt."""
  attempts = {}
  for each in found:
    attempts.setdefault((str(each.get("run")), each.get("attempt"), each.get("folder")), []).append(each)
  return [
    engine.Resource(
      name=f"{run}-a{attempt}", location=location, run=run, owner=str(units[0].get("owner", "")), attempt=attempt,
      state=engine.READY if all(each["alive"] for each in units) else engine.LOST,
      detail=f"{sum(each['alive'] for each in units)} of {amount(len(units), 'worker')} alive, for {folder}",
      expires=units[0].get("expires", 0), created=min(each["made"] for each in units),
      kind=amount(len(units), "process", "processes"),
      mark=hashlib.sha256(str(folder).encode(errors="surrogateescape")).hexdigest()[:16],
    )
    for (run, attempt, folder), units in attempts.items()
  ]  # fmt: skip


def command(name: str, run: list, grace: float) -> list:
  """Returns the argument list that starts a unit of systemd.

  SIGTERM goes to the worker only, which forwards it to its program. If the program is killed because memory ran out,
  the worker continues and reports it.

  Args:
    name: of the unit.
    run: the command of the unit, as words that reach it unchanged.
    grace: seconds that the program has to stop.
  """
  properties = ("KillMode=mixed", "KillSignal=SIGTERM", f"TimeoutStopSec={grace + 30:.0f}", "OOMPolicy=continue",
                "Restart=on-abnormal", "RestartSec=2", "LimitNOFILE=100000", "LimitMEMLOCK=infinity")  # fmt: skip
  kept = [f"--setenv={name}={os.environ[name]}" for name in _KEPT if name in os.environ]
  return ["systemd-run", f"--unit={name}", "--collect", "--quiet", f"--working-directory={ROOT}",
          *(f"--property={each}" for each in properties), *kept, *escaped(run)]  # fmt: skip


def escaped(words: list) -> list:
  """Returns a command for systemd-run that becomes these words.

  systemd replaces "${NAME}" and "$NAME" in all words but the first, and "$$" becomes "$": systemd.service(5), COMMAND
  LINES. It does not replace specifiers such as "%h" here: the manager doubles each "%" of a transient unit itself
  (UNIT_ESCAPE_SPECIFIERS in systemd's dbus-execute.c), so that "%%" would reach the program as "%%".
  """
  return [*words[:1], *(word.replace("$", "$$") for word in words[1:])]


def _active(name):
  return _call(["systemctl", "is-active", "--quiet", name]).returncode == 0


def _call(words):
  """Returns the result of a command of systemd. UnknownError if there is none."""
  try:
    return subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", timeout=CALL)
  except subprocess.TimeoutExpired:
    raise UnknownError(f"{words[0]} did not answer within {CALL:.0f} s") from None
  except OSError as error:
    raise UnknownError(f"{words[0]} cannot be run: {error.strerror}") from None


@contextlib.contextmanager
def _known(path):
  """Turns an OSError into an UnknownError, except those that are answers: no such file, no such process, a lock."""
  try:
    yield
  except (*_ABSENT, ProcessLookupError, BlockingIOError):
    raise
  except OSError as error:
    raise UnknownError(f"{error.filename or path}: {error.strerror or error}") from None


def _began(number):
  """When a process began, in ticks since the start of the machine; "0" where nobody knows."""
  try:
    return pathlib.Path("/proc", str(number), "stat").read_text().rpartition(")")[2].split()[19]
  except (OSError, IndexError):
    return "0"


def _last_line(path):
  try:
    lines = path.read_text(errors="replace").split("\n")
  except OSError:
    return ""
  return next((line.strip() for line in reversed(lines) if line.strip()), "")[:300]

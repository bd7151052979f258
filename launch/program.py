"""The program of a try: its environment, its process, its log and the meaning of its exit code."""

import contextlib
import ctypes
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from . import machine, storage
from .errors import LaunchError, UnknownError, format_utc
from .spec import Run

STATUS = "VITJAX_STATUS"
HANG, KILLED = 43, 137  # exit codes of vit_jax/runtime/exits.py
PIECE = 2**18  # bytes of one file of the log in the run's directory
BEHIND = 2**26  # bytes of the log that stay on the local disk
MOST = 2**27  # bytes of a try that are sent at once. If the log is longer, only its last piece is sent
SHORT = 8  # characters below which the value of a secret is not hidden, because every log contains such words
TAIL, LINES = 8192, 40  # the largest size of a tail, in bytes and in lines
_INHERITED = re.compile(r"(?!MEGASCALE_|VITJAX_|JAX_COORDINATOR_|LAUNCH_).*(?<!_proxy)", re.IGNORECASE | re.DOTALL)
_HELD = re.compile(r"^.*is held by process .*$", re.MULTILINE)
_TIMEOUT = re.compile(
  r"^Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!$", re.MULTILINE
)  # of Python's faulthandler, which exits with 1
_LONGEST = 10_000  # bytes of the status file that are read
_REAPED = 10.0  # seconds in which killed processes must disappear


def make_environment(
  run: Run,
  worker: int,
  engine: str,
  coordinator: str,
  status: pathlib.Path,
  folder: pathlib.Path,
  secrets: dict[str, str],
) -> dict[str, Any]:
  """Returns the environment of a program.

  It contains the variables of this process without those of proxies and other jobs, the variables of the run, and the
  variables of the launcher.

  Args:
    run: the run.
    worker: number of the worker among all workers of the run.
    engine: name of the backend.
    coordinator: HOST:PORT of worker 0.
    status: file in which the program reports its progress.
    folder: directory of the code.
    secrets: names and values of the secrets.
  """
  values = {name: value for name, value in os.environ.items() if _INHERITED.fullmatch(name)}
  if engine != "gke":  # GKE's own plugin sets TPU_ variables. Elsewhere they are left from another job.
    values = {name: value for name, value in values.items() if not name.startswith("TPU_")}
  values.setdefault("HOME", os.path.expanduser("~") if os.path.expanduser("~") != "~" else str(status.parent))
  values.setdefault("PATH", os.defpath)
  values |= run.env | secrets
  values |= {
    "VITJAX_COORDINATOR": coordinator,
    "VITJAX_PROCESSES": str(run.workers),
    "VITJAX_PROCESS": str(worker),
    STATUS: str(status),
    "PYTHONUNBUFFERED": "1",
    # For child processes with another working directory.
    "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), values.get("PYTHONPATH")))),
  }
  if run.devices:
    values["VITJAX_DEVICES"] = str(run.devices)
  if run.slices > 1:  # the same variables as Ray and Levanter
    values |= {
      "MEGASCALE_COORDINATOR_ADDRESS": f"{coordinator.rpartition(':')[0]}:{machine.SLICES_PORT}",
      "MEGASCALE_PORT": str(machine.SLICES_PORT),
      "MEGASCALE_NUM_SLICES": str(run.slices),
      "MEGASCALE_SLICE_ID": str(worker // (run.workers // run.slices)),
    }
  return values


def read_secrets(run: Run) -> dict[str, Any]:
  """Returns the values of the secrets of a run.

  Raises:
    LaunchError: a secret is missing, or contains a zero byte, which a variable cannot contain.
    UnknownError: Secret Manager does not answer.
  """
  values = {}
  for name, source in run.secrets.items():
    if source.startswith("projects/"):
      values[name] = machine.read_secret(source)
    elif source.startswith("file:"):
      try:
        values[name] = pathlib.Path(source[5:]).read_text().rstrip("\n")
      except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8 text"
        raise LaunchError(f"--secret: {name}={source} cannot be read on this host: {why}") from None
    elif name in os.environ:  # Kubernetes has set it
      values[name] = os.environ[name]
    else:
      raise LaunchError(f"--secret: {name}={source}: Kubernetes did not set it. Check the manifest")
    if "\0" in values[name]:
      raise LaunchError(f"--secret: the value of {name} has a zero byte, which a variable cannot contain")
  return values


class Program:
  """A child process in its own session. Call `close` to end the process.

  Args:
    words: the argument list.
    folder: working directory of the program.
    environment: variables of the program, from `make_environment`.
    log: file that receives the output of the program.

  Raises:
    LaunchError: the program cannot be started.

  Attributes:
    progress: "step" and "began" (0 to 1e15, else -1) and the text "doing", as the program last reported them.
    moved: monotonic time of the last progress.
    stop_requested_at: monotonic time at which the program was asked to stop; None before.
  """

  def __init__(
    self, words: Sequence[str], folder: pathlib.Path, environment: Mapping[str, str], log: pathlib.Path
  ) -> None:
    self._status, self._killed = pathlib.Path(environment[STATUS]), False
    self.stop_requested_at: float | None = None
    self._oom_kills = machine.count_oom_kills()
    self.progress: dict[str, Any] = {}
    self._reported: dict[str, Any] = {}
    self.moved = time.monotonic()
    _delete_path(self._status)
    name = words[0]
    if not shutil.which(name):
      raise LaunchError(f"{name} cannot be started: this host has no such program")
    if setpriv := shutil.which("setpriv"):  # the kernel ends the program with this process, even after a SIGKILL
      # Popen's preexec_fn could do the same, but is not safe if there are threads.
      words = [setpriv, "--pdeathsig=KILL", "--", *words]
    try:
      with open(log, "ab") as file:
        self._process = subprocess.Popen(
          words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    except (OSError, ValueError) as error:
      raise LaunchError(f"{name} cannot be started: {getattr(error, 'strerror', None) or error}") from None

  def poll(self) -> "int | None":
    """Returns the exit code as a shell reports it, or None while the program runs."""
    code = self._process.poll()
    return code if code is None or code >= 0 else 128 - code

  def read_progress(self) -> None:
    """Updates `progress` and `moved` from the status file. Ignores an invalid or incomplete file."""
    try:
      found = json.loads(storage.read_regular_file(self._status, _LONGEST)[0])
    except (OSError, ValueError, RecursionError):
      return
    if isinstance(found, dict) and type(found.get("step")) is int and found != self._reported:
      self._reported, self.moved = found, time.monotonic()
      doing = found["doing"] if isinstance(found.get("doing"), str) else ""
      self.progress = {key: _parse_step(found.get(key)) for key in ("step", "began")}
      self.progress["doing"] = re.sub("[\ud800-\udc7f\udd00-\udfff]", "?", doing)  # a file cannot contain surrogates

  def ask(self) -> None:
    """Sends SIGTERM once, and only to the program, because its data workers must not end first."""
    if self.stop_requested_at is None:
      self.stop_requested_at = time.monotonic()
      self._process.send_signal(signal.SIGTERM)

  def print_stacks(self) -> None:
    """Requests the stacks of all threads of the program."""
    self._process.send_signal(signal.SIGUSR2)

  def kill(self) -> None:
    """Kills the process group of the program."""
    self._killed = self._process.poll() is None
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)

  def close(self) -> list[int]:
    """Kills the program and all its descendants. Returns the processes that survive."""
    if self._process.poll() is None:
      self.kill()
      self._process.wait()
    return kill_all(str(self._status), os.getpid())

  def explain(self, code: int, tail: str) -> tuple[int, str]:
    """Explains the end of the program.

    Args:
      code: exit code from `poll`.
      tail: the end of the log of the try.

    Returns:
      The exit code (see vit_jax/runtime/exits.py) and its meaning in words, or "" if no explanation is needed.
    """
    if self._killed and self.stop_requested_at is not None:
      return code, "killed, because it did not end within limits.grace after SIGTERM"
    if code == KILLED and machine.count_oom_kills() > self._oom_kills:
      return code, "killed because the host ran out of memory; use fewer data workers, a smaller batch or larger hosts"
    if code == KILLED:
      return code, "killed by the system (SIGKILL)"
    if code == HANG and (held := _HELD.findall(tail)):
      return code, held[-1].strip()[:500]
    if code == 1 and _TIMEOUT.search(tail):
      return HANG, "Python made no progress; the stacks are in the log"
    return code, ""


def _parse_step(value: object) -> int:
  return value if type(value) is int and 0 <= value < 1e15 else -1


def _delete_path(path: pathlib.Path) -> None:
  """Deletes a file, a link or a directory. Raises an UnknownError if that fails."""
  try:
    if path.is_dir() and not path.is_symlink():
      shutil.rmtree(path)
    else:
      path.unlink(missing_ok=True)
  except OSError as error:
    raise UnknownError(f"{error.filename or path}: {error.strerror}") from None


def kill_all(mark: str, worker: int = 0) -> list[int]:
  """Kills the processes of programs and waits until they have ended.

  Args:
    mark: prefix of the paths of the status files, which identify programs after the death of their worker.
    worker: process ID of a worker. Its descendants are killed as well, even without a status file. 0 to omit.

  Returns:
    The IDs of the processes that survive.

  Raises:
    UnknownError: the processes cannot be listed.
  """
  deadline, clean = time.monotonic() + _REAPED, 0
  while clean < 2:  # a single listing can miss a process that is being forked
    try:
      found = {*find_marked(mark), *(_find_descendants(worker) if worker else ())}
    except OSError as error:  # too many open files, which may be temporary
      if time.monotonic() > deadline:
        raise UnknownError(f"the processes of this host cannot be listed: {error.strerror}") from None
      time.sleep(0.01)
      continue
    for number in found:
      with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(number, signal.SIGKILL)
    clean = 0 if found else clean + 1
    if found and time.monotonic() > deadline:
      return sorted(found)
    time.sleep(0.01)
  return []


def _find_descendants(worker: int) -> list[int]:
  """Returns the living descendants of a worker outside its own session, and reaps zombies.

  Programs run in other sessions than their worker.
  """
  rows: dict[int, tuple[str, int, int, int]] = {}  # state, parent, process group and session: proc_pid_stat(5)
  for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    with contextlib.suppress(OSError):  # it has ended
      state, *numbers = path.read_text().rpartition(")")[2].split()[:4]
      parent, group, session = map(int, numbers)
      rows[int(path.parent.name)] = state, parent, group, session
  found = []
  for number, (state, parent, _, session) in rows.items():
    above = number
    while above in rows and above != worker:
      above = rows[above][1]
    if above != worker or session == rows.get(worker, (0, 0, 0, session))[3]:
      continue
    if state != "Z":
      found.append(number)
    elif parent == os.getpid():
      with contextlib.suppress(ChildProcessError):
        os.waitpid(number, os.WNOHANG)
  return found


def find_marked(mark: str) -> list[int]:
  """Returns the process ids of other processes whose status file has a path that starts with `mark`."""
  found, start = [], f"{STATUS}={mark}".encode()
  for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
      words = path.read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
      continue
    if any(word.startswith(start) for word in words) and int(path.parent.name) != os.getpid():
      found.append(int(path.parent.name))
  return found


class WorkerLog:
  """The log of a worker: a local file to which programs write. It is sent in pieces without secrets.

  Only the user of the worker may read the file. This user can also read the variables of the program. If the worker is
  killed, the next worker continues after the last piece that was sent.

  Args:
    path: the file, which is created if it is missing.
  """

  def __init__(self, path: pathlib.Path) -> None:
    self.path, self._note, self._longest = path, path.with_suffix(".sent"), 1
    self._secrets: re.Pattern[bytes] | None = None
    self._sent = self._try = self._trimmed = 0
    with contextlib.suppress(OSError, ValueError):
      self._sent = int(self._note.read_text())
    os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))

  def hide(self, values: Iterable[str]) -> None:
    """Replaces these values by *** from now on, except values of fewer than 8 characters."""
    hidden = sorted({value.encode(errors="surrogateescape") for value in values if len(value) >= SHORT}, key=len)
    self._longest = len(hidden[-1]) if hidden else 1
    self._secrets = re.compile(b"|".join(map(re.escape, reversed(hidden)))) if hidden else None

  def redact(self, text: str) -> str:
    """Returns a text without secrets."""
    return self._redact_bytes(text.encode(errors="surrogateescape")).decode(errors="replace")

  def _redact_bytes(self, content: bytes) -> bytes:
    return self._secrets.sub(b"***", content) if self._secrets else content

  def write(self, text: str) -> None:
    """Adds a line of the worker."""
    with contextlib.suppress(OSError), open(self.path, "ab") as file:  # a full disk is visible in the reports
      file.write(f"{format_utc(time.time())} launch: {self.redact(text)}\n".encode(errors="replace"))

  def get_size(self) -> int:
    """Returns the size in bytes, or 0 if the file does not exist."""
    with contextlib.suppress(OSError):
      return self.path.stat().st_size
    return 0

  def begin(self) -> int:
    """Starts a try. Returns its first position in the file."""
    self._try = self.get_size()
    return self._try

  def trim(self) -> None:
    """Frees the disk space of all but the last BEHIND bytes. Positions stay the same. Works on Linux only."""
    end = self.get_size() - BEHIND
    if end - self._trimmed < PIECE or sys.platform != "linux":
      return
    self._trimmed = end  # set first, because another thread reads the file
    with contextlib.suppress(OSError), open(self.path, "rb+") as file:
      # FALLOC_FL_KEEP_SIZE and _PUNCH_HOLE of linux/falloc.h. File systems without them, such as NFS 4.1, keep all.
      ctypes.CDLL(None).fallocate64(file.fileno(), 1 | 2, ctypes.c_int64(0), ctypes.c_int64(end))

  def read_piece(self, last: bool = False) -> tuple[bytes, int]:
    """Reads the next piece of the log.

    Args:
      last: whether the log is complete. Otherwise, final bytes that may be the start of a secret are held back.

    Returns:
      The bytes after the last piece that was sent, without secrets, and the position of their end. The bytes are empty
      if the log has not grown.
    """
    start, size, note = self._sent, self.get_size(), b""
    if size < start:  # the file was truncated
      start = self._try = self._trimmed = 0
    full = start - self._try >= MOST
    if full and not last:
      return b"", start
    content = self._read(start)
    if size - start > (PIECE if full else BEHIND) or start < self._trimmed:
      note = f"launch: {size - PIECE - start:,} bytes are left out\n".encode()
      start = size - PIECE
      content = self._read(start)
    end = len(content) if last and start + len(content) >= size else max(0, len(content) - self._longest + 1)
    for match in self._secrets.finditer(content) if self._secrets else iter(()):
      if match.start() < end < match.end():
        end = match.end()
    text = self._redact_bytes(content[:end])
    text = note + text[self._longest - 1 :] if note else text  # the first bytes may be the end of a secret
    if start - self._try < MOST <= start + end - self._try:
      text += (
        f"\nlaunch: {MOST:,} bytes of a try; the try has more output, and only its end is sent after the try\n".encode()
      )
    return text, start + end

  def _read(self, start: int) -> bytes:
    with contextlib.suppress(OSError), open(self.path, "rb") as file:
      file.seek(start)
      return file.read(PIECE)
    return b""

  def mark_sent(self, end: int) -> None:
    """Records that the log is sent up to this position."""
    self._sent = end
    with contextlib.suppress(OSError):  # if the worker is killed, the piece is sent again
      self._note.write_text(str(end))

  def read_tail(self, start: int) -> str:
    """Returns the last lines after a position, at most 40 lines and 8192 bytes, without secrets."""
    try:
      with open(self.path, "rb") as file:
        begin = max(start, self.get_size() - 2 * TAIL)
        file.seek(begin)
        content = self._redact_bytes(file.read())[self._longest - 1 if begin > start else 0 :]
    except OSError:
      return ""
    return "\n".join(content[-TAIL:].decode(errors="replace").splitlines()[-LINES:])

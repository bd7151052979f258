"""What a worker needs before it can start a program: the run's code, proved by its hash, and an interpreter."""

import contextlib
import fcntl
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable

from launch.errors import LaunchError, UnknownError
from launch.spec import Run

BYTES, FILES = 2**30, 100_000  # of a bundle, unpacked
PYTHON = "3.12"  # of JAX, which needs 3.11; TPU VMs come with 3.10
TRIES = 3


def code(storage, digest: str, home: pathlib.Path) -> pathlib.Path:
  """The folder of a bundle, which is fetched and unpacked where it is not there yet. LaunchError, UnknownError."""
  if not re.fullmatch("[0-9a-f]{64}", digest):
    raise LaunchError(f"{digest[:80]!r} is no SHA-256 of a bundle; start the run again")
  folder = home / "code" / digest
  if os.path.isdir(folder):  # appeared whole, after its hash was proved
    return folder
  item = storage.read(f"code/{digest}.tgz")
  if item is None:
    raise LaunchError(f"code/{digest}.tgz is not in the run's folder; start the run again, which brings it")
  found = hashlib.sha256(item.content).hexdigest()
  if found != digest:
    raise LaunchError(f"code/{digest}.tgz has the SHA-256 {found}: it was changed; start the run again")
  try:
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = pathlib.Path(tempfile.mkdtemp(prefix=".", dir=folder.parent))
  except OSError as error:
    raise LaunchError(f"{folder.parent}: {error.strerror}; make room, or mend it") from None
  try:
    unpack(item.content, draft)
    with contextlib.suppress(FileExistsError):
      os.rename(draft, folder)
  except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
    raise LaunchError(f"code/{digest}.tgz is no bundle: {error}") from None
  except OSError as error:
    if not os.path.isdir(folder):  # another worker of this machine was first
      raise LaunchError(f"code/{digest}.tgz cannot be unpacked below {folder.parent}: {error.strerror}") from None
  finally:
    shutil.rmtree(draft, ignore_errors=True)
  return folder


def unpack(content: bytes, folder: pathlib.Path) -> None:
  """Unpacks a tar into an empty folder. ValueError for what would be outside of it, or is no file.

  By hand, for `filter="data"` of tarfile is not in every Python 3.10.
  """
  links, size = [], 0
  with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as tar:
    for count, member in enumerate(tar):
      parts, size = pathlib.PurePosixPath(member.name).parts, size + member.size
      if size > BYTES or count >= FILES:
        raise ValueError(f"it is larger than {BYTES:,} bytes or {FILES:,} files")
      if not parts or parts[0] == "/" or ".." in parts or "\0" in member.name:
        raise ValueError(f"{member.name!r} is no name of a file in it")
      path = folder.joinpath(*parts)
      path.parent.mkdir(parents=True, exist_ok=True)
      if member.isdir():
        path.mkdir(exist_ok=True)
      elif member.isreg():
        with open(path, "xb") as file:
          shutil.copyfileobj(tar.extractfile(member), file)
        path.chmod(0o755 if member.mode & 0o100 else 0o644)
      elif member.issym():
        links.append((path, member.linkname))
      else:
        raise ValueError(f"{member.name!r} is neither a file nor a folder")
  for path, target in links:  # last, so that nothing is written through one
    os.symlink(target, path)
  inside = os.path.realpath(folder) + os.sep
  for path, target in links:
    if os.path.isabs(target) or not os.path.realpath(path).startswith(inside):
      raise ValueError(f"{path.name!r} leads to {target!r}, outside of it")


def interpreter(
  run: Run, folder: pathlib.Path, home: pathlib.Path, log: pathlib.Path, tick: Callable[[], None], date: str = ""
) -> str:
  """A Python that has what the run needs: `run.python`, or one that uv makes, for every setup.py and date once.

  Args:
    log: a file for the output of what is run.
    date: no package that is newer is taken; "" for the newest of all.
    tick: called several times a second; what it raises ends the installation.
  """
  if run.python:
    if not os.access(run.python, os.X_OK):
      raise LaunchError(f"--python: {run.python} is no program on this host; correct it, or leave it out")
    return run.python
  setup, extras = folder / "setup.py", ",".join(packages())
  try:
    key = hashlib.sha256(setup.read_bytes() + extras.encode() + date.encode()).hexdigest()[:16]
  except OSError:
    raise LaunchError("the code has no setup.py that says what it needs; add it, or name a --python that has it "
                      "on the workers") from None  # fmt: skip
  made = home / "python" / key
  words = [["venv", "--quiet", "--clear", "--python", PYTHON, str(made)],
           ["pip", "install", "--python", str(made / "bin/python"), f"{folder}[{extras}]",
            *([f"--exclude-newer={date}"] if date else [])]]  # fmt: skip
  deadline = time.monotonic() + run.limits.install
  with _turn(made.with_suffix(".lock"), tick):
    if not (made / "complete").exists():
      uv = _uv(home, log, tick, deadline)
      for each in words:
        _do([uv, *each], log, tick, deadline)
      (made / "complete").touch()
  return str(made / "bin/python")


def packages(root: str = "/") -> list:
  """The extras of setup.py that this machine needs."""
  devices = pathlib.Path(root, "dev")
  kinds = {"gpu": "nvidia[0-9]*", "tpu": "accel*"}
  found = [extra for extra, pattern in kinds.items() if any(devices.glob(pattern))]
  if not found and any(devices.glob("vfio/[0-9]*")):  # of TPUs from v5 on
    found = ["tpu"]
  return [*found[:1], "gcs"]


def _uv(home, log, tick, deadline):
  """uv of this machine, or of PyPI: below `home`, where no distribution objects."""
  if there := shutil.which("uv"):
    return there
  target = home / "uv"
  if not (target / "bin/uv").exists():
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(target), "uv"]
    _do(words, log, tick, deadline)
  return str(target / "bin/uv")


def _do(words, log, tick, deadline):
  """Runs a command that needs the network, up to `TRIES` times. LaunchError with its last line."""
  for number in range(TRIES):
    with open(log, "ab") as file:
      start = file.tell()
      try:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)
      except OSError as error:
        raise LaunchError(f"{words[0]} cannot be run: {error.strerror}") from None
    try:
      while process.poll() is None:
        tick()
        if time.monotonic() > deadline:
          raise LaunchError(f"{' '.join(words[:4])} took longer than limits.install")
        time.sleep(0.05)
    finally:
      if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
      return
    tick()
    time.sleep(min(2.0, 0.5 * 2**number))
  with open(log, "rb") as file:
    file.seek(start)
    said = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
  raise LaunchError(f"{' '.join(words)} ended with {process.returncode}: {(said or ['it said nothing'])[-1][:300]}")


@contextlib.contextmanager
def _turn(path, tick):
  """One worker of this machine after the other."""
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a")
  except OSError as error:
    raise LaunchError(f"{path}: {error.strerror}") from None
  with file:
    while True:
      try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        break
      except BlockingIOError:
        tick()
        time.sleep(0.05)
      except OSError as error:  # a file system without locks
        raise UnknownError(f"{path}: {error.strerror}") from None
    try:
      yield
    except OSError as error:
      raise LaunchError(f"{error.filename or path.parent}: {error.strerror}; make room, or mend it") from None

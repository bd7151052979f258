"""Who holds a workdir: one run at a time, by a lock that dies with its process, or in a bucket by a lease."""

import contextlib
import fcntl
import os
import pathlib
import socket
import tempfile
from collections.abc import Callable, Iterator

from vit_jax import disk, paths
from vit_jax.runtime import exchange, exits
from vit_jax.schema import ConfigError

OTHER = "name a directory on a disk that this account may write to"


def _exit(code, message):
  """Ends a program of one process."""
  exits.tell(f"{message}\n")
  os._exit(code)


@contextlib.contextmanager
def claim(
  workdir: pathlib.Path, leave: Callable[[int, str], None] = _exit, otherwise: str = "another --workdir"
) -> Iterator[None]:
  """Holds the workdir for this run; a second one is refused, with `otherwise` as what to take.

  The lock dies with the process, however it dies; a lease in a bucket is free after `leases.duration`. A lease that is
  lost, as the bucket is, ends the program by `leave`, with an exit code and a message.
  """
  if exchange.process() != 0:
    exchange.agree(None)
    yield
    return
  if paths.in_bucket(workdir):
    lease, problem = None, None
    try:
      lease = leases().Lease(workdir / "lock", leave)
    except ConfigError as error:
      problem = str(error)
    exchange.agree(problem)
    with contextlib.closing(lease):
      yield
    return
  workdir.mkdir(parents=True, exist_ok=True)
  with _opened(workdir / "lock") as file:
    exchange.agree(_lock(file, workdir, otherwise))
    yield


@contextlib.contextmanager
def locked(workdir: pathlib.Path, otherwise: str = "another --workdir") -> Iterator[None]:
  """As `claim`, for a program of one process that touches no device; ConfigError if another holds the workdir.

  `otherwise` is what the error advises to take.
  """
  if paths.in_bucket(workdir):
    with contextlib.closing(leases().Lease(workdir / "lock", _exit)):
      yield
    return
  workdir.mkdir(parents=True, exist_ok=True)
  with _opened(workdir / "lock") as file:
    if problem := _lock(file, workdir, otherwise):
      raise ConfigError(problem)
    yield


def obstacle(workdir: pathlib.Path) -> str | None:
  """Why a workdir that is not there cannot be made on this disk, in words; None where it can, which is tried."""
  if paths.in_bucket(workdir) or workdir.exists():
    return None
  above = next(each for each in workdir.absolute().parents if each.exists())
  try:
    os.rmdir(tempfile.mkdtemp(prefix=".vit_jax_", dir=above))
  except OSError as error:
    reason = error.strerror or str(error)
    return f"--workdir: {workdir} cannot be made in {above}: {reason}; {disk.ADVICE.get(error.errno, OTHER)}"
  return None


def holder(workdir: pathlib.Path) -> str | None:
  """The process that holds a workdir now, in words; None if it is free."""
  if paths.in_bucket(workdir):
    return leases().holder(workdir / "lock")
  try:
    with open(workdir / "lock", "r+") as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except FileNotFoundError:
    return None
  except BlockingIOError:
    return (workdir / "lock").read_text().strip() or "unknown"
  return None


def leases():
  """The module, which needs gcsfs."""
  from vit_jax.runtime import leases

  return leases


def _opened(path):
  """The file, made where there is none."""
  if path.exists() and not path.is_file():
    raise ConfigError(f"{path} is no regular file; remove it")
  return open(path, "a+")


def _lock(file, workdir, otherwise="another --workdir"):
  """Locks the file, or says who holds it."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    holder = file.read().strip() or "unknown"
    return f"{workdir} {exits.IN_USE} {holder}; wait for it, stop it, or take {otherwise}"
  with disk.writing(workdir / "lock"):
    file.truncate(0)
    os.write(file.fileno(), f"{os.getpid()} on {socket.gethostname()}\n".encode())  # nothing is left for the close
  return None

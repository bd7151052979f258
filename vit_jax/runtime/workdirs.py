"""Exclusive use of a workdir: a lock that the system releases with its process, or a lease in a bucket."""

import contextlib
import fcntl
import os
import pathlib
import socket
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import IO

from vit_jax.runtime import exchange, exits
from vit_jax.schema import ConfigError
from vit_jax.storage import errors, paths

OTHER = "Name a directory on a disk that this account may write to"


def _exit_program(code: int, message: str) -> None:
  """Ends a program of one process."""
  exits.print_last_message(f"{message}\n")
  os._exit(code)


@contextlib.contextmanager
def claim_workdir(
  workdir: pathlib.Path, leave: Callable[[int, str], None] = _exit_program, otherwise: str = "another --workdir"
) -> Iterator[None]:
  """Reserves the workdir for this run while the context is open, and rejects a second run.

  The system releases the lock when the process ends for any reason. A lease in a bucket is free after
  `leases.lease_duration`. All processes of the run must enter the context.

  Args:
    workdir: the directory. It is created if necessary.
    leave: ends the program with an exit code and a message. It is called if the lease or the bucket is lost.
    otherwise: the alternative that the error message suggests.

  Raises:
    ConfigError: another run uses the workdir.

  Example:
    import pathlib
    from vit_jax import runtime

    workdir = pathlib.Path("/tmp/run")
    with runtime.claim_workdir(workdir):
      print(runtime.describe_holder(workdir))
  """
  if exchange.process_index() != 0:
    exchange.raise_together(None)
    yield
    return
  if paths.is_in_bucket(workdir):
    lease, problem = None, None
    try:
      lease = import_leases().Lease(workdir / "lock", leave)
    except ConfigError as error:
      problem = str(error)
    exchange.raise_together(problem)
    assert lease is not None, problem
    with contextlib.closing(lease):
      yield
    return
  workdir.mkdir(parents=True, exist_ok=True)
  with _open_lock(workdir / "lock") as file:
    exchange.raise_together(_lock_file(file, workdir, otherwise))
    yield


@contextlib.contextmanager
def lock_workdir(workdir: pathlib.Path, otherwise: str = "another --workdir") -> Iterator[None]:
  """Reserves the workdir like `claim_workdir`, for a program of one process that uses no device.

  Args:
    workdir: the directory. It is created if necessary.
    otherwise: the alternative that the error message suggests.

  Raises:
    ConfigError: another run uses the workdir.
  """
  if paths.is_in_bucket(workdir):
    with contextlib.closing(import_leases().Lease(workdir / "lock", _exit_program)):
      yield
    return
  workdir.mkdir(parents=True, exist_ok=True)
  with _open_lock(workdir / "lock") as file:
    if problem := _lock_file(file, workdir, otherwise):
      raise ConfigError(problem)
    yield


def check_creatable(workdir: pathlib.Path) -> str | None:
  """Returns the reason why a workdir cannot be created on this disk, or None if it can be created or exists.

  The check creates and removes a temporary directory. Workdirs in buckets are not checked.

  Args:
    workdir: the directory.
  """
  if paths.is_in_bucket(workdir) or workdir.exists():
    return None
  above = next(each for each in workdir.absolute().parents if each.exists())
  try:
    os.rmdir(tempfile.mkdtemp(prefix=".vit_jax_", dir=above))
  except OSError as error:
    reason = error.strerror or str(error)
    return f"--workdir: {workdir} cannot be made in {above}: {reason}. {errors.ADVICE.get(error.errno, OTHER)}"
  return None


def describe_holder(workdir: pathlib.Path) -> str | None:
  """Returns a phrase that names the process that holds a workdir now, or None if the workdir is free.

  Args:
    workdir: a directory on a disk or in a bucket.
  """
  if paths.is_in_bucket(workdir):
    return import_leases().describe_holder(workdir / "lock")
  try:
    with open(workdir / "lock", "r+") as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except FileNotFoundError:
    return None
  except BlockingIOError:
    return (workdir / "lock").read_text().strip() or "unknown"
  return None


def import_leases() -> types.ModuleType:
  """Imports and returns the module `leases`, which needs gcsfs."""
  from vit_jax.runtime import leases

  return leases


def _open_lock(path: pathlib.Path) -> IO[str]:
  """Opens the lock file, and creates it if necessary."""
  if path.exists() and not path.is_file():
    raise ConfigError(f"{path} is not a regular file. Remove it")
  return open(path, "a+")


def _lock_file(file: IO[str], workdir: pathlib.Path, otherwise: str = "another --workdir") -> str | None:
  """Locks the file, or returns an error message that names the holder."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    holder = file.read().strip() or "unknown"
    return f"{workdir} {exits.IN_USE} {holder}. Wait for it, stop it, or use {otherwise}"
  with errors.add_file_name(workdir / "lock"):
    file.truncate(0)
    # Written without a buffer, so that closing the file cannot fail.
    os.write(file.fileno(), f"{os.getpid()} on {socket.gethostname()}\n".encode())
  return None

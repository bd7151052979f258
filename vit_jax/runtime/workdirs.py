"""Who holds a workdir: one run at a time, and the lock dies with its process, however it dies."""

import contextlib
import fcntl
import os
import pathlib
import socket
from collections.abc import Iterator

from vit_jax import disk
from vit_jax.runtime import exchange
from vit_jax.schema import ConfigError

IN_USE = "is in use by process"  # in the error of a workdir that another process holds


@contextlib.contextmanager
def claim(workdir: pathlib.Path) -> Iterator[None]:
  """Holds the workdir for this run; a second one is refused. The lock dies with the process, however it dies."""
  if exchange.process() != 0:
    exchange.agree(None)
    yield
    return
  workdir.mkdir(parents=True, exist_ok=True)
  with _opened(workdir / "lock") as file:
    exchange.agree(_lock(file, workdir))
    yield


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
  """As `claim`, for a program of one process that touches no device; ConfigError if another holds the workdir."""
  workdir.mkdir(parents=True, exist_ok=True)
  with _opened(workdir / "lock") as file:
    if problem := _lock(file, workdir):
      raise ConfigError(problem)
    yield


def holder(workdir: pathlib.Path) -> str | None:
  """The process that holds a workdir now, in words; None if it is free."""
  try:
    with open(workdir / "lock", "r+") as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except FileNotFoundError:
    return None
  except BlockingIOError:
    return (workdir / "lock").read_text().strip() or "unknown"
  return None


def _opened(path):
  """The file, made where there is none."""
  if path.exists() and not path.is_file():
    raise ConfigError(f"{path} is no regular file; remove it")
  return open(path, "a+")


def _lock(file, workdir):
  """Locks the file, or says who holds it."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    holder = file.read().strip() or "unknown"
    return f"{workdir} {IN_USE} {holder}; wait for it, stop it, or take another --workdir"
  with disk.writing(workdir / "lock"):
    file.truncate(0)
    os.write(file.fileno(), f"{os.getpid()} on {socket.gethostname()}\n".encode())  # nothing is left for the close
  return None

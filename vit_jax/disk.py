"""What is said when a disk or a bucket fails: which file, what is wrong with it, what to do."""

import contextlib
import errno
import os
import pathlib
import re
import sys
from collections.abc import Iterator

from vit_jax import paths

# What to do about an error of the disk.
ADVICE = {
  errno.ENOSPC: "the disk is full: make room (df shows where)",
  errno.EDQUOT: "your quota is used up: make room (quota shows how much)",
  errno.EFBIG: "files may not grow beyond the limit of this process: raise it (ulimit -f)",
  errno.EROFS: "it is mounted read-only: mount it for writing",
  errno.EACCES: "change its owner or its rights",
  errno.EPERM: "change its owner or its rights",
  errno.EIO: "check the disk (dmesg names its errors)",
  errno.EMFILE: "raise the limit of open files (ulimit -n)",
  errno.ENFILE: "raise the limit of open files of this machine",
  errno.EAGAIN: "raise the limit of processes (ulimit -u)",
  errno.ENOMEM: "free memory, or raise the limit (ulimit -v)",
  errno.EHOSTDOWN: "see whether network and bucket are there",
}
# Orbax asks for the bucket itself too, which the first of them does not allow.
REFUSED = "give this account the roles Storage Object User and Storage Legacy Bucket Reader for the bucket"
# How libraries that raise neither an OSError nor a number name what a bucket answered.
_ANSWERS = {
  "PERMISSION_DENIED": errno.EACCES,
  "UNAUTHENTICATED": errno.EACCES,
  "UNAVAILABLE": errno.EHOSTDOWN,
  "ABORTED: All": errno.EHOSTDOWN,  # tries have failed
  "DEADLINE_EXCEEDED": errno.EHOSTDOWN,
  "NOT_FOUND": errno.ENOENT,
}
_CODES = {401: errno.EACCES, 403: errno.EACCES, 404: errno.ENOENT, 429: errno.EHOSTDOWN, 503: errno.EHOSTDOWN}


def trouble(error: OSError) -> str:
  """The file, what is wrong with it and what to do, in one line."""
  # Some libraries raise an OSError that is a text and nothing else.
  text = str(error) if error.errno is None else error.strerror
  name = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
  advice = ADVICE.get(error.errno, "mend it")
  if error.errno == errno.EACCES and name.startswith(paths.BUCKET):
    advice = REFUSED
  return f"{name}{text}; {advice}, and run the same command again"


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
  """Gives an OSError the name of the file; of its own a failed write names none."""
  try:
    yield
  except OSError as error:
    if error.errno is not None:
      error.filename = str(path)
    raise


def hold(path: pathlib.Path) -> int | None:
  """A descriptor of a folder for `check_there`; None in a bucket, which has no folders that could be moved."""
  return None if paths.in_bucket(path) else os.open(path, os.O_RDONLY)


def release(descriptor: int | None) -> None:
  """Closes what `hold` gave."""
  if descriptor is not None:
    os.close(descriptor)


def check_there(path: pathlib.Path, descriptor: int | None) -> None:
  """FileNotFoundError if `path` leads no longer to what is open as `descriptor`: what is written there would be lost.

  The descriptor is held open, so that a file system that numbers files as it meets them keeps the number.
  """
  if descriptor is None:
    return
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    if os.path.samestat(os.stat(path), os.fstat(descriptor)):
      return
  raise FileNotFoundError(errno.ENOENT, "the workdir is gone: it was removed, moved or replaced", str(path))


def of_bucket(error: BaseException) -> int | None:
  """The number of the error that a bucket answered with, or of one that does not answer; None for any other error."""
  if isinstance(error, OSError) and error.errno and str(error.filename).startswith(paths.BUCKET):
    return error.errno
  if answer := next((code for word, code in _ANSWERS.items() if word in str(error)[:60]), None):
    return answer
  if (code := _CODES.get(getattr(error, "code", None))) is not None:  # of HTTP
    return code
  return of_bucket(error.__cause__) if error.__cause__ else None


def number(error: BaseException) -> int | None:
  """The number of the operating system's error that this one is or was made of; None for an error of a program."""
  if isinstance(error, OSError) and error.errno:
    return error.errno
  if text := re.search(r"os_error_code='(\d+)'", str(error)):
    return int(text[1])
  return number(error.__cause__) if error.__cause__ else of_bucket(error)


def unraisable(event) -> None:
  """A `sys.unraisablehook`: Python's own, but for reads and writes of TensorStore that end after another has failed.

  They find the loop closed that asked for them, and the one error is raised already.
  """
  if str(event.exc_value) != "Event loop is closed":
    sys.__unraisablehook__(event)

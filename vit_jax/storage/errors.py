"""Error messages for failures of disks and buckets: the file, the problem, and a fix."""

import contextlib
import errno
import os
import pathlib
import re
import sys
from collections.abc import Iterator

from vit_jax.storage import paths

# Advice for each error number.
ADVICE: dict[int | None, str] = {
  errno.ENOSPC: "Make room on the disk (df shows where)",
  errno.EDQUOT: "Make room in your quota (quota shows how much)",
  errno.EFBIG: "Raise the limit of file sizes of this process (ulimit -f)",
  errno.EROFS: "Mount the file system for writing",
  errno.EACCES: "Change its owner or its permissions",
  errno.EPERM: "Change its owner or its permissions",
  errno.EIO: "Check the disk (dmesg lists its errors)",
  errno.EMFILE: "Raise the limit of open files (ulimit -n)",
  errno.ENFILE: "Raise the limit of open files of this machine",
  errno.EAGAIN: "Raise the limit of processes (ulimit -u)",
  errno.ENOMEM: "Free memory, or raise the limit (ulimit -v)",
  errno.EHOSTDOWN: "Check that the network and the bucket are reachable",
}
# Orbax also reads the metadata of the bucket, which the first role does not allow.
REFUSED = "Give this account the roles Storage Object User and Storage Legacy Bucket Reader for the bucket"
# Texts of libraries that raise neither an OSError nor a number for the answer of a bucket.
_ANSWERS = {
  "PERMISSION_DENIED": errno.EACCES,
  "UNAUTHENTICATED": errno.EACCES,
  "UNAVAILABLE": errno.EHOSTDOWN,
  "ABORTED: All": errno.EHOSTDOWN,  # all retry attempts of TensorStore failed
  "DEADLINE_EXCEEDED": errno.EHOSTDOWN,
  "NOT_FOUND": errno.ENOENT,
}
_CODES: dict[int | str | None, int] = {
  401: errno.EACCES,
  403: errno.EACCES,
  404: errno.ENOENT,
  429: errno.EHOSTDOWN,
  503: errno.EHOSTDOWN,
}


def describe_error(error: OSError) -> str:
  """Returns one line with the file, the problem and the advice for an error."""
  # Some libraries raise an OSError that contains only a text.
  text = str(error) if error.errno is None else error.strerror
  name = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
  advice = ADVICE.get(error.errno, "Fix it")
  if error.errno == errno.EACCES and name.startswith(paths.BUCKET):
    advice = REFUSED
  return f"{name}{text}. {advice}, and run the same command again"


@contextlib.contextmanager
def add_file_name(path: pathlib.Path) -> Iterator[None]:
  """Adds the file name to an OSError, because the error of a failed write does not contain the name.

  Args:
    path: the file that is written inside the context.
  """
  try:
    yield
  except OSError as error:
    if error.errno is not None:
      error.filename = str(path)
    raise


def open_directory(path: pathlib.Path) -> int | None:
  """Opens a directory for `check_there`.

  Returns:
    A file descriptor, or None for a bucket, which has no directories that could be moved.
  """
  return None if paths.is_in_bucket(path) else os.open(path, os.O_RDONLY)


def close_directory(descriptor: int | None) -> None:
  """Closes the descriptor that `open_directory` returned."""
  if descriptor is not None:
    os.close(descriptor)


def check_there(path: pathlib.Path, descriptor: int | None) -> None:
  """Checks that a path still leads to the file or directory that is open as `descriptor`.

  Otherwise written data would be lost. The descriptor stays open for file systems that number files at their first use.
  They keep the number of an open file.

  Args:
    path: the path.
    descriptor: result of `open_directory`, or the descriptor of an open file. None disables the check.

  Raises:
    FileNotFoundError: the file or directory was removed, moved or replaced.
  """
  if descriptor is None:
    return
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    if os.path.samestat(os.stat(path), os.fstat(descriptor)):
      return
  raise FileNotFoundError(errno.ENOENT, "the workdir no longer exists: it was removed, moved or replaced", str(path))


def get_bucket_errno(error: BaseException) -> int | None:
  """Returns the error number for an error of a bucket, or None for any other error."""
  if isinstance(error, OSError) and error.errno and str(error.filename).startswith(paths.BUCKET):
    return error.errno
  if answer := next((code for word, code in _ANSWERS.items() if word in str(error)[:60]), None):
    return answer
  if (code := _CODES.get(getattr(error, "code", None))) is not None:  # HTTP status
    return code
  return get_bucket_errno(error.__cause__) if error.__cause__ else None


def get_errno(error: BaseException) -> int | None:
  """Returns the error number of the operating system that caused an exception, or None for a programming error."""
  if isinstance(error, OSError) and error.errno:
    return error.errno
  if text := re.search(r"os_error_code='(\d+)'", str(error)):
    return int(text[1])
  return get_errno(error.__cause__) if error.__cause__ else get_bucket_errno(error)


def hide_request_errors(event: "sys.UnraisableHookArgs") -> None:
  """A `sys.unraisablehook` that hides errors of TensorStore's requests that end after a failed request.

  These errors report that the event loop is closed. The first error was already raised.
  """
  if str(event.exc_value) != "Event loop is closed":
    sys.__unraisablehook__(event)

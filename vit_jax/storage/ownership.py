"""Preservation of owner, group and mode when a file is replaced, and resolution of symbolic links."""

import contextlib
import errno
import os
import pathlib
import stat


def find_target(path: pathlib.Path) -> pathlib.Path:
  """Resolves symbolic links of a path on a disk. The resulting file need not exist.

  Raises:
    OSError: the path is a link to itself.
  """
  if not path.is_symlink():
    return path
  target = pathlib.Path(os.path.realpath(path))
  if target.is_symlink():
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
  return target


def copy_mode(target: pathlib.Path, partial: pathlib.Path) -> int:
  """Gives a temporary file the owner, group and mode of the file that it will replace.

  Until `set_mode` is called with the result, the owner can always read and write the temporary file.

  Args:
    target: the file to replace, which need not exist.
    partial: the temporary file.

  Returns:
    The mode that the temporary file must have when it replaces the target.

  Raises:
    OSError: the target is not a regular file.
  """
  try:
    old = os.stat(target)
  except FileNotFoundError:
    return stat.S_IMODE(os.stat(partial).st_mode)
  if not stat.S_ISREG(old.st_mode):
    number = errno.EISDIR if stat.S_ISDIR(old.st_mode) else errno.EINVAL
    raise OSError(number, "it is not a regular file", str(target))
  new, mode = os.stat(partial), stat.S_IMODE(old.st_mode)
  if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
    try:
      os.chown(partial, old.st_uid, old.st_gid)
    except PermissionError:
      mode &= 0o777  # drops setuid and setgid, because the new file has another owner
      with contextlib.suppress(PermissionError):  # this account may not be in the group
        os.chown(partial, -1, old.st_gid)
  set_mode(partial, mode | stat.S_IRUSR | stat.S_IWUSR)
  return mode


def set_mode(path: pathlib.Path, mode: int) -> None:
  """Sets the mode of a file if it differs. Errors of file systems that do not allow the change are ignored.

  Args:
    path: the file.
    mode: permission bits.
  """
  if stat.S_IMODE(os.stat(path).st_mode) != mode:
    with contextlib.suppress(PermissionError):
      os.chmod(path, mode)

"""What is called a file of weights and is none: each must be one short error, and nothing may wait for it.

Each maker takes a path in an empty folder and returns the one that a user would name.
"""

import os
import pathlib
from collections.abc import Callable


def pipe(path: pathlib.Path) -> pathlib.Path:
  os.mkfifo(path)
  return path


def folder(path: pathlib.Path) -> pathlib.Path:
  path.mkdir()
  return path


def link(target: str | None) -> Callable[[pathlib.Path], pathlib.Path]:
  """To somewhere; None is itself."""

  def make(path):
    path.symlink_to(target or path)
    return path

  return make


PATHS: dict[str, Callable[[pathlib.Path], pathlib.Path]] = {
  "a pipe": pipe,
  "a folder": folder,
  "a link to itself": link(None),
  "a link to nothing": link("/nowhere"),
  "a device": link("/dev/zero"),
  "nothing": lambda path: path,
  "a name of 5,000 characters": lambda path: path.with_name("n" * 5000 + ".npz"),
}
# No command line can say this one; files of Python and JSON can.
ZERO = "a\0.npz"

"""Paths that are not weight files. Each must raise one short error, and no reader may wait for it.

Each function takes a path in an empty folder and returns the path that a user would name.
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
  """Returns a function that makes a link to a target. None links to the link itself."""

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
# A command line cannot contain this name, but Python and JSON files can.
ZERO = "a\0.npz"

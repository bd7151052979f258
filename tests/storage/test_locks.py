"""Locks of a disk: files that several write at once, and blocks that one process at a time is in."""

import subprocess
import sys
import threading

import pytest

from tests import runs
from vit_jax.storage import files, locks

_KILLED = """
import os, pathlib, signal, sys
from vit_jax.storage import files
with files.atomic_write(pathlib.Path(sys.argv[1])) as partial:
  partial.write_text("half")
  os.kill(os.getpid(), signal.SIGKILL)
"""


def test_several_who_replace_a_file_at_once_write_to_files_of_their_own(tmp_path):
  file = tmp_path / "a"
  with files.atomic_write(file) as first, files.atomic_write(file) as second, files.atomic_write(file) as third:
    assert len({first, second, third}) == 3
    for each, text in ((first, "first"), (second, "second"), (third, "third")):
      each.write_text(text)
  assert file.read_text() == "first"  # which ends last
  assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.heavy
def test_what_killed_writers_leave_is_taken_by_the_next_one(tmp_path):
  file = tmp_path / "a"
  for _ in range(3):
    subprocess.run([sys.executable, "-c", _KILLED, file], cwd=runs.ROOT, check=False)
    assert [each.name for each in tmp_path.iterdir()] == [".a.partial"]
  files.write_text(file, "new")
  assert [each.name for each in tmp_path.iterdir()] == ["a"]
  assert file.read_text() == "new"


def test_an_error_of_a_missing_file_inside_passes(tmp_path):
  with pytest.raises(FileNotFoundError, match="mine"), locks.open_partial(tmp_path / "a"):
    raise FileNotFoundError("mine")


def test_a_file_takes_its_place_when_no_other_process_of_the_folder_does(tmp_path):
  before, inside = threading.Event(), threading.Event()

  def other():
    with locks.lock_folder(tmp_path):
      inside.set()

  def place():
    thread.start()
    before.wait(0.2)
    assert not inside.is_set()

  thread = threading.Thread(target=other)
  with files.atomic_write(tmp_path / "a", place) as partial:
    partial.write_text("new")
  thread.join()
  assert inside.is_set() and (tmp_path / "a").read_text() == "new"

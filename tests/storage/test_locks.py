"""Tests of file locks: files that several processes write, and blocks that only one process may execute."""

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


def test_concurrent_writers_of_a_file_use_separate_partial_files(tmp_path):
  file = tmp_path / "a"
  with files.atomic_write(file) as first, files.atomic_write(file) as second, files.atomic_write(file) as third:
    assert len({first, second, third}) == 3
    for each, text in ((first, "first"), (second, "second"), (third, "third")):
      each.write_text(text)
  assert file.read_text() == "first"  # the context of `first` ends last
  assert [each.name for each in tmp_path.iterdir()] == ["a"]


@pytest.mark.heavy
def test_partial_file_of_killed_writers_is_reused(tmp_path):
  file = tmp_path / "a"
  for _ in range(3):
    subprocess.run([sys.executable, "-c", _KILLED, file], cwd=runs.ROOT, check=False)
    assert [each.name for each in tmp_path.iterdir()] == [".a.partial"]
  files.write_text(file, "new")
  assert [each.name for each in tmp_path.iterdir()] == ["a"]
  assert file.read_text() == "new"


def test_missing_file_error_inside_the_block_is_passed_on(tmp_path):
  with pytest.raises(FileNotFoundError, match="mine"), locks.open_partial(tmp_path / "a"):
    raise FileNotFoundError("mine")


def test_file_is_replaced_while_no_other_process_holds_the_folder_lock(tmp_path):
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


def test_blocks_with_the_same_lock_file_wait_for_each_other(tmp_path):
  inside = threading.Event()

  def other():
    with locks.lock_file(tmp_path / "a.lock"):
      inside.set()

  thread = threading.Thread(target=other)
  with locks.lock_file(tmp_path / "a.lock"):
    thread.start()
    assert not inside.wait(0.2)
    files.write_text(tmp_path / "b", "new")  # the lock of the folder is free
  thread.join()
  assert inside.is_set() and (tmp_path / "a.lock").exists()

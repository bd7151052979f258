"""Tests of local data files: regular files are read whole, and changes are detected by their stamps."""

import os
import shutil

import pytest

from vit_jax.data import local_files


def test_file_is_read_whole_and_a_too_large_file_is_refused(tmp_path, monkeypatch):
  (tmp_path / "x").write_bytes(b"12345")
  assert local_files.read_file(tmp_path / "x") == b"12345"
  monkeypatch.setattr(local_files, "LARGEST", 4)
  with pytest.raises(OSError, match=r"it has 5 bytes. Allowed: 4"):
    local_files.read_file(tmp_path / "x")


def test_stamps_are_none_for_missing_files_and_invalid_names(tmp_path):
  names = [f"{tmp_path}/{i}" for i in range(2001)]
  for i in (0, 1500, 2000):
    (tmp_path / str(i)).write_bytes(bytes(i))
  stamps = local_files.read_stamps([*names, "a\0b", "\ud800"])
  assert {i: stamp[0] for i, stamp in enumerate(stamps) if stamp[0] is not None} == {0: 0, 1500: 1500, 2000: 2000}
  assert stamps[1500] == local_files.read_stamp(names[1500]) and stamps[-2:] == [(None, None)] * 2
  os.utime(names[0], ns=(1, 1))
  assert local_files.read_stamp(names[0]) == (0, 1) != stamps[0]


def test_state_changes_with_the_content_at_equal_size_and_time(tmp_path):
  file = tmp_path / "a"
  file.write_bytes(b"one")
  before = local_files.read_states([str(file), str(tmp_path / "absent"), "a\0b"])
  status = file.stat()
  assert before == [(status.st_ino, 3, status.st_mtime_ns, status.st_ctime_ns), None, None]
  file.write_bytes(b"two")
  os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
  (after,) = local_files.read_states([str(file)])
  assert after[:3] == before[0][:3] and after != before[0]


def test_pipe_instead_of_a_file_is_closed_again(tmp_path):
  os.mkfifo(tmp_path / "x.jpg")
  before = len(os.listdir("/proc/self/fd"))
  for _ in range(5):
    with pytest.raises(OSError, match="named pipe"):
      local_files.read_file(tmp_path / "x.jpg")
  assert len(os.listdir("/proc/self/fd")) == before


def test_version_changes_with_the_content_at_equal_size_and_time(tmp_path):
  file, other = tmp_path / "a", tmp_path / "b"
  for size in (1, local_files.WHOLE, local_files.WHOLE + 1, 3 * local_files.WHOLE):
    file.write_bytes(bytes(size))
    os.utime(file, ns=(10**18, 10**18))
    before = local_files.read_version(file)
    assert local_files.read_version(str(file)) == before and before.size == size
    with file.open("r+b") as opened:
      opened.seek(size // 3)  # between two sampled blocks of a large file
      opened.write(b"x")
    os.utime(file, ns=(10**18, 10**18))
    after = local_files.read_version(file)
    assert (after.size, after.modified, after.inode) == (before.size, before.modified, before.inode)
    assert after != before
    assert (after.sampled == before.sampled) == (size > local_files.WHOLE)
    shutil.copy2(file, other)
    assert local_files.read_version(other).modified == after.modified and local_files.read_version(other) != after


def test_first_and_last_byte_of_a_large_file_are_sampled(tmp_path):
  file = tmp_path / "a"
  digests = set()
  for place in (None, 0, 10**6 - 1):
    content = bytearray(10**6)
    if place is not None:
      content[place] = 1
    file.write_bytes(content)
    digests.add(local_files.read_version(file).sampled)
  assert len(digests) == 3


def test_relative_path_is_resolved_in_the_current_folder(tmp_path, monkeypatch):
  for folder in "ab":
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "x").write_text("1")
  versions = []
  for folder in "ab":
    monkeypatch.chdir(tmp_path / folder)
    versions.append(local_files.read_version("x"))
  assert versions[0].path == f"{tmp_path}/a/x" and versions[1].path == f"{tmp_path}/b/x"

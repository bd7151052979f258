"""Files of data: regular ones are read whole, and a change shows in their stamp."""

import os

import pytest

from vit_jax.data import local_files


def test_a_file_is_read_whole_and_one_that_is_too_large_not_at_all(tmp_path, monkeypatch):
  (tmp_path / "x").write_bytes(b"12345")
  assert local_files.contents(tmp_path / "x") == b"12345"
  monkeypatch.setattr(local_files, "LARGEST", 4)
  with pytest.raises(OSError, match="it has 5 bytes; allowed: 4"):
    local_files.contents(tmp_path / "x")


def test_stamps_are_those_of_each_file_and_none_of_what_cannot_be_asked(tmp_path):
  names = [f"{tmp_path}/{i}" for i in range(2001)]
  for i in (0, 1500, 2000):
    (tmp_path / str(i)).write_bytes(bytes(i))
  stamps = local_files.stamps([*names, "a\0b", "\ud800"])
  assert {i: stamp[0] for i, stamp in enumerate(stamps) if stamp[0] is not None} == {0: 0, 1500: 1500, 2000: 2000}
  assert stamps[1500] == local_files.stamp(names[1500]) and stamps[-2:] == [(None, None)] * 2
  os.utime(names[0], ns=(1, 1))
  assert local_files.stamp(names[0]) == (0, 1) != stamps[0]


def test_a_file_that_is_replaced_by_a_pipe_is_closed_again(tmp_path):
  os.mkfifo(tmp_path / "x.jpg")
  before = len(os.listdir("/proc/self/fd"))
  for _ in range(5):
    with pytest.raises(OSError, match="named pipe"):
      local_files.contents(tmp_path / "x.jpg")
  assert len(os.listdir("/proc/self/fd")) == before

"""Tests that a replaced file keeps its owner, group and mode, and that a link to it stays."""

import errno
import os
import stat

import pytest

from vit_jax.storage import files


def mode(path):
  return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o664, 0o444, 0o400, 0o755])
def test_replaced_file_keeps_its_mode_and_is_never_more_accessible(tmp_path, bits):
  file = tmp_path / "config.json"
  file.write_text("old")
  file.chmod(bits)
  with files.atomic_write(file) as partial:
    assert mode(partial) == bits | 0o600
    partial.write_text("new")
    assert mode(partial) == bits | 0o600
  assert (file.read_text(), mode(file)) == ("new", bits)


def test_mode_is_kept_if_a_library_recreates_the_file(tmp_path):
  file = tmp_path / "a"
  file.write_text("old")
  file.chmod(0o600)
  with files.atomic_write(file) as partial:
    partial.unlink()
    partial.write_text("new")
  assert mode(file) == 0o600


@pytest.mark.parametrize(("mask", "bits"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_mode_of_a_new_file_follows_the_umask(tmp_path, mask, bits):
  before = os.umask(mask)
  try:
    files.write_text(tmp_path / "new", "text")
  finally:
    os.umask(before)
  assert mode(tmp_path / "new") == bits


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another owner")
def test_replaced_file_keeps_its_owner_and_group(tmp_path):
  file = tmp_path / "a"
  file.write_text("old")
  os.chown(file, 1234, 2345)
  file.chmod(0o640)
  files.write_text(file, "new")
  assert (file.stat().st_uid, file.stat().st_gid, mode(file)) == (1234, 2345, 0o640)


def test_setuid_bit_is_dropped_if_the_owner_cannot_be_kept(tmp_path, monkeypatch):
  file = tmp_path / "a"
  file.write_text("old")
  os.chown(file, 1234, 2345)
  file.chmod(0o4750)
  calls = []

  def refuse(path, user, group):
    calls.append((user, group))
    raise PermissionError(errno.EPERM, "Operation not permitted")

  monkeypatch.setattr(os, "chown", refuse)
  files.write_text(file, "new")
  assert calls == [(1234, 2345), (-1, 2345)]
  assert (file.read_text(), mode(file)) == ("new", 0o750)


@pytest.mark.parametrize("exists", [True, False])
def test_link_stays_and_its_target_is_replaced_atomically(tmp_path, exists):
  (tmp_path / "real").mkdir()
  (tmp_path / "links").mkdir()
  target, link = tmp_path / "real/config.json", tmp_path / "links/config.json"
  if exists:
    target.write_text("old")
    target.chmod(0o600)
  (tmp_path / "links/middle").symlink_to("../real/config.json")
  link.symlink_to("middle")
  with files.atomic_write(link) as partial:
    assert partial.parent == target.parent  # on the same file system
    partial.write_text("new")
  assert link.is_symlink() and os.readlink(link) == "middle"
  assert target.read_text() == "new" and not target.is_symlink()
  assert not exists or mode(target) == 0o600
  assert sorted(os.listdir(tmp_path / "real")) == ["config.json"]
  assert sorted(os.listdir(tmp_path / "links")) == ["config.json", "middle"]


def test_error_of_a_looping_or_broken_link_names_it(tmp_path):
  (tmp_path / "loop").symlink_to("loop")
  (tmp_path / "lost").symlink_to("gone/file")
  for name in ("loop", "lost"):
    with pytest.raises(OSError) as error:
      files.write_text(tmp_path / name, "text")
    assert error.value.filename == str(tmp_path / name)
    assert (tmp_path / name).is_symlink()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_other_than_regular_files_are_not_replaced(tmp_path, make):
  make(tmp_path / "a")
  with pytest.raises(OSError, match="not a regular file"), files.atomic_write(tmp_path / "a"):
    pytest.fail("it may not be written")
  assert os.listdir(tmp_path) == ["a"]

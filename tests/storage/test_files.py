"""Tests of files: atomic replacement, readable JSON, writable paths and cache directories."""

import csv
import json
import os
import time

import pytest

from vit_jax.schema import ConfigError
from vit_jax.storage import files


def test_file_is_replaced_atomically(tmp_path):
  file = tmp_path / "result.json"
  files.write_text(file, "old")
  with files.atomic_write(file) as partial:
    partial.write_text("new")
    assert file.read_text() == "old"
    assert partial.parent == file.parent  # on the same file system, so that the replacement is atomic
  assert file.read_text() == "new"
  assert [f.name for f in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [None, "old"])
def test_interrupted_write_keeps_the_previous_file(tmp_path, error, before):
  file = tmp_path / "result.json"
  if before:
    file.write_text(before)
  with pytest.raises(error), files.atomic_write(file) as partial:
    partial.write_text("half")
    raise error
  assert [f.name for f in tmp_path.iterdir()] == (["result.json"] if before else [])
  assert not before or file.read_text() == before


def test_file_name_of_any_valid_length_is_replaced(tmp_path):
  for name in ("n" * 255, "\u00e9" * 127, "n" * 200, "n" * 201):
    files.write_text(tmp_path / name, name)
    files.write_text(tmp_path / name, name)
    assert (tmp_path / name).read_text() == name
  assert len(os.listdir(tmp_path)) == 4


def test_size_of_a_missing_file_is_none(tmp_path):
  (tmp_path / "a").write_bytes(b"four")
  assert (files.get_size(tmp_path / "a"), files.get_size(tmp_path / "b")) == (4, None)


def test_json_is_read_back_and_a_missing_file_is_none(tmp_path):
  file = tmp_path / "a.json"
  files.write_text(file, json.dumps({"a": [1, None, "ü"]}))
  assert files.read_json(file) == {"a": [1, None, "ü"]}
  assert files.read_json(tmp_path / "none.json") is None


@pytest.mark.parametrize(
  ("text", "message"), [('{"a"', "cannot be read as JSON"), ("[1]", "does not contain a JSON object")]
)
def test_error_of_invalid_json_names_the_file(tmp_path, text, message):
  (tmp_path / "a.json").write_text(text)
  with pytest.raises(ConfigError, match=rf"a\.json {message}"):
    files.read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("a.json", r"a\.json: \.json is not a format. End the name in \.csv or \.npz"),
    ("a", r"a: no suffix is not a format. End the name in \.csv or \.npz"),
    ("none/a.csv", r"the folder .*none does not exist. Create it"),
    ("folder.csv", r"folder\.csv is a folder. Name a file"),
    ("file/a.csv", r"the folder .*file does not exist. Create it"),
  ],
)
def test_unwritable_path_is_refused_in_advance(tmp_path, name, message):
  (tmp_path / "folder.csv").mkdir()
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match=message):
    files.check_path(tmp_path / name)


def test_cache_directory_follows_the_environment(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  assert files.get_cache_directory("features") == tmp_path / "vit_jax/features"
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert (
    files.get_cache_directory("features")
    == files.get_local_cache_directory("features")
    == tmp_path / ".cache/vit_jax/features"
  )


@pytest.mark.heavy
def test_files_for_libraries_stay_on_a_disk_if_the_cache_is_in_a_bucket(bucket, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(bucket))
  monkeypatch.setenv("HOME", str(tmp_path))
  assert files.get_cache_directory("index") == bucket / "vit_jax/index"
  assert files.get_local_cache_directory("index") == tmp_path / ".cache/vit_jax/index"


@pytest.mark.parametrize("leads", ["../blobs/gone", "config.json"])
def test_error_of_a_broken_json_link_names_link_and_target(tmp_path, leads):
  (tmp_path / "config.json").symlink_to(leads)
  with pytest.raises(ConfigError, match=f"config.json is a link to '{leads}', which does not exist. Restore that file"):
    files.read_json(tmp_path / "config.json")


@pytest.mark.parametrize(
  ("data", "expected_message"),
  [
    (b"[" * 900 + b"]" * 900, "deeper than 64"),
    (b'{"a":' * 200_000, "deeper than 64"),
    (b"\xff{}", "utf-8"),
    (b" " * (2**24 + 1), "longer than 16,777,216 bytes"),
    (b"9" * 5000, "digits"),
    (b'"' + b"[" * 10 + b'\\"', "Unterminated"),
  ],
)
def test_json_that_is_too_deep_too_long_or_not_text_is_one_error(tmp_path, data, expected_message):
  with pytest.raises(ValueError, match=expected_message):
    files.parse_json(data)
  (tmp_path / "a.json").write_bytes(data)
  with pytest.raises(ConfigError, match=r"a\.json cannot be read as JSON.*. Fix or remove it"):
    files.read_json(tmp_path / "a.json")


def test_brackets_in_strings_do_not_count_as_depth():
  value = {"a": ["[" * 1000 + '\\"[', "]"], "b": [[[1]]], "c": [{}] * 100}
  assert files.parse_json(json.dumps(value).encode()) == value


def test_hostile_json_is_refused_quickly():
  started = time.process_time()
  for data in (b'"\\' * 2**23, b'"' * 2**24, b"[]" * 2**18, b"{" * 2**24):
    with pytest.raises(ValueError):
      files.parse_json(data)
  assert time.process_time() - started < 5


def test_json_is_read_only_from_regular_files(tmp_path):
  (tmp_path / "folder").mkdir()
  (tmp_path / "device").symlink_to("/dev/zero")
  for name in ("folder", "device"):
    with pytest.raises(ConfigError, match="not a file"):
      files.read_json(tmp_path / name)


NAMES = ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1", "\n=1", "＝1", "'a", "''=1", "a=1", "", " =1", "a'b", "plain"]


def test_surrogates_in_names_are_replaced_and_bytes_of_names_are_kept(tmp_path):
  files.write_csv(
    tmp_path / "a.csv", [[files.escape_csv(name)] for name in ("a\ud800b", "a\udffff", "a\udc80b", "\ud800=1")]
  )
  assert (tmp_path / "a.csv").read_bytes() == "a\ufffdb\na\ufffdf\n".encode() + b"a\x80b\n" + "\ufffd=1\n".encode()


def test_names_in_csv_are_not_formulas_and_are_recoverable(tmp_path):
  files.write_csv(tmp_path / "a.csv", [[files.escape_csv(name), -1.5] for name in NAMES])
  with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
    rows = list(csv.reader(file))
  assert not any(row[0][:1] in set("=+-@\t\r\n＝") for row in rows if row[0])
  assert [row[0].removeprefix("'") for row in rows] == NAMES
  assert {row[1] for row in rows} == {"-1.5"}


def test_pipe_is_an_error_instead_of_a_wait(tmp_path):
  os.mkfifo(tmp_path / "pipe")
  with pytest.raises(OSError, match="not a regular file") as error:
    files.read_if_exists(tmp_path / "pipe")
  assert error.value.filename == str(tmp_path / "pipe")

"""Files: replaced whole or not at all, JSON that can be read, paths that can be written, where caches are."""

import json

import pytest

from vit_jax import files
from vit_jax.schema import ConfigError


def test_a_file_is_replaced_at_once(tmp_path):
  file = tmp_path / "result.json"
  files.write_text(file, "old")
  with files.replacing(file) as partial:
    partial.write_text("new")
    assert file.read_text() == "old"
    assert partial.parent == file.parent  # of one file system, or there would be a moment without either
  assert file.read_text() == "new"
  assert [f.name for f in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [None, "old"])
def test_what_is_cut_short_leaves_what_was_there(tmp_path, error, before):
  file = tmp_path / "result.json"
  if before:
    file.write_text(before)
  with pytest.raises(error), files.replacing(file) as partial:
    partial.write_text("half")
    raise error
  assert [f.name for f in tmp_path.iterdir()] == (["result.json"] if before else [])
  assert not before or file.read_text() == before


def test_json_comes_back_and_an_absent_file_is_none(tmp_path):
  file = tmp_path / "a.json"
  files.write_text(file, json.dumps({"a": [1, None, "ü"]}))
  assert files.read_json(file) == {"a": [1, None, "ü"]}
  assert files.read_json(tmp_path / "none.json") is None


@pytest.mark.parametrize(("text", "message"), [('{"a"', "cannot be read as JSON"), ("[1]", "holds no JSON object")])
def test_what_is_no_json_object_is_an_error_that_names_the_file(tmp_path, text, message):
  (tmp_path / "a.json").write_text(text)
  with pytest.raises(ConfigError, match=rf"a\.json {message}"):
    files.read_json(tmp_path / "a.json")


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("a.json", r"a\.json: \.json is not a format; end the name in \.csv or \.npz"),
    ("a", r"a: no suffix is not a format; end the name in \.csv or \.npz"),
    ("none/a.csv", r"there is no folder .*none; make it"),
    ("folder.csv", r"folder\.csv is a folder; name a file"),
    ("file/a.csv", r"there is no folder .*file; make it"),
  ],
)
def test_a_path_that_cannot_be_written_is_refused_before_the_work(tmp_path, name, message):
  (tmp_path / "folder.csv").mkdir()
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match=message):
    files.check_path(tmp_path / name)


def test_caches_are_where_the_environment_says(tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  assert files.cache("features") == tmp_path / "vit_jax/features"
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert files.cache("features") == tmp_path / ".cache/vit_jax/features"

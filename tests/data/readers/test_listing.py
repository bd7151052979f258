"""Tests of files with many records: the files that a path matches, their splits, and reads of byte ranges."""

import threading

import pytest

from vit_jax import schema
from vit_jax.data.readers import listing
from vit_jax.schema.errors import AbsentError


def listed(path):
  with schema.enter_key("config.data"):
    return listing.list_files(str(path), (".tar",), "tar shards")


def touch(root, *names):
  for name in names:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(name.encode())


@pytest.mark.parametrize(
  ("name", "split"),
  [
    ("train-00000-of-00002.parquet", "train"),
    ("data/validation-00000-of-00001-4b2cf1ffd3.parquet", "validation"),
    ("imagenet1k-train-0000.tar", "train"),
    ("imagenet1k-validation-63.tar", "validation"),
    ("train/0000.tar", "train"),
    ("a/train/shard_00017.tar", "shard"),
    ("default/partial-train/0000.parquet", "train"),
    ("00000.tar", "train"),
    ("val.jsonl", "val"),
    ("full.tar", "full"),
  ],
)
def test_split_is_parsed_from_the_file_name(name, split):
  assert listing.parse_split(name) == split


def test_path_is_a_file_a_folder_or_a_pattern(tmp_path):
  touch(tmp_path, *(f"a/x-train-{i:04d}.tar" for i in range(12)), "a/x-val-0000.tar", "a/notes.txt", "a/.hidden.tar")
  everything = listed(tmp_path).names
  assert len(everything) == 13 and everything == tuple(sorted(everything)) and everything[0] == "a/x-train-0000.tar"
  assert listed(tmp_path / "a/x-val-0000.tar").names == ("x-val-0000.tar",)
  assert listed(tmp_path / "a/x-train-{0003..0005}.tar").names == tuple(f"x-train-000{i}.tar" for i in (3, 4, 5))
  assert listed(tmp_path / "{a,b}/x-{train-0001,val-0000}.tar".replace(",b", "")).names == (
    "a/x-train-0001.tar",
    "a/x-val-0000.tar",
  )
  assert len(listed(tmp_path / "a/x-train-*.tar").names) == 12
  assert listed(tmp_path / "*/x-val-*.tar").names == ("a/x-val-0000.tar",)
  assert {split: len(files.names) for split, files in listing.group_by_split(listed(tmp_path)).items()} == {
    "train": 12,
    "val": 1,
  }


def test_existing_name_with_braces_is_that_file(tmp_path):
  touch(tmp_path, "x{1..2}.tar")
  assert listed(tmp_path / "x{1..2}.tar").names == ("x{1..2}.tar",)


@pytest.mark.parametrize(
  ("path", "kind", "message"),
  [
    ("a/x-{0..3}.tar", AbsentError, "no file matches 'x-3.tar'"),
    ("nowhere", AbsentError, "does not exist"),
    ("a/*.zip", AbsentError, "no tar shards"),
    ("a/x-{5..1}.tar", schema.ConfigError, "'{5..1}' in a path is not a range"),
    ("a/{0..9999}{0..9999}.tar", schema.ConfigError, "more than a million"),
    ("a/{0..99999999999}.tar", schema.ConfigError, "is not a range"),
    ("empty", schema.ConfigError, "e.tar is empty"),
  ],
)
def test_path_without_matching_files_is_an_error_at_its_key(tmp_path, path, kind, message):
  touch(tmp_path, "a/x-0.tar", "a/x-1.tar", "a/x-2.tar")
  (tmp_path / "empty").mkdir()
  (tmp_path / "empty/e.tar").touch()
  with pytest.raises(kind, match=message) as caught:
    listed(tmp_path / path)
  assert caught.value.place == "config.data.path"


def test_split_in_two_folders_is_refused(tmp_path):
  touch(tmp_path, "cats/train-0.tar", "dogs/train-0.tar")
  with pytest.raises(schema.ConfigError, match=r"'train' are in several folders .*: cats, dogs"):
    listing.group_by_split(listed(tmp_path))


def test_links_to_parent_folders_terminate(tmp_path):
  touch(tmp_path, "a/x.tar")
  (tmp_path / "a/up").symlink_to(tmp_path)
  (tmp_path / "a/loop").symlink_to("loop")
  assert "a/x.tar" in listed(tmp_path).names


def test_threads_read_more_files_than_may_be_open(tmp_path, monkeypatch):
  monkeypatch.setattr(listing, "OPEN", 3)
  touch(tmp_path, *(f"{i}.tar" for i in range(20)))
  files, wrong = listed(tmp_path), []

  def read(seed):
    for i in range(300):
      file = (i * 7 + seed) % 20
      if files.read(file, 1, 4) != files.names[file].encode()[1:4]:
        wrong.append(file)

  threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong


def test_file_that_became_shorter_is_an_error_of_the_file(tmp_path):
  touch(tmp_path, "a.tar")
  files = listed(tmp_path)
  with pytest.raises(OSError, match=r"a\.tar ends before byte 9") as caught:
    files.read(0, 2, 9)
  assert caught.value.errno is None

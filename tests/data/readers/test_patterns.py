"""Tests of path patterns against the expansion of Bash."""

import subprocess

import pytest

from tests import forms, streams
from tests.image_files import labels
from vit_jax import schema
from vit_jax.data.readers import listing, locations, patterns
from vit_jax.schema.errors import AbsentError

NAMES = (
  *("d1/plain/a-train-0.tar", "d1/plain/a-train-1.tar", "d2/plain/a-test-0.tar", "e/plain/b.tar", "d1/other/c.tar"),
  *("d[1]/plain/x.tar", ".hidden/plain/h.tar", "d1/plain/.h.tar", "q/x{1..2}.tar", "q/[a].tar", "q/a.tar", "x.tar"),
)


@pytest.fixture
def tree(tmp_path, monkeypatch):
  for name in NAMES:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text(name)
  monkeypatch.chdir(tmp_path)
  return tmp_path


def listed(path):
  with schema.enter_key("config.data"):
    files = listing.list_files(str(path), (".tar",), "tar shards")
  return {(files.root / name).read_text() for name in files.names}


def bash(pattern):
  """Returns the files that Bash expands a pattern without blanks to.

  As with `nullglob`, the result is empty if there is no match.
  """
  script = f'shopt -s nullglob; LC_ALL=C; for file in {pattern}; do printf "%s\\n" "$file"; done'
  out = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout
  return {line.removeprefix("./") for line in out.splitlines()}


@pytest.mark.parametrize(
  "pattern",
  [
    *("d*/plain/*.tar", "./d*/plain/*.tar", "?/plain/*.tar", "d[12]/plain/*.tar", "d[!1]/plain/*.tar", "*/plain/b.tar"),
    *(
      "d[^1]/plain/*.tar",
      "*/*/*.tar",
      "d1/*/[ac]*.tar",
      "*.tar",
      "{d1,d2}/plain/*.tar",
      "d{1..2}/plain/*.tar",
      "d1/plain/.*.tar",
    ),
    *("{d1/plain,q}/a*.tar", "d1/plain/a-train-{0..1}.tar", "d[[]1]/plain/*.tar", "q/[[]a].tar", "q/x[{]1..2}.tar"),
    *(".h*/plain/*.tar", "d1//plain/a*.tar", "d1/../d*/plain/a-t[er]*.tar"),
  ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_patterns_in_any_component_match_like_a_shell(tree, pattern, absolute):
  expected = bash(pattern)
  assert expected
  if pattern.startswith("d1/../"):
    expected = {name.removeprefix("d1/../") for name in expected}
  expected = {name.replace("//", "/") for name in expected}
  assert listed(f"{tree}/{pattern}" if absolute else pattern) == expected


def test_pattern_may_match_folders(tree):
  assert listed("d*/plain") == bash("d*/plain/*.tar")
  assert listed("d[12]") == bash("d[12]/*/*.tar")


def test_existing_name_takes_precedence_over_the_pattern(tree):
  assert listed("d[1]/plain/*.tar") == listed(tree / "d[1]/plain/*.tar") == {"d[1]/plain/x.tar"}
  assert listed("d[1]/plain") == listed("d[1]") == listed("d[1]/plain/x.tar") == {"d[1]/plain/x.tar"}
  assert listed("q/[a].tar") == {"q/[a].tar"} and listed("q/x{1..2}.tar") == {"q/x{1..2}.tar"}
  assert listed("d[1-2]/plain/*.tar") == bash("d[1-2]/plain/*.tar")


@pytest.mark.parametrize("pattern", ["z*/plain/*.tar", "./z*", "d[3]/plain/*.tar", "?/z.tar"])
def test_error_of_a_pattern_without_a_match_explains_escaping(tree, pattern):
  with pytest.raises(AbsentError, match=r"config\.data\.path: no tar shards .*put it in brackets: \[\[\], \["):
    listed(pattern)


@pytest.mark.parametrize("pattern", ["d{1,3}/plain/*.tar", "d1/plain/a-train-{0..2}.tar"])
def test_each_alternative_of_braces_must_match(tree, pattern):
  with pytest.raises(AbsentError, match=r"config\.data\.path: no file matches '.*', an alternative of "):
    listed(pattern)


@pytest.mark.parametrize("form", ["tars", "parquet", "inline"])
def test_readers_accept_files_of_several_matched_folders(tmp_path, form, monkeypatch):
  write, reader = forms.FORMS[form]
  for first, folder, values in ((0, "d1", [0, 1]), (2, "d2", [2, 1])):
    write(tmp_path / folder, [streams.file(first + i) for i in range(2)], values)
  monkeypatch.chdir(tmp_path)
  pattern = {"tars": "d*/*.tar", "parquet": "./d?/data/*.parquet", "inline": "d[12]/*.jsonl"}[form]
  assert labels(forms.opened(reader, pattern, test="train")) == [0, 1, 2, 1]


@pytest.mark.heavy
def test_patterns_in_buckets_follow_the_same_rules(bucket, bucket_server, tmp_path, tree):
  bucket_server.fill(tree, bucket.name)

  def names(pattern):
    files = listing.list_files(f"{bucket}/{pattern}", (".tar",), "tar shards")
    return {str(files.root / name).removeprefix(f"{bucket}/") for name in files.names}

  for pattern in ("d*/plain/*.tar", "{d1,d2}/plain/*.tar", "q/[[]a].tar", "?/plain/b.tar"):
    assert names(pattern) == bash(pattern)
  assert names("d[1]/plain/*.tar") == names("d[1]") == {"d[1]/plain/x.tar"}
  assert names("q/[a].tar") == {"q/[a].tar"} and names("q/a.tar") == {"q/a.tar"}
  with pytest.raises(AbsentError, match="put it in brackets"):
    names("z[1]/*.tar")


def test_braces_inside_brackets_are_characters():
  assert patterns.expand_braces("a[{]b,c[}]") == ["a[{]b,c[}]"]
  assert patterns.expand_braces("[!{]{1..2}{x,y}") == ["[!{]1x", "[!{]1y", "[!{]2x", "[!{]2y"]
  assert patterns.expand_braces("a[{1,2}") == ["a[1", "a[2"]
  assert patterns.expand_braces("{000..127}.tar") == [f"{i:03d}.tar" for i in range(128)]


def test_only_folders_that_may_match_are_listed(tree, monkeypatch):
  asked, entries = [], locations.DiskFolder.list_entries
  monkeypatch.setattr(
    locations.DiskFolder, "list_entries", lambda self, folder: asked.append(folder) or entries(self, folder)
  )
  listed("d*/plain/*.tar")
  assert sorted(asked) == ["", "d1", "d1/plain", "d2", "d2/plain", "d[1]", "d[1]/plain"]

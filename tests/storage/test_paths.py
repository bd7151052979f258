"""What a user writes as a path: on a disk or in a bucket, and what is missing for the latter."""

import os
import pathlib
import pwd
import sys

import pytest
from etils import epath

from vit_jax import cli, evaluate, train
from vit_jax.schema import ConfigError
from vit_jax.storage import files, paths


@pytest.mark.parametrize("text", ["runs/a", "/runs/a", ".", "~/a", "a:b", "C:/a", "gs", "a//b"])
def test_a_local_path_stays_what_it_is(text):
  assert paths.resolve_path(text) == pathlib.Path(text)
  assert type(paths.resolve_path(pathlib.Path(text))) is type(pathlib.Path(text))
  assert not paths.in_bucket(pathlib.Path(text))


def test_a_path_is_made_absolute_where_it_is():
  assert paths.make_absolute(pathlib.Path("a")) == pathlib.Path.cwd() / "a"
  assert str(paths.make_absolute(epath.Path("gs://b/a"))) == "gs://b/a"


@pytest.mark.parametrize("text", ["s3://b/a", "file:///a", "http://b/a", "gs:/b/a", "GS://b/a", "hf://a/b"])
def test_another_scheme_is_refused_with_those_that_there_are(text):
  with pytest.raises(ConfigError, match=r"unknown scheme. Use a path on a disk, or gs://BUCKET/NAME") as e:
    paths.resolve_path(text)
  assert repr(text) in str(e.value)


@pytest.mark.parametrize("text", ["gs://", "gs://b", "gs://b/", "gs:///a", "gs://b/../a"])
def test_a_bucket_needs_a_name_in_it(text):
  with pytest.raises(ConfigError, match="expected a bucket and a name in it"):
    paths.resolve_path(text)


@pytest.mark.parametrize("text", ["gs://b", "gs://b/", "gs://b//"])
def test_data_may_be_a_whole_bucket(text):
  assert str(paths.parse_path(text, bare=True)) == "gs://b"
  with pytest.raises(ConfigError, match="expected a bucket and a name in it"):
    paths.parse_path("gs:///a", bare=True)


@pytest.mark.heavy
def test_a_path_in_a_bucket_that_is_not_there_is_refused_at_once(bucket_server, capsys):
  before = bucket_server.counts["GET"]
  with pytest.raises(
    ConfigError, match=r"^gs://nobody/a: the bucket 'nobody' does not exist, or this account cannot see it"
  ):
    paths.resolve_path("gs://nobody/a")
  assert bucket_server.counts["GET"] == before + 1
  with pytest.raises(SystemExit) as end:
    cli.run_verb(lambda: evaluate.main(["--workdir=runs/a", "--write-predictions=gs://nobody/p.csv"]))
  assert end.value.code == 2
  assert "--write-predictions: gs://nobody/p.csv: the bucket 'nobody' does not exist" in capsys.readouterr().err


def test_without_gcsfs_one_line_says_what_to_install(monkeypatch):
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  with pytest.raises(ConfigError, match=r"^buckets need the extra gcs: pip install -e '\.\[gcs\]' \(.*gcsfs"):
    paths.prepare_buckets.__wrapped__()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "a minute"])
def test_a_patience_that_is_none_is_refused_before_anything_waits(monkeypatch, text):
  monkeypatch.setenv("VITJAX_PATIENCE", text)
  with pytest.raises(
    ConfigError, match=f"^VITJAX_PATIENCE: expected a number of seconds, got '{text}'. Use a number above 0"
  ):
    paths.prepare_buckets.__wrapped__()


def test_without_credentials_one_line_says_what_to_set(monkeypatch, tmp_path):
  monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
  monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
  with pytest.raises(
    ConfigError, match=r"no credentials were found. Run `gcloud auth application-default login`, set GOOGLE_"
  ):
    paths.prepare_buckets.__wrapped__()


@pytest.mark.parametrize("text", ["gs:/b/run", "s3://b/run", "gs://b"])
def test_a_workdir_that_is_no_place_ends_with_2_and_nothing_is_made(monkeypatch, tmp_path, capsys, text):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as end:
    cli.run_verb(lambda: train.main(["--config=digits.py", f"--workdir={text}"]))
  assert end.value.code == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: --workdir: {text!r}: ")
  assert not os.listdir(tmp_path)


def test_a_tilde_is_the_home_directory_or_one_line(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert paths.expand_home(pathlib.Path("~/a")) == tmp_path / "a"
  assert paths.expand_home(pathlib.Path("b/~/a")) == pathlib.Path("b/~/a")
  with pytest.raises(ConfigError, match=r"'~no-such-user/a': the home directory .* unknown.*\./~no-such-user"):
    paths.expand_home(pathlib.Path("~no-such-user/a"))


def test_without_a_home_directory_one_line_says_what_to_set(monkeypatch):
  def absent(_):
    raise KeyError

  monkeypatch.delenv("HOME")
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setattr(pwd, "getpwuid", absent)  # a container whose user has no entry
  with pytest.raises(ConfigError, match=r"~/\.cache.*set HOME"):
    files.get_cache_directory("programs")

"""Tests of user paths on a disk or in a bucket, and of missing requirements of buckets."""

import os
import pathlib
import pwd
import sys

import pytest
from etils import epath

from vit_jax import cli, evaluate, train
from vit_jax.schema import ConfigError
from vit_jax.storage import files, hub_addresses, paths


@pytest.mark.parametrize("text", ["runs/a", "/runs/a", ".", "~/a", "a:b", "C:/a", "gs", "a//b"])
def test_local_path_is_unchanged(text):
  assert paths.resolve_path(text) == pathlib.Path(text)
  assert type(paths.resolve_path(pathlib.Path(text))) is type(pathlib.Path(text))
  assert not paths.is_in_bucket(pathlib.Path(text))


def test_path_is_made_absolute_within_its_storage():
  assert paths.make_absolute(pathlib.Path("a")) == pathlib.Path.cwd() / "a"
  assert str(paths.make_absolute(epath.Path("gs://b/a"))) == "gs://b/a"


@pytest.mark.parametrize("text", ["s3://b/a", "file:///a", "http://b/a", "gs:/b/a", "GS://b/a"])
def test_unknown_scheme_is_refused_with_the_supported_ones(text):
  with pytest.raises(ConfigError, match=r"unknown scheme. Use a path on a disk, or gs://BUCKET/NAME") as e:
    paths.resolve_path(text)
  assert repr(text) in str(e.value)


def test_repository_on_the_hub_in_another_form_is_suggested():
  with pytest.raises(ConfigError, match=r"unknown scheme. Did you mean hf:a/b@v1\? Use a path on a disk, or gs:"):
    paths.resolve_path("https://huggingface.co/a/b/tree/v1")


@pytest.mark.parametrize("text", ["./hf:a/b", "././hf:a/b", ".//hf:a"])
def test_local_files_may_have_a_name_like_an_address(tmp_path, monkeypatch, text):
  monkeypatch.chdir(tmp_path)
  for parse in (paths.parse_path, cli.parse_weights):
    path = parse(text)
    assert not hub_addresses.is_address(path) and path == pathlib.Path(text).absolute()


@pytest.mark.parametrize("text", ["gs://", "gs://b", "gs://b/", "gs:///a", "gs://b/../a"])
def test_bucket_path_needs_an_object_name(text):
  with pytest.raises(ConfigError, match="expected a bucket and a name in it"):
    paths.resolve_path(text)


@pytest.mark.parametrize("text", ["gs://b", "gs://b/", "gs://b//"])
def test_data_may_be_a_whole_bucket(text):
  assert str(paths.parse_path(text, bare=True)) == "gs://b"
  with pytest.raises(ConfigError, match="expected a bucket and a name in it"):
    paths.parse_path("gs:///a", bare=True)


@pytest.mark.heavy
def test_path_in_a_missing_bucket_is_refused_immediately(bucket_server, capsys):
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


def test_error_without_gcsfs_contains_the_install_command(monkeypatch):
  monkeypatch.setitem(sys.modules, "gcsfs", None)
  with pytest.raises(ConfigError, match=r"^buckets need the extra gcs: pip install -e '\.\[gcs\]' \(.*gcsfs"):
    paths.prepare_buckets.__wrapped__()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "a minute"])
def test_invalid_timeout_is_refused_before_any_request(monkeypatch, text):
  monkeypatch.setenv("VITJAX_PATIENCE", text)
  with pytest.raises(
    ConfigError, match=f"^VITJAX_PATIENCE: expected a number of seconds, got '{text}'. Use a number above 0"
  ):
    paths.prepare_buckets.__wrapped__()


def test_error_without_credentials_contains_the_fix(monkeypatch, tmp_path):
  monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
  monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
  with pytest.raises(
    ConfigError, match=r"no credentials were found. Run `gcloud auth application-default login`, set GOOGLE_"
  ):
    paths.prepare_buckets.__wrapped__()


@pytest.mark.parametrize("text", ["gs:/b/run", "s3://b/run", "gs://b"])
def test_invalid_workdir_ends_with_code_2_and_creates_no_file(monkeypatch, tmp_path, capsys, text):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit) as end:
    cli.run_verb(lambda: train.main(["--config=digits.py", f"--workdir={text}"]))
  assert end.value.code == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith(f"error: --workdir: {text!r}: ")
  assert not os.listdir(tmp_path)


def test_tilde_is_expanded_or_an_error(monkeypatch, tmp_path):
  monkeypatch.setenv("HOME", str(tmp_path))
  assert paths.expand_home(pathlib.Path("~/a")) == tmp_path / "a"
  assert paths.expand_home(pathlib.Path("b/~/a")) == pathlib.Path("b/~/a")
  with pytest.raises(ConfigError, match=r"'~no-such-user/a': the home directory .* unknown.*\./~no-such-user"):
    paths.expand_home(pathlib.Path("~no-such-user/a"))


def test_error_without_a_home_directory_contains_the_fix(monkeypatch):
  def absent(_):
    raise KeyError

  monkeypatch.delenv("HOME")
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setattr(pwd, "getpwuid", absent)  # a container without an entry for its user
  with pytest.raises(ConfigError, match=r"~/\.cache.*set HOME"):
    files.get_cache_directory("programs")

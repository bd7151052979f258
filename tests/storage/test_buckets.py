"""Tests of requests to a real bucket server on this machine, with simulated failures."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import aiohttp
import pytest

from vit_jax.schema import ConfigError
from vit_jax.storage import buckets, errors, files

pytestmark = pytest.mark.heavy


def test_written_content_is_read_back_despite_failures(bucket_server, bucket):
  before = bucket_server.counts["resets"]
  contents = {f"{i}.bin": bytes([i]) * 10**i for i in range(7)}
  with bucket_server.troubled(latency=0.01, busy=0.1, resets=0.2):
    for name, content in contents.items():
      (bucket / name).write_bytes(content)
    assert {path.name: path.read_bytes() for path in bucket.iterdir()} == contents
    assert [(bucket / name).exists() for name in ("0.bin", "none")] == [True, False]
  assert bucket_server.counts["resets"] > before


def test_terminated_server_stops_all_its_processes():
  words = [sys.executable, "-m", "tests.buckets"]
  with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
    while not process.stdout.readline().startswith("# gs://"):
      assert process.poll() is None
    process.terminate()
    code = process.wait(10)
    with pytest.raises(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    assert code == 0


def test_changes_of_other_clients_are_visible_immediately(bucket):
  other = buckets.FileSystem()
  for i in range(3):
    assert len(list(bucket.iterdir()) if bucket.exists() else []) == i
    other.pipe_file(f"{bucket}/{i}", b"")
  other.rm(f"{bucket}/0")
  assert sorted(path.name for path in bucket.iterdir()) == ["1", "2"]


def test_stalled_request_is_repeated(bucket_server, bucket):
  impatient = buckets.FileSystem(requests_timeout=aiohttp.ClientTimeout(sock_read=0.2), skip_instance_cache=True)
  before = bucket_server.counts["stalls"]
  with bucket_server.troubled(stalls=0.4):
    while bucket_server.counts["stalls"] < before + 2:
      impatient.pipe_file(f"{bucket}/a", b"1")
  assert files.read_if_exists(bucket / "a") == b"1"


def test_denied_access_is_an_immediate_error_and_not_an_empty_bucket(bucket_server, bucket):
  (bucket / "a").write_bytes(b"1")
  start_time = time.monotonic()
  with bucket_server.troubled(refused=True):
    for ask in (bucket.exists, bucket.is_dir, (bucket / "a").read_bytes, lambda: files.write_text(bucket / "b", "")):
      with pytest.raises(PermissionError) as error:
        ask()
  assert errors.describe_error(error.value) == (
    f"{bucket / 'b'}: the bucket denied access (this account may not). Give this account the roles Storage Object "
    "User and Storage Legacy Bucket Reader for the bucket, and run the same command again"
  )
  assert time.monotonic() - start_time < 5


def test_request_waits_for_a_bucket_that_is_temporarily_unreachable(bucket_server, bucket, monkeypatch, caplog):
  monkeypatch.setattr(buckets, "NOTICED", 0.5)
  files.write_text(bucket / "a", "1")
  with bucket_server.troubled(away=True):
    threading.Timer(2.0, bucket_server.make, kwargs={"away": False}).start()
    start_time = time.monotonic()
    assert files.read_if_exists(bucket / "a") == b"1"
    assert time.monotonic() - start_time > 1.5
  assert caplog.text.count("does not respond (ServerDisconnectedError") == 1


def test_unreachable_bucket_is_an_error_after_the_timeout_then_at_once(bucket_server, bucket, monkeypatch):
  monkeypatch.setenv("VITJAX_PATIENCE", "1")
  with bucket_server.troubled(away=True):
    for least, most in ((0.2, 4), (0, 1)):
      start_time = time.monotonic()
      with pytest.raises(OSError, match=r"has not responded for \d s \(ServerDisconnected") as error:
        files.write_text(bucket / "a", "1")
      assert least < time.monotonic() - start_time < most
  assert (error.value.errno, error.value.filename) == (errno.EHOSTDOWN, str(bucket / "a"))
  files.write_text(bucket / "a", "2")
  assert files.read_if_exists(bucket / "a") == b"2"


@pytest.mark.parametrize("text", ["soon", "-1", "0", "nan", "inf"])
def test_invalid_timeout_is_named(monkeypatch, text):
  monkeypatch.setenv("VITJAX_PATIENCE", text)
  with pytest.raises(
    ConfigError, match=f"^VITJAX_PATIENCE: expected a number of seconds, got '{text}'. Use a number .* as 240"
  ):
    buckets.get_patience()


def test_misspelt_bucket_is_not_created(bucket):
  path = type(bucket)("gs://bukcet/run")
  path.mkdir(parents=True, exist_ok=True)
  with pytest.raises(FileNotFoundError) as error:
    files.write_text(path / "a", "1")
  assert errors.describe_error(error.value).startswith("gs://bukcet/run/a: the object or the bucket does not exist. ")
  assert not path.exists()


def test_interrupted_atomic_write_keeps_the_previous_object(bucket):
  files.write_text(bucket / "a.csv", "old")
  with pytest.raises(KeyboardInterrupt), files.atomic_write(bucket / "a.csv") as partial:
    partial.write_text("half")
    raise KeyboardInterrupt
  assert files.read_if_exists(bucket / "a.csv") == b"old"
  with files.atomic_write(bucket / "a.csv") as partial:
    partial.write_text("new")
  assert [path.name for path in bucket.iterdir()] == ["a.csv"]
  assert files.read_if_exists(bucket / "a.csv") == b"new"


def test_error_during_a_write_keeps_the_previous_object(bucket):
  files.write_text(bucket / "a", "old")
  with pytest.raises(ZeroDivisionError), (bucket / "a").open("wb") as file:
    file.write(b"half")
    raise ZeroDivisionError
  assert files.read_if_exists(bucket / "a") == b"old"


def test_local_copy_of_an_object_follows_its_changes(bucket, tmp_path, monkeypatch):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  files.write_text(bucket / "w.npz", "1")
  files.write_text(bucket / "config.json", "{}")
  first = files.get_local_path(bucket / "w.npz", ("config.json", "none.json"))
  assert (first.read_text(), sorted(path.name for path in first.parent.iterdir())) == ("1", ["config.json", "w.npz"])
  assert files.get_local_path(bucket / "w.npz", ("config.json",)) == first
  files.write_text(bucket / "w.npz", "22")
  assert files.get_local_path(bucket / "w.npz").read_text() == "22"
  assert files.get_local_path(tmp_path / "a") == tmp_path / "a"

"""Tests of files that workers and watchers share, on a disk and in a real bucket, with faults of the bucket."""

import os
import threading
import time
import urllib.request

import pytest

from launch import storage
from launch.errors import DENIED, LaunchError, UnknownError

NAMES = ["a", "a1/w00.json", "a1/log/w00.00000", "ä b", "x%2Fy", "q?z#", "plus+", "a1/w01.json"]


@pytest.fixture(params=["disk", pytest.param("bucket", marks=pytest.mark.heavy)])
def files(request, tmp_path):
  """Storage in a folder, and storage under a prefix of a bucket."""
  return (
    storage.open_storage(str(tmp_path / "run")) if request.param == "disk" else request.getfixturevalue("in_bucket")
  )


@pytest.fixture
def in_bucket(bucket_server, request):
  return storage.open_storage(f"gs://bkt/{''.join(filter(str.isalnum, request.node.name))}/launch")


@pytest.fixture
def impatient(monkeypatch, in_bucket):
  monkeypatch.setattr(in_bucket, "tries", 2)
  monkeypatch.setattr(storage, "TIMEOUT", 0.2)


def test_written_files_are_read_listed_and_deleted(files):
  assert files.read("a") is None and files.list_names() == []
  for name in NAMES:
    files.write(name, name.encode())
  assert files.list_names() == sorted(NAMES) and files.list_names("a1/w") == ["a1/w00.json", "a1/w01.json"]
  assert [files.read(name).content.decode() for name in NAMES] == NAMES
  files.write("a", b"")
  assert files.read("a").content == b""
  for name in [*NAMES, "none", "none/at/all"]:
    files.delete(name)
  assert files.list_names() == []


def test_conditional_write_requires_the_current_generation(files):
  first = files.write("lease", b"1", generation=0)
  assert files.read("lease").generation == first > 0
  for wrong in (0, first + 1):
    with pytest.raises(FileExistsError):
      files.write("lease", b"2", generation=wrong)
  second = files.write("lease", b"3", generation=first)
  assert second > first and files.read("lease").content == b"3"
  with pytest.raises(FileExistsError):
    files.write("absent", b"4", generation=second)


def test_one_of_several_concurrent_writers_succeeds(files):
  won, start = [], threading.Barrier(6)

  def write(number):
    start.wait()
    try:
      files.write("lease", str(number).encode(), generation=0)
      won.append(number)
    except FileExistsError:
      pass

  threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert [files.read("lease").content.decode()] == list(map(str, won))


def test_file_on_a_disk_has_an_age(tmp_path):
  files = storage.Disk(str(tmp_path))
  files.write("beat", b"")
  assert files.read("beat").age < 2
  for ago, age in ((100, 100), (-100, 0)):
    os.utime(tmp_path / "beat", (time.time() - ago,) * 2)
    assert abs(files.read("beat").age - age) < 2


@pytest.mark.heavy
def test_age_in_a_bucket_uses_the_clock_of_its_server(in_bucket, monkeypatch):
  real = time.time
  monkeypatch.setattr(time, "time", lambda: real() + 3600)  # the laptop's clock is wrong by an hour
  in_bucket.write("beat", b"")
  assert in_bucket.read("beat").age < 60
  time.sleep(2.1)
  assert 1 <= in_bucket.read("beat").age < 60


def test_folder_with_a_common_prefix_is_separate(files):
  other = storage.open_storage(f"{_folder(files)}2")
  other.write("a", b"of another run")
  assert files.list_names() == [] and files.read("a") is None


def _folder(files):
  return f"gs://{files._bucket}/{files._prefix}".rstrip("/") if isinstance(files, storage.Bucket) else files._folder


# Disks.


def test_unwritable_disk_is_unknown_and_not_a_failed_condition(tmp_path):
  (tmp_path / "file").write_text("")
  files = storage.Disk(str(tmp_path / "file"))
  for generation in (None, 0):
    with pytest.raises(UnknownError, match="file"):
      files.write("a", b"", generation)
  assert files.read("a") is None


def test_write_leaves_no_temporary_files(tmp_path):
  files = storage.Disk(str(tmp_path))
  for i in range(3):
    files.write("a/b", bytes([i]))
  assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


# Buckets. Requests are repeated if a repetition can succeed.


@pytest.mark.heavy
def test_conditional_writes_hold_on_an_unreliable_connection(bucket_server, in_bucket, monkeypatch):
  monkeypatch.setattr(in_bucket, "tries", 12)
  monkeypatch.setattr(storage.time, "sleep", lambda seconds: None)
  before, generation = bucket_server.counts["resets"], 0
  with bucket_server.troubled(busy=0.2, resets=0.3):
    for i in range(30):
      # A lost response must not look like a write of another process.
      generation = in_bucket.write("lease", f"{i}".encode(), generation)
      found = in_bucket.read("lease")
      assert (found.content, found.generation) == (f"{i}".encode(), generation)
    with pytest.raises(FileExistsError):
      in_bucket.write("lease", b"of another", generation - 1)
    assert in_bucket.list_names() == ["lease"]
  assert bucket_server.counts["resets"] > before


@pytest.mark.heavy
@pytest.mark.parametrize("trouble", [{"away": True}, {"stalls": 1.0}, {"busy": 1.0}, {"resets": 1.0}], ids=str)
def test_unreachable_bucket_is_never_empty(bucket_server, in_bucket, request, trouble):
  in_bucket.write("a", b"1")
  request.getfixturevalue("impatient")  # requested only now, so that the write above has time on a loaded machine
  with bucket_server.troubled(**trouble):
    asks = [lambda: in_bucket.read("a"), in_bucket.list_names, in_bucket.read_region]
    if (
      "resets" not in trouble
    ):  # a reset may cut the response to a successful deletion, which the next try then reports
      asks.append(lambda: in_bucket.delete("a"))
    for ask in asks:
      with pytest.raises(UnknownError, match="gs://bkt does not answer"):
        ask()


@pytest.mark.heavy
def test_refusal_of_a_bucket_is_reported_at_once(bucket_server, in_bucket):
  start_time = time.monotonic()
  with bucket_server.troubled(refused=True):
    for ask in (lambda: in_bucket.read("a"), in_bucket.list_names, lambda: in_bucket.write("a", b"")):
      with pytest.raises(LaunchError, match="this account may not") as error:
        ask()
      assert error.value.code == DENIED
  assert time.monotonic() - start_time < 5


@pytest.mark.heavy
def test_missing_bucket_is_reported(bucket_server):
  files = storage.open_storage("gs://none/a")
  for ask in (files.list_names, files.read_region):
    with pytest.raises(LaunchError, match="gs://none: there is no such bucket"):
      ask()
  with pytest.raises(LaunchError, match="gs://none refuses"):
    files.write("a", b"")


@pytest.mark.heavy
def test_listing_of_many_pages_is_complete(bucket_server, in_bucket, monkeypatch):
  for i in range(5):
    in_bucket.write(f"{i}", b"")
  ask = in_bucket._ask
  monkeypatch.setattr(in_bucket, "_ask", lambda method, path: ask(method, f"{path}&maxResults=2"))
  assert in_bucket.list_names() == list("01234")


@pytest.mark.heavy
def test_bucket_has_a_region(bucket_server, in_bucket):
  assert in_bucket.read_region() == in_bucket.read_region().lower() != ""


def test_token_is_from_the_machine_or_else_from_gcloud(tmp_path, monkeypatch):
  asked = []

  def answer(request, timeout):
    asked.append(request.full_url)
    raise OSError("no such host")

  monkeypatch.setattr(urllib.request, "urlopen", answer)
  program = tmp_path / "gcloud"
  program.write_text("#!/bin/sh\necho secret-$#\n")
  program.chmod(0o755)
  monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
  token = storage.Token()
  assert token.make_header() == {"Authorization": "Bearer secret-3"} == token.make_header()
  assert len(asked) == 1 and "metadata" in asked[0]
  program.write_text("#!/bin/sh\necho reauth required >&2\nexit 1\n")
  with pytest.raises(LaunchError, match=r"reauth required.*gcloud auth login") as error:
    token.renew()
  assert error.value.code == DENIED
  program.unlink()
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(LaunchError, match="not installed"):
    token.renew()

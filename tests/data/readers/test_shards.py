"""Tests of record files in a bucket.

A file is opened once, when it is needed. Adjacent records are one request. Errors name the file.
"""

import concurrent.futures
import time

import pytest
from array_record.python import array_record_module

from vit_jax.data.readers import shards

pytestmark = pytest.mark.heavy  # the server is a process
LENGTHS = (100, 7, 250)


def stored(number):
  return b"record %d of " % number + bytes(1000 + number)


@pytest.fixture(scope="module")
def server(bucket_server, tmp_path_factory):
  """Returns the server of a bucket with three files in `shards`, whose records are numbered consecutively."""
  root, number = tmp_path_factory.mktemp("bucket"), 0
  for i, length in enumerate(LENGTHS):
    writer = array_record_module.ArrayRecordWriter(str(root / f"data-{i}"), "group_size:1,uncompressed")
    for _ in range(length):
      writer.write(stored(number))
      number += 1
    writer.close()
  data = bytearray((root / "data-2").read_bytes())
  (root / "short").write_bytes(data[: len(data) // 2])
  data[60_000:60_100] = b"x" * 100
  (root / "damaged").write_bytes(data)
  bucket_server.fill(root, "shards")
  return bucket_server


@pytest.fixture
def patient(monkeypatch):
  monkeypatch.setattr(shards, "PAUSES", (0.01, 0.02))


def opened():
  return shards.Shards([f"gs://bkt/shards/data-{i}" for i in range(3)], LENGTHS)


def test_records_follow_the_files_in_order(server):
  made = opened()
  for first, stop in ((0, 32), (90, 120), (99, 108), (106, 107), (300, 357), (356, 357)):
    assert made.read(first, stop) == [stored(i) for i in range(first, stop)]
  assert [made.file(i) for i in (0, 99, 100, 106, 107, 356)] == [
    f"gs://bkt/shards/data-{i}" for i in (0, 0, 1, 1, 2, 2)
  ]


def test_adjacent_records_are_one_request_and_a_file_is_opened_once(server):
  made, before = opened(), server.asked("shards/data-")
  made.read(107, 139)
  assert server.asked("shards/data-") - before <= 2
  made = opened()
  before = server.asked("shards/data-2")
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    runs = [(107 + 32 * i, 139 + 32 * i) for i in range(7)]
    found = list(pool.map(lambda run: made.read(*run), runs))
  assert [record for some in found for record in some] == [stored(i) for i in range(107, 331)]
  assert server.asked("shards/data-2") - before <= len(runs) + 1


def test_files_are_opened_only_when_needed(server):
  files = ["gs://bkt/shards/data-0"] * 3000
  before = server.asked("shards/data-0")
  start_time = time.monotonic()
  made = shards.Shards(files, [100] * 3000)
  assert time.monotonic() - start_time < 1 and server.asked("shards/data-0") == before
  assert made.read(299_932, 299_964) == [stored(i) for i in range(32, 64)]
  assert server.asked("shards/data-0") - before <= 2


def test_number_of_open_files_is_limited(server, monkeypatch):
  monkeypatch.setattr(shards, "OPEN", 2)
  made = opened()
  for record in (0, 100, 107, 0, 356):
    assert made.read(record, record + 1) == [stored(record)]
    assert len(made._open) <= 2


def test_missing_file_is_named_after_three_attempts(server, patient):
  made = shards.Shards(["gs://bkt/shards/data-0", "gs://bkt/shards/gone"], (100, 10))
  with pytest.raises(
    OSError, match=r"gs://bkt/shards/gone, records 3 to 6: the file does not exist.*tried 3 times"
  ) as caught:
    made.read(103, 107)
  assert caught.value.errno


def test_file_of_another_length_is_named(server, patient):
  made = shards.Shards(["gs://bkt/shards/data-0"], (99,))
  with pytest.raises(OSError, match=r"data-0, records 0 to 0: 100 records, not the 99 of dataset_info.json"):
    made.read(0, 1)


@pytest.mark.parametrize("name", ["damaged", "short"])
def test_damaged_file_is_named_and_its_intact_records_are_read(server, patient, name):
  made = shards.Shards([f"gs://bkt/shards/{name}"], (250,))
  with pytest.raises(OSError, match=rf"gs://bkt/shards/{name}, records 32 to 63: ") as caught:
    made.read(32, 64)
  if name == "damaged":
    assert caught.value.errno is None
    assert made.read(200, 203) == [stored(107 + i) for i in range(200, 203)]


def test_busy_bucket_is_retried(server):
  made = opened()
  made.read(0, 1)
  with concurrent.futures.ThreadPoolExecutor() as pool:
    with server.troubled(busy_paths="shards/data-0"):
      reading = pool.submit(made.read, 32, 64)
      with pytest.raises(concurrent.futures.TimeoutError):
        reading.result(timeout=0.3)
    assert reading.result(timeout=60) == [stored(i) for i in range(32, 64)]


def test_interrupted_response_is_requested_again(server):
  made = opened()
  made.read(107, 108)
  before = server.counts["resets"]
  with server.troubled(cut=10_000):
    assert made.read(203, 267) == [stored(i) for i in range(203, 267)]
  assert server.counts["resets"] == before + 1

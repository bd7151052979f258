"""Files of records in a bucket: opened once and when needed, neighbours with one request, errors that name the file."""

import concurrent.futures
import time

import pytest
from array_record.python import array_record_module

from tests import bucket_server
from vit_jax.data.readers import shards

pytestmark = pytest.mark.heavy  # the server is a process
LENGTHS = (100, 7, 250)


def stored(number):
  return b"record %d of " % number + bytes(1000 + number)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
  """A bucket with three files, whose records count through."""
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
  with bucket_server.served(root) as proxy:
    yield proxy


@pytest.fixture
def patient(monkeypatch):
  monkeypatch.setattr(shards, "PAUSES", (0.01, 0.02))


def opened():
  return shards.Shards([f"gs://bucket/data-{i}" for i in range(3)], LENGTHS)


def test_records_are_those_of_the_files_one_after_another(proxy):
  made = opened()
  for first, stop in ((0, 32), (90, 120), (99, 108), (106, 107), (300, 357), (356, 357)):
    assert made.read(first, stop) == [stored(i) for i in range(first, stop)]
  assert [made.file(i) for i in (0, 99, 100, 106, 107, 356)] == [f"gs://bucket/data-{i}" for i in (0, 0, 1, 1, 2, 2)]


def test_neighbours_are_one_request_and_a_file_is_opened_by_one(proxy):
  made, before = opened(), proxy.count("data-")
  made.read(107, 139)
  assert proxy.count("data-") - before <= 2
  made = opened()
  before = proxy.count("data-2")
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    runs = [(107 + 32 * i, 139 + 32 * i) for i in range(7)]
    found = list(pool.map(lambda run: made.read(*run), runs))
  assert [record for some in found for record in some] == [stored(i) for i in range(107, 331)]
  assert proxy.count("data-2") - before <= len(runs) + 1


def test_of_thousands_of_files_none_is_opened_before_it_is_needed(proxy):
  files = ["gs://bucket/data-0"] * 3000
  before = proxy.count("data-0")
  began = time.monotonic()
  made = shards.Shards(files, [100] * 3000)
  assert time.monotonic() - began < 1 and proxy.count("data-0") == before
  assert made.read(299_932, 299_964) == [stored(i) for i in range(32, 64)]
  assert proxy.count("data-0") - before <= 2


def test_of_many_files_only_some_are_open(proxy, monkeypatch):
  monkeypatch.setattr(shards, "OPEN", 2)
  made = opened()
  for record in (0, 100, 107, 0, 356):
    assert made.read(record, record + 1) == [stored(record)]
    assert len(made._open) <= 2


def test_a_file_that_is_not_there_is_named_after_a_few_tries(proxy, patient):
  made = shards.Shards(["gs://bucket/data-0", "gs://bucket/gone"], (100, 10))
  with pytest.raises(
    OSError, match=r"gs://bucket/gone, records 3 to 6: there is no such file.*tried 3 times"
  ) as caught:
    made.read(103, 107)
  assert caught.value.errno


def test_a_file_of_another_length_is_named(proxy, patient):
  made = shards.Shards(["gs://bucket/data-0"], (99,))
  with pytest.raises(OSError, match=r"data-0, records 0 to 0: 100 records, not the 99 of dataset_info.json"):
    made.read(0, 1)


@pytest.mark.parametrize("name", ["damaged", "short"])
def test_a_damaged_file_is_named_and_its_whole_records_are_read(proxy, patient, name):
  made = shards.Shards([f"gs://bucket/{name}"], (250,))
  with pytest.raises(OSError, match=rf"gs://bucket/{name}, records 32 to 63: ") as caught:
    made.read(32, 64)
  if name == "damaged":
    assert caught.value.errno is None
    assert made.read(200, 203) == [stored(107 + i) for i in range(200, 203)]


def test_a_bucket_that_is_busy_for_a_while_is_waited_for(proxy):
  made = opened()
  made.read(0, 1)
  proxy.refuse = "data-0"
  with concurrent.futures.ThreadPoolExecutor() as pool:
    reading = pool.submit(made.read, 32, 64)
    with pytest.raises(concurrent.futures.TimeoutError):
      reading.result(timeout=0.3)
    proxy.refuse = None
    assert reading.result(timeout=60) == [stored(i) for i in range(32, 64)]


def test_an_answer_that_breaks_off_is_asked_for_again(proxy, monkeypatch):
  made = opened()
  made.read(107, 108)
  monkeypatch.setattr(proxy, "cut", 10_000)
  assert made.read(203, 267) == [stored(i) for i in range(203, 267)]
  assert proxy.cut is None

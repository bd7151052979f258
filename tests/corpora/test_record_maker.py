"""Tests of the records of a corpus: reading, serialisation, files and reports."""

import errno
import json
import resource
import signal

import pytest

from tests.image_files import encode, picture
from vit_jax.corpora import record_maker
from vit_jax.data import sources
from vit_jax.schema import ConfigError


def test_neighbours_form_spans_of_up_to_32_records():
  assert list(record_maker.group_neighbours([5, 3, 4, 9])) == [(3, 6), (9, 10)]
  assert list(record_maker.group_neighbours(range(70))) == [(0, 32), (32, 64), (64, 70)]
  assert list(record_maker.group_neighbours([])) == []


def test_records_are_read_in_spans_if_a_source_supports_them():
  image, asked = encode(picture()), []

  def together(first, stop):
    asked.append((first, stop))
    if first == 64:
      raise OSError("damaged")
    return [b"%d" % i for i in range(first, stop)]

  def read(i):
    if i == 65:
      raise OSError("record 65 is damaged")
    return image, 0

  runs = sources.SpanReader(together, lambda data: (image, int(data) % 2))
  source = sources.Source("set", "all", ("a", "b"), 70, read, str, runs=runs)
  numbers = [*range(69, -1, -1)]
  records = list(record_maker.RecordMaker(source).make_records(numbers))
  assert asked == [(0, 32), (32, 64), (64, 70)]
  assert [record.name for record in records] == list(map(str, numbers))
  assert [record.rejected for record in records if record.data is None] == ["record 65 is damaged"]
  assert [record.labels for record in records[6:]] == [(i % 2,) for i in range(63, -1, -1)]


def test_memory_error_is_reported_and_rejects_no_record():
  def fail(*which):
    raise MemoryError

  for runs, first in ((None, 7), (sources.SpanReader(fail, fail), 5)):
    source = sources.Source("set", "all", ("a", "b"), 70, fail, lambda i: f"set, record {i}", runs=runs)
    with pytest.raises(ConfigError, match=f"set, record {first}: not enough memory. Use fewer --processes"):
      list(record_maker.RecordMaker(source).make_records([7, 5]))


def test_record_is_deterministic_and_has_the_features_of_tfds():
  from tensorflow_datasets.proto import tf_example_pb2

  data = record_maker.serialise_record(b"image", (3, 1), "n\udcff")
  assert data == record_maker.serialise_record(b"image", (3, 1), "n\udcff")
  features = tf_example_pb2.Example.FromString(data).features.feature
  assert list(features["label"].int64_list.value) == [3, 1]
  assert (features["image"].bytes_list.value[0], features["id"].bytes_list.value[0]) == (b"image", b"n\xff")


def test_record_file_is_written_completely_or_not_at_all(tmp_path):
  from array_record.python.array_record_module import ArrayRecordReader

  def broken():
    yield b"one"
    raise ValueError("no more")

  with pytest.raises(ValueError, match="no more"):
    record_maker.write_records(tmp_path / "a", broken())
  assert list(tmp_path.iterdir()) == []
  record_maker.write_records(tmp_path / "a", [b"one", b"two"])
  assert ArrayRecordReader(str(tmp_path / "a")).read_all() == [b"one", b"two"]


def test_write_error_names_the_file(tmp_path):
  before, kept = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, before[1]))
  try:
    with pytest.raises(OSError, match="File too large") as caught:
      record_maker.write_records(tmp_path / "a", (bytes(90_000) for _ in range(100)))
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, kept)
  assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path / "a"))
  assert list(tmp_path.iterdir()) == []


def test_reports_are_summed():
  records = [
    record_maker.CorpusRecord("a", b"123", (0, 1), ("resized",)),
    record_maker.CorpusRecord("b", b"4", (1,)),
    record_maker.CorpusRecord("c", rejected="bad"),
    record_maker.CorpusRecord("d", duplicate={"of": "x"}),
  ]
  one, two = record_maker.ShardReport(), record_maker.ShardReport()
  for record in records:
    one.add(record)
  for record in (*records, *records):
    two.add(record)
  again = record_maker.ShardReport.read(json.loads(json.dumps(one.to_json())))
  assert again == one and record_maker.sum_reports([one, again]) == two
  assert (two.records, two.bytes, dict(two.classes), dict(two.done)) == (4, 8, {0: 2, 1: 4}, {"resized": 2})
  assert one.rejected == [{"file": "c", "reason": "bad"}] and one.duplicates == [{"file": "d", "of": "x"}]

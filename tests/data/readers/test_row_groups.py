"""Tests of row groups of Parquet files: one read for many records, and a bounded number in memory."""

import threading

import pyarrow.parquet
import pytest

from tests import forms
from tests.image_files import image
from vit_jax.data.readers import row_groups


def test_lack_of_memory_is_not_reported_as_a_damaged_file(tmp_path, monkeypatch):
  def fail(*which, **options):
    raise pyarrow.lib.ArrowMemoryError("malloc of size 77 failed")

  forms.parquet(tmp_path, [image(0)] * 6, [0] * 6)
  source = forms.opened("parquet", tmp_path, test="train")
  monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", fail)
  for _ in range(2):
    with pytest.raises(MemoryError):
      source.read(0)


def test_row_group_is_read_once_for_all_threads_and_few_are_kept(tmp_path, monkeypatch):
  forms.parquet(tmp_path, [image(i) for i in range(90)], [0] * 90, group=10)
  reads, read = [], row_groups.RowGroups._read
  monkeypatch.setattr(row_groups.RowGroups, "_read", lambda self, *which: reads.append(which) or read(self, *which))
  source = forms.opened("parquet", tmp_path, test="train")
  threads = [threading.Thread(target=lambda: [source.read(i) for i in range(10)]) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert reads == [(0, 0)]
  monkeypatch.setattr(row_groups, "KEPT", 0)  # only one row group is kept
  reads.clear()
  for i in (0, 1, 11, 12, 0):
    assert source.read(i)[0] == image(i)
  assert reads == [(0, 1), (0, 0)]

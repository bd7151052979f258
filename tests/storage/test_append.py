"""Tests of files that lines are appended to: in a bucket, they are objects of a bounded size."""

import pytest

from vit_jax.storage import append

pytestmark = pytest.mark.heavy


def test_appended_bytes_are_in_objects_of_a_bounded_size(bucket, monkeypatch):
  monkeypatch.setattr(append.BucketAppender, "SIZE", 50)
  lines = [f"line {i}\n".encode() for i in range(30)]
  chunks = append.open_append(bucket / "m.jsonl")
  for line in lines[:17]:
    chunks.add(line)
  assert not (bucket / "m.jsonl.0002").exists()  # the last object is not written before a flush
  chunks.close()
  again = append.open_append(bucket / "m.jsonl")
  for line in lines[17:]:
    again.add(line)
  again.close()
  objects = sorted(bucket.iterdir())
  assert b"".join(path.read_bytes() for path in objects) == b"".join(lines)
  assert [path.name for path in objects] == ["m.jsonl", *(f"m.jsonl.{i:04d}" for i in range(1, len(objects)))]
  assert append.read_appended(bucket / "m.jsonl") == b"".join(lines) and append.read_appended(bucket / "no") == b""
  assert max(path.stat().length for path in objects) < 60
  # Removes lines from the end, as a restart does.
  again.keep(lambda content: b"".join(line for line in content.splitlines(True) if int(line.split()[1]) < 9))
  assert b"".join(path.read_bytes() for path in sorted(bucket.iterdir())) == b"".join(lines[:9])

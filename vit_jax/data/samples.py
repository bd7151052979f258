"""Samples of a source: hashes of a few records, which detect changes that file sizes and times do not show."""

import hashlib
from typing import Any

import numpy as np

from vit_jax.data.sources import Source
from vit_jax.schema import to_plain

COUNT = 8


def describe_samples(source: Source, count: int = COUNT) -> list[dict[str, Any]]:
  """Returns a description of a few evenly spaced records of a source, as JSON values.

  Args:
    source: the source to sample.
    count: largest number of records.

  Returns:
    For each record its number `record`, its `name`, its `label` and the `sha256` of its image file. The label and the
    hash are None if the record cannot be read.
  """
  return [_describe_sample(source, i) for i in compute_spaced_numbers(len(source), count)]


def compute_spaced_numbers(length: int, count: int = COUNT) -> list[int]:
  """Returns evenly spaced numbers from 0 to `length` - 1.

  Args:
    length: number of values to choose from.
    count: largest number of results.
  """
  return sorted({int(i) for i in np.linspace(0, length - 1, count).round()})


def _describe_sample(source: Source, i: int) -> dict[str, Any]:
  try:
    content, label = source.read(i)
  except OSError:  # training reports unreadable records
    content, label = None, None
  hashed = None if content is None else hashlib.sha256(content).hexdigest()
  return {"record": i, "name": source.identify(i), "label": to_plain(label), "sha256": hashed}

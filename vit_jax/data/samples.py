"""A few records of a source, whose contents stand for those of all: what no size and no time of change shows."""

import hashlib
from typing import Any

import numpy as np

from vit_jax.data.sources import Source
from vit_jax.schema import plain

COUNT = 8


def of(source: Source) -> list[dict[str, Any]]:
  """Number, name, label and SHA-256 of a few records, evenly spaced; no hash of one that cannot be read."""
  return [_sample(source, i) for i in spread(len(source))]


def spread(length: int, count: int = COUNT) -> list[int]:
  """Returns up to `count` numbers below `length`, evenly spaced."""
  return sorted({int(i) for i in np.linspace(0, length - 1, count).round()})


def _sample(source, i):
  try:
    content, label = source.read(i)
  except OSError:  # that shows when it is trained on
    content, label = None, None
  hashed = None if content is None else hashlib.sha256(content).hexdigest()
  return {"record": i, "name": source.identify(i), "label": plain(label), "sha256": hashed}

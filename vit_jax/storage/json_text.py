"""Parsing of JSON texts from untrusted sources, with limits and without ambiguity."""

import json
import re
from collections.abc import Sequence
from typing import Any

from vit_jax.schema import show

# above the values of all JSON files of this project, and of the projects that publish weights
JSON_BYTES, JSON_DEPTH = 2**24, 64


def parse_json(data: bytes) -> Any:
  """Parses a JSON text in UTF-8.

  Args:
    data: the text, with or without a byte order mark.

  Returns:
    The value as Python objects.

  Raises:
    ValueError: `data` is not JSON, is longer than JSON_BYTES, is nested deeper than JSON_DEPTH, or has an object in
      which a key occurs twice. RFC 8259 leaves the meaning of such an object open: most parsers keep the last value.
  """
  if len(data) > JSON_BYTES:
    raise ValueError(f"it is longer than {JSON_BYTES:,} bytes")
  text = data.decode("utf-8-sig")
  # Python recurses in C for each level, and later code recurses too.
  if text.count("[") + text.count("{") > JSON_DEPTH:
    depth, bare = 0, re.sub(r'"[^"]*"', "", re.sub(r"\\.", "", text))  # without strings
    for bracket in re.finditer(r"[\[\]{}]", bare):
      depth += 1 if bracket[0] in "[{" else -1
      if depth > JSON_DEPTH:
        raise ValueError(f"it is nested deeper than {JSON_DEPTH} brackets")
  return json.loads(text, object_pairs_hook=_build_unique)


def _build_unique(pairs: Sequence[tuple[str, object]]) -> dict[str, Any]:
  """Builds an object from pairs. Raises ValueError if a key occurs twice."""
  result = dict(pairs)
  if len(result) < len(pairs):
    seen: set[str] = set()
    for key, _ in pairs:
      if key in seen:
        raise ValueError(f"the key {show(key)} occurs twice in one object. Keep one of the two")
      seen.add(key)
  return result

"""Tests of JSON texts: limits, and objects with a meaning that depends on the parser."""

import pytest

from vit_jax.storage import json_text


@pytest.mark.parametrize(
  ("text", "key"),
  [
    (b'{"path": "1.png", "label": 0, "label": 1}', "'label'"),
    (b'{"a": {"b": [{"c": 1, "c": 1}]}}', "'c'"),
    (b'{"a": 1, "\\u0061": 2}', "'a'"),
  ],
)
def test_duplicate_key_of_an_object_is_refused(text, key):
  with pytest.raises(ValueError, match=f"the key {key} occurs twice in one object"):
    json_text.parse_json(text)


def test_equal_keys_in_several_objects_are_allowed():
  assert json_text.parse_json(b'[{"a": 1, "b": {"a": 2}}, {"a": 3}]') == [{"a": 1, "b": {"a": 2}}, {"a": 3}]

"""JSON texts: bounds, and objects whose meaning would depend on the parser."""

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
def test_g_a_key_that_occurs_twice_in_one_object_is_refused(text, key):
  with pytest.raises(ValueError, match=f"the key {key} occurs twice in one object"):
    json_text.parse_json(text)


def test_one_key_in_several_objects_is_allowed():
  assert json_text.parse_json(b'[{"a": 1, "b": {"a": 2}}, {"a": 3}]') == [{"a": 1, "b": {"a": 2}}, {"a": 3}]

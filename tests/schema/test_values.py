"""Tests of config values as plain data."""

import dataclasses

from vit_jax.schema import Choice, Duration, get_config_key, get_field_default, list_choices, to_plain


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a config."""

  from_: str | None = None
  inner: Choice = Choice("a", {"b": Choice("c"), "d": (Choice("e"),)})
  several: dict = dataclasses.field(default_factory=lambda: {"x": Choice("f", {"n": 1})})


def test_config_is_converted_to_plain_data():
  assert to_plain(Part()) == {
    "from": None,
    "inner": {"name": "a", "b": {"name": "c"}, "d": [{"name": "e"}]},
    "several": {"x": {"name": "f", "n": 1}},
  }
  assert type(to_plain(Duration("5ep"))) is str


def test_names_of_all_choices_are_found():
  assert list_choices(Part()) == {"a", "c", "e", "f"}


def test_fields_have_keys_and_defaults():
  first, _, last = dataclasses.fields(Part)
  assert (
    get_config_key(first) == "from" and get_field_default(first) is None and get_field_default(last)["x"].name == "f"
  )

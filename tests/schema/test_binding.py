"""Tests of value types, and of choices bound by signatures and tables.

Every error names the key, the value and the allowed values.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import pytest

from vit_jax import schema
from vit_jax.config import required
from vit_jax.schema import Choice, ConfigError, Count, Duration, Pattern, Probability, Range

# Durations.


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("500", 500), (500, 500), ("10k", 10_000), ("1.5k", 1_500), ("90ep", 900), ("0.5ep", 5), ("6400ex", 100),
        ("1Mex", 15625), ("5%", 10), ("0", 0), ("0%", 0), ("0.001ep", 1), ("7st", 7), ("1ex", 1),
    ],
)  # fmt: skip
def test_durations_are_rounded_to_the_nearest_step(text, steps):
  assert Duration(text).count_steps(batch=64, examples=640, total=200) == steps


@pytest.mark.parametrize("text", ["", "ten", "5q", "-5", "5 %%", "1e3", True, None, "k", "ep", "9" * 30])
def test_invalid_duration_is_refused(text):
  with pytest.raises(ConfigError, match=r"not a length of training|longer than any run"):
    Duration(text)


def test_length_of_the_run_cannot_be_a_percentage():
  with pytest.raises(ConfigError, match="the length of the run cannot be a percentage"):
    Duration("5%").count_steps(64, 640)


# Choices of one function.


def sample(
  supplied,
  *,
  width: Count,
  rate: Probability = 0.1,
  kind: Literal["a", "b"] = "a",
  on: bool = True,
  pairs: tuple[tuple[Pattern, float], ...] = (),
  area: tuple[float, float] = (0.5, 1.0),
  path: str | None = None,
  inner: Choice = Choice("x"),
  half_open: Annotated[float, Range(0, 1, open_low=True)] = 1.0,
):
  """A function with a signature that is the schema."""


def test_choice_is_completed_from_the_signature():
  bound = schema.bind(Choice("s", {"width": 3, "pairs": [["a.*", 1]], "path": "2024"}), (sample,))
  assert bound.args == {
      "width": 3, "rate": 0.1, "kind": "a", "on": True, "pairs": (("a.*", 1.0),), "area": (0.5, 1.0), "path": "2024",
      "inner": Choice("x"), "half_open": 1.0,
  }  # fmt: skip
  assert bound.select(sample) == bound.args


def test_text_of_a_flag_is_converted_to_the_type_of_the_argument():
  text = {"width": "3", "on": "false", "path": "2024", "area": "(0.1, 0.2)", "rate": "0", "pairs": "[('k', 2)]"}
  bound = schema.bind(Choice("s", {k: schema.Text(v) for k, v in text.items()}), (sample,))
  got = [bound.args[k] for k in text]
  assert got == [3, False, "2024", (0.1, 0.2), 0.0, (("k", 2.0),)]
  assert type(bound.args["path"]) is str
  assert schema.bind(Choice("s", {"width": 1, "path": schema.Text("None")}), (sample,)).args["path"] is None


@pytest.mark.parametrize("value", [1000, "1000", schema.Text("1000")])
def test_number_for_a_string_type_stays_a_string(value):
  converted = schema.convert(value, str | int | None)
  assert converted == "1000" and type(converted) is str


@pytest.mark.parametrize(
  ("args", "key", "expected_message"),
  [
    ({}, "width", "missing; 's' needs it. Add it to the config or as --config.s.width="),
    ({"width": required}, "width", "missing; 's' needs it"),
    ({"width": 1, "widht": 2}, "widht", "unknown key for 's', value 2. Did you mean 'width'"),
    ({"width": 1, "supplied": 2}, "supplied", "unknown key for 's', value 2"),
    ({"width": 1, 2: 3}, "2", "unknown key for 's', value 3. Allowed: width"),
    ({"width": 1, "rate": 1.0}, "rate", "1.0 is out of range. Allowed: [0, 1)"),
    ({"width": 1, "rate": float("nan")}, "rate", "nan is not a finite number"),
    ({"width": 1, "rate": 10**400}, "rate", "not a finite number"),
    ({"width": 1, "kind": "c"}, "kind", "'c' is not a choice. Allowed: a, b"),
    ({"width": 1, "pairs": [["(", 1]]}, "pairs[0][0]", "'(' is not a regular expression"),
    ({"width": 1, "pairs": [["a", 1, 2]]}, "pairs[0]", "has 3 values. Expected 2"),
    ({"width": 1, "area": 3}, "area", "3 is not a list"),
    ({"width": 1, "path": 3}, "path", "expected a text, or none, got 3"),
    ({"width": 1, "on": 1}, "on", "expected true or false, got 1. Write a value such as true"),
    ({"width": "1"}, "width", "expected an integer of at least 1, got '1'. Write a value such as 2"),
    ({"width": 1, "half_open": 0}, "half_open", "0.0 is out of range. Allowed: (0, 1]"),
    ({"width": 1, "inner": 3}, "inner", "3 is not a choice. Write dict(name='...', ...), or --config.s.inner.name="),
  ],
)
def test_invalid_arguments_are_refused(args, key, expected_message):
  with pytest.raises(ConfigError) as caught, schema.enter_key("config.s"):
    schema.bind(Choice("s", args), (sample,))
  assert caught.value.place == f"config.s.{key}"
  assert expected_message in caught.value.message


# Choices from tables, nested.


def steady(size, *, scale: Probability = 0.5):
  return ("steady", size, scale)


def moving(size, *, by: Count):
  return ("moving", size, by)


KINDS = {"steady": steady, "moving": moving}


def view(
  size,
  *,
  kind: Annotated[Choice, KINDS] = Choice("steady"),
  other: Annotated[Choice | None, KINDS] = None,
  named: Mapping[str, Annotated[Choice, KINDS]] = {"a": Choice("steady")},
  listed: tuple[Annotated[Choice, KINDS], ...] = (),
):
  return schema.make(kind, KINDS, size)


def often(*, every: Duration = Duration("10%")):
  return every


VIEWS = {"view": (view, often), "plain": view}


def test_nested_choices_are_bound_if_the_annotation_names_their_table():
  args = {"other": {"name": "moving", "by": 3}, "named": {"b": {"name": "steady"}}, "listed": [{"name": "steady"}]}
  bound = schema.bind(Choice("view", args), schema.lookup(VIEWS, "view"))
  steadily = Choice("steady", {"scale": 0.5})
  assert bound.args == {
    "kind": steadily,
    "other": Choice("moving", {"by": 3}),
    "named": {"b": steadily},
    "listed": (steadily,),
    "every": "10%",
  }
  assert schema.bind(bound, schema.lookup(VIEWS, "view")) == bound
  assert schema.bind(Choice("view", schema.to_plain(bound.args)), schema.lookup(VIEWS, "view")) == bound


def test_default_is_bound_like_a_value():
  args = schema.bind(Choice("plain"), schema.lookup(VIEWS, "plain")).args
  assert (args["kind"], args["other"]) == (Choice("steady", {"scale": 0.5}), None)
  assert args["named"] == {"a": Choice("steady", {"scale": 0.5})}


def test_arguments_without_a_name_belong_to_the_default():
  args = {"kind": {"scale": 0.25}, "named": {"b": {"name": "steady"}}}
  assert schema.bind(Choice("plain", args), (view,)).args["kind"] == Choice("steady", {"scale": 0.25})


@pytest.mark.parametrize(
  ("args", "key", "expected_message"),
  [
    ({"kind": {"by": 3}}, "kind.by", "unknown key for 'steady', value 3. It is supported by moving. Allowed: scale."),
    ({"other": {"by": 3}}, "other", "is not a choice. Write dict(name='...', ...), or --c.other.name="),
    ({"kind": True}, "kind", "dict(name='...', ...), or --c.kind.name=NAME. Allowed: steady, moving."),
    ({"kind": "stedy"}, "kind", "--c.kind.name=NAME. Did you mean 'steady'? Allowed: steady, moving."),
    ({"kind": "moving"}, "kind.by", "missing; 'moving' needs it. Add it to the config or as --c.kind.by="),
    ({"other": "true"}, "other", "--c.other.name=NAME. Allowed: steady, moving."),
    ({"named": {"x": "true"}}, "named.x", "--c.named.x.name=NAME. Allowed: steady, moving."),
    ({"kind": {"name": "stedy"}}, "kind.name", "unknown name 'stedy'. Did you mean 'steady'? Allowed: steady, moving."),
    ({"kind": {"name": "moving"}}, "kind.by", "missing; 'moving' needs it. Add it to the config or as --c.kind.by="),
    ({"other": {"name": "steady", "scale": 1}}, "other.scale", "1.0 is out of range"),
    ({"named": {"x": {"name": "steady", "skale": 1}}}, "named.x.skale", "Did you mean 'scale'"),
    ({"named": {"x": 3}}, "named.x", "3 is not a choice"),
    (
      {"named": {"ab": {"name": "steady"}, "b": {"by": 3}}},
      "named.b",
      "Existing entries: ab. Did you mean --c.named.ab.",
    ),
    (
      {"named": 3},
      "named",
      "3 is not a set of named entries. Set an entry with --c.named.NAME.name=.... Remove",
    ),
    ({"named": schema.Text("[]")}, "named", "'[]' is not a set of named entries. Set an entry with"),
    ({"listed": [{"name": "steady"}, {"name": "moving", "by": 0}]}, "listed[1].by", "0 is out of range"),
    ({"evry": "5%"}, "evry", "Did you mean 'every'"),
    ({"every": "often"}, "every", "'often' is not a length of training"),
  ],
)
def test_error_in_a_nested_choice_names_its_full_key(args, key, expected_message):
  with pytest.raises(ConfigError) as caught, schema.enter_key("c"):
    schema.bind(Choice("view", args), schema.lookup(VIEWS, "view"))
  assert caught.value.place == f"c.{key}"
  assert expected_message in caught.value.message


def test_choice_without_a_table_is_unchanged():
  inner = Choice("anything", {"at": {"name": "all"}})
  bound = schema.bind(Choice("s", {"width": 1, "inner": schema.to_plain(inner)}), (sample,))
  assert bound.args["inner"] == inner


def test_unknown_name_suggests_the_nearest():
  with pytest.raises(ConfigError) as caught, schema.enter_key("config.optim"):
    schema.lookup({"adamw": steady, "sgd": steady}, "adamv")
  assert caught.value.place == "config.optim.name"
  assert "'adamv'. Did you mean 'adamw'? Allowed: adamw, sgd." in caught.value.message


def test_first_of_several_functions_is_called():
  assert schema.make(Choice("view", {"every": "1"}), VIEWS, 7) == ("steady", 7, 0.5)
  assert schema.make(Choice("moving", {"by": 2}), KINDS, 7) == ("moving", 7, 2)


def test_arguments_are_selected_by_function():
  bound = schema.bind(Choice("view"), schema.lookup(VIEWS, "view"))
  assert bound.select(often) == {"every": "10%"}
  assert bound.select(view, often) == bound.args


def test_preset_is_a_schema_with_other_defaults():
  ready = schema.preset(steady, 8, scale=0.25)
  assert schema.read_keywords(ready) == {"scale": 0.25}
  assert schema.make(Choice("ready"), {"ready": ready}) == ("steady", 8, 0.25)
  with pytest.raises(ConfigError, match=r"scale: 2.0 is out of range"):
    schema.bind(Choice("ready", {"scale": 2}), (ready,))

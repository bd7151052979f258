"""Tests of errors: their config keys, their suggestions, and the printing of long or hostile values."""

import pickle
import threading

import ml_collections
import pytest

from vit_jax.schema import Text
from vit_jax.schema.errors import (
  LONGEST,
  ConfigError,
  enter_key,
  format_names,
  get_current_key,
  make_printable,
  show,
  suggest_nearest,
)


def test_nested_keys_are_joined_from_outside_to_inside():
  with enter_key("config"), enter_key("evals"), enter_key("pets"):
    assert get_current_key() == "config.evals.pets"
    assert get_current_key("batch") == "config.evals.pets.batch"
    with enter_key("shots"), enter_key("[1]"):
      assert get_current_key() == "config.evals.pets.shots[1]"
    assert get_current_key() == "config.evals.pets"
  assert get_current_key() == "" and get_current_key("batch") == "batch"


def test_key_that_starts_with_config_is_absolute():
  with enter_key("config.evals.pets"):
    assert get_current_key("config.batch") == "config.batch"
    with enter_key("config.data"):
      assert get_current_key("path") == "config.data.path"
    assert get_current_key("configs") == "config.evals.pets.configs"


def test_error_resets_the_current_key():
  with pytest.raises(ConfigError) as caught, enter_key("config.data"):
    raise ConfigError("3 is wrong", "path")
  assert get_current_key() == ""
  error = caught.value
  assert (error.place, error.message, str(error)) == ("config.data.path", "3 is wrong", "config.data.path: 3 is wrong")


def test_error_keeps_the_key_of_its_creation():
  with enter_key("config.data"):
    error = ConfigError("absent")
  with pytest.raises(ConfigError, match=r"^config.data: absent$"), enter_key("config.evals.pets"):
    raise error


def test_error_without_a_key_is_its_message_alone():
  assert str(ConfigError("no file 'x'")) == "no file 'x'"


def test_error_is_unchanged_by_pickling():
  with enter_key("config"):
    error = pickle.loads(pickle.dumps(ConfigError("wrong", "seed")))
  assert (error.place, str(error)) == ("config.seed", "config.seed: wrong")


def test_threads_have_separate_keys():
  seen = []
  with enter_key("config"):
    thread = threading.Thread(target=lambda: seen.append(get_current_key("x")))
    thread.start()
    thread.join()
  assert seen == ["x"]


def test_suggestion_contains_the_nearest_and_the_allowed_names():
  assert suggest_nearest("adamv", ["adamw", "sgd"]) == " Did you mean 'adamw'? Allowed: adamw, sgd."
  assert suggest_nearest("x", []) == ""
  assert suggest_nearest("item", map(str, range(50))).endswith("39, ... (50 in all).")


LONG = {
  "text": "x" * 300_000,
  "texts": ["x" * 300_000],
  "key": {"x" * 300_000: 1},
  "number": 10**5000,
  "numbers": [10**5000],
  "bytes": b"x" * 10**6,
}


@pytest.mark.parametrize("name", LONG)
def test_long_value_is_abbreviated(name):
  value = LONG[name]
  assert len(show(value)) < 260
  assert suggest_nearest(value, ["a"]) == " Allowed: a."
  assert len(str(ConfigError(f"{show(value)} is wrong. Allowed: 1", "seed"))) < 320


def test_long_message_keeps_its_beginning_and_its_end():
  output = str(ConfigError("wrong: " + "x" * 300_000 + ". Allowed: 1", "k" * 10_000))
  assert output.startswith("kkk") and "wrong: xxx" in output and "(300,019 characters)" in output
  assert output.endswith(". Allowed: 1") and len(output) < LONGEST + 400


@pytest.mark.parametrize("odd", ["\x1b[2J", "\x07", "\x00", "\r", "\x9b", "\u202e", "\u2066", "\udcff", "\x7f"])
def test_control_characters_are_escaped(odd):
  error = ConfigError(f"a {odd} b\nü", odd)
  assert odd not in str(error) and error.message.endswith(" b\nü")
  assert error.message == make_printable(error.message)


def test_name_cannot_start_a_new_line():
  assert format_names(["a\nerror: b", "c"]) == "a\\nerror: b, c"
  assert "\n" not in suggest_nearest("a\nb", ["a\nc"])
  assert format_names("abc", 2) == "a, b, ... (3 in all)"


def test_config_group_is_shown_as_a_dict():
  group = ml_collections.ConfigDict({"name": Text("a\nb"), "end": {"lr": (0.1, None)}}, type_safe=False)
  assert show(group) == "{'end': {'lr': (0.1, None)}, 'name': 'a\\nb'}"

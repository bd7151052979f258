"""The exit codes of `launch`: one number each, none that means something else where training ends with it."""

from launch import errors
from vit_jax import runtime

NAMES = {name: value for name, value in vars(errors).items() if name.isupper() and isinstance(value, int)}


def test_every_code_has_a_number_of_its_own_and_a_line_that_says_what_to_do():
  assert len(set(NAMES.values())) == len(NAMES)
  assert set(errors.EXITS) == set(NAMES.values()) - {errors.BUG}
  assert all(meaning and action for meaning, action in errors.EXITS.values())


def test_codes_of_the_program_keep_their_meaning():
  # 0 is done, 1 a bug, 2 a mistake, and after 42 the run goes on or can, wherever it comes from.
  assert set(NAMES.values()) & set(runtime.EXITS) == {errors.DONE, errors.BUG, errors.USAGE, errors.DETACHED}
  assert "mistake" in errors.EXITS[errors.USAGE][0] and "mistake" in runtime.EXITS[errors.USAGE][0]


def test_an_error_is_its_message_and_a_code():
  assert errors.LaunchError("a typo").code == errors.USAGE
  assert errors.LaunchError("no quota", errors.DENIED).code == errors.DENIED
  assert str(errors.LaunchError("a typo")) == "a typo"

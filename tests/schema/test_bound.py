"""Tests of bound choices: they call functions with their own arguments, and equal the plain choice."""

from vit_jax import schema
from vit_jax.schema import Choice


def crop(image, *, size: int = 8, ratio: schema.Fraction = 0.5):
  return image, size, ratio


def flip(image, *, probability: schema.Fraction = 0.5):
  return image, probability


class Named(schema.Bound):
  """The type of the choices of the table."""


TABLE = schema.DerivedTable({"both": (crop, flip)}, lambda name, functions: functions, kind=Named)


def bound(**args):
  return schema.bind(Choice("both", args), TABLE["both"], TABLE)


def test_function_gets_its_own_arguments():
  choice = bound(size=4, probability=0.25)
  assert choice.call(crop, "x") == ("x", 4, 0.5)
  assert choice.call(flip, "x") == ("x", 0.25)
  assert choice.select(crop) == {"size": 4, "ratio": 0.5}
  assert choice.select(crop, flip) == choice.args


def test_table_determines_the_type_of_its_choices():
  assert type(bound()) is Named
  assert type(schema.bind(Choice("both"), TABLE["both"])) is schema.Bound


def test_replacing_keeps_the_type_and_the_original():
  choice = bound()
  other = choice.replace(size=2)
  assert type(other) is Named and other.call(crop, "x") == ("x", 2, 0.5)
  assert choice.args["size"] == 8


def test_bound_choice_equals_the_plain_choice_and_has_its_repr():
  plain = Choice("both", {"size": 8, "ratio": 0.5, "probability": 0.5})
  assert bound() == plain and plain == bound() and bound() != plain.replace(size=1)
  assert repr(bound()) == repr(plain)  # digests contain it
  assert schema.to_plain(bound()) == schema.to_plain(plain)

"""Tests of the descriptions of types, and of their examples."""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import pytest

from vit_jax import schema
from vit_jax.schema import expected


@pytest.mark.parametrize(
  ("kind", "words", "example"),
  [
    (int, "an integer", "2"),
    (schema.Count, "an integer of at least 1", "2"),
    (schema.Positive, "a number above 0", "0.1"),
    (schema.Fraction, "a number from 0 to 1", "0.1"),
    (Annotated[int, schema.Range(16, 64)], "an integer from 16 to 64", "16"),
    (Annotated[float, schema.Range(high=5)], "a number of at most 5", "0.1"),
    (schema.Positive | None, "a number above 0, or none", "0.1"),
    (bool, "true or false", "true"),
    (Literal["a", "b"], "'a' or 'b'", "a"),
    (schema.Duration, "a length of training", "10ep"),
    (tuple[int, ...], "a list", "'(2,2)'"),
    (tuple[float, float, float], "a list", "'(0.1,0.1,0.1)'"),
    (str, "a text", ""),
  ],
)
def test_type_has_a_description_and_an_example_that_it_accepts(kind, words, example):
  assert expected.describe_type(kind) == words and expected.format_example(kind) == example
  if example:
    schema.convert(schema.Text(example.strip("'")), kind)


@pytest.mark.parametrize(
  ("kind", "supported"),
  [
    (int, True), (str | None, True), (Annotated[schema.Choice, {}], True), (tuple[int, ...], True),
    (Mapping[str, float], True), (schema.Pattern, True), (Callable, False), (dict, False), (object, False),
    (Mapping[int, int], False), (int | object, False),
  ],
)  # fmt: skip
def test_supported_config_types_are_recognised(kind, supported):
  assert expected.is_supported(kind) is supported

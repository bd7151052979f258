"""Tests of users' regular expressions: bounded matching time, or refusal with a suggestion."""

import re
import time

import pytest

from vit_jax.schema import ConfigError, patterns

PATH = "stages/2/blocks/17/attention/query/kernel"  # one of the longest paths


@pytest.mark.parametrize(
  "pattern",
  [
    ".*kernel", "(?!head).*", r"blocks/(\d+/)?tokens/up/kernel", r"blocks/([0-9]|1[01])/.*|embedding/.*", "",
    r".*/(query|key|value)/.*(kernel|bias)", r"blocks/\d+/(norm1|norm2)/.*", "(?i:HEAD).*", r"(a|b|cd){1,3}", r"(.)\1",
  ],
)  # fmt: skip
def test_patterns_of_recipes_are_allowed(pattern):
  patterns.check_pattern(pattern)


@pytest.mark.parametrize(
  "pattern",
  [
    "(a+)+b", "(a*)*b", "(a|a)*b", "(a|aa)+b", "(.*a){20}", "(.*)*", "(a?){64}b", "a?" * 30 + "a" * 30, ".*" * 10 + "x",
    "(?:){1000000}", "(?:(?:){65535}){65535}", "(?:a?)+", "(x|xx)" * 30, "(?=(a+)+b).*", "(?>(a+)+b)",
    "(?:(?:a|b)*c)*d", r"(\w+)*x", "((a{1,20}){1,20}){1,20}b",
  ],
)  # fmt: skip
def test_patterns_with_exponential_time_are_refused_with_a_hint(pattern):
  with pytest.raises(ConfigError, match=r"could match in .* Allowed: 1,000,000.*several patterns"):
    patterns.check_pattern(pattern)


@pytest.mark.parametrize("pattern", ["(", "[", "a{99999999999}", "(" * 500 + ")" * 500, "*", "a" * 1001])
def test_invalid_pattern_is_refused(pattern):
  with pytest.raises(ConfigError, match=r"is not a regular expression|too long"):
    patterns.check_pattern(pattern)


@pytest.mark.parametrize("pattern", [".*.*.*x", r"(\w+/)?" * 3 + "x", ".*(a|b|e)?.*[a-z]+x", "(?!.*x)(?!.*y).*z"])
def test_slowest_allowed_patterns_take_milliseconds(pattern):
  patterns.check_pattern(pattern)
  started = time.process_time()
  for text in (PATH, "a" * patterns.LENGTH):
    assert not re.fullmatch(pattern, text)
  assert time.process_time() - started < 0.5

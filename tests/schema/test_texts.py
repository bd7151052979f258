"""Tests of flag texts: they are parsed like values in configs, and are never executed."""

import os
import subprocess

import pytest

from vit_jax import schema
from vit_jax.schema import Choice, ConfigError, texts


def test_flag_may_be_written_like_a_config():
  def parsed(text):
    return schema.convert(schema.Text(text), tuple[schema.Choice, ...])

  assert parsed("[dict(name='a', inner=dict(x=[1])), {'name': 'b'}]") == (
    Choice("a", {"inner": {"x": [1]}}),
    Choice("b"),
  )
  for text in ("[dict(**{'name': 'a'})]", "[dict({'name': 'a'})]", "[list(name='a')]", "[open('x')]", "dict(name=x)"):
    with pytest.raises(ConfigError, match=r"^expected a list, got "):
      parsed(text)


@pytest.mark.parametrize(
  ("text", "expected_message"),
  [
    ("true", """True is not a list of values. Write --config.s='["..."]'"""),
    ("blocks", """cannot read 'blocks' as a number or a list. Write --config.s='["blocks"]'"""),
    ("(?!head).*", """--config.s='["(?!head).*"]'"""),
    ("['blocks'", """--config.s='["..."]'"""),
  ],
)
@pytest.mark.parametrize("word", [str, schema.Pattern])
def test_error_of_an_invalid_list_of_strings_shows_the_syntax(text, expected_message, word):
  with pytest.raises(ConfigError) as caught, schema.enter_key("config.s"):
    schema.convert(schema.Text(text), tuple[word, ...])
  assert caught.value.message.endswith(expected_message)


def test_error_of_an_invalid_list_of_numbers_suggests_no_strings():
  with pytest.raises(ConfigError, match=r"^expected a list, got 'al'\. Write a value such as '\(2,2\)'$"):
    schema.convert(schema.Text("al"), tuple[int, ...])


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("12.5 %", 0.125), ("0%", 0.0), ("100%", 1.0)])
def test_fraction_may_be_a_percentage(text, share):
  assert schema.convert(schema.Text(text), schema.Fraction) == share


@pytest.mark.parametrize("text", ["101%", "-5%", "%", "5%%"])
def test_invalid_percentage_is_refused(text):
  with pytest.raises(ConfigError):
    schema.convert(schema.Text(text), schema.Fraction)


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("at https://me:secret@host/a", "at https://host/a"),
    ("https://token@host:80", "https://host:80"),
    ("http://me:se@cret@host/a@b", "http://host/a@b"),
    ("https://host/a@b, me@host", "https://host/a@b, me@host"),
  ],
)
def test_passwords_of_addresses_are_hidden(text, shown):
  assert texts.hide_passwords(text) == shown


@pytest.mark.parametrize(
  "text", ["a b", "", "it's", "\x1b[31m\n'\\", "\x85\u202eö", os.fsdecode(b"\xff'"), "$(touch x)\t"]
)
def test_quoted_word_is_printable_and_a_shell_reads_the_text(text):
  word = texts.quote_word(text)
  assert word.isprintable()
  environment = {"LC_ALL": "C", "PATH": os.environ["PATH"]}
  done = subprocess.run(["bash", "-c", f"printf %s {word}"], stdout=subprocess.PIPE, env=environment, check=True)
  assert done.stdout == os.fsencode(text)

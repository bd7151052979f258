"""Tests of printed text: control characters, closed outputs, and numbers with nouns."""

import io

import pytest

from launch import errors
from vit_jax.schema import texts


@pytest.mark.parametrize(
  ("text", "shown"),
  [
    ("\x1b]0;PWNED\x07\x1b[2J\x9b31m", "�]0;PWNED��[2J�31m"),
    ("a\r\nb\tc\0", "a�\nb\tc�"),
    ("schön → 3·10⁴ 日本", "schön → 3·10⁴ 日本"),
    ("\u202egpj.exe \ud8ff \udcff", "�gpj.exe � �"),
  ],
)
def test_control_characters_and_surrogates_are_replaced(text, shown):
  stream = io.StringIO()
  print(text, file=errors.PrintableStream(stream))
  assert stream.getvalue() == shown + "\n"


def test_closed_output_does_not_raise_errors(monkeypatch):
  class Gone(io.StringIO):
    def write(self, text):
      raise BrokenPipeError

  monkeypatch.setattr(errors.sys, "stdout", errors.PrintableStream(Gone()))
  errors.print_line("a")
  errors.print_line("b")
  errors.sys.stdout.close()


@pytest.mark.parametrize("words", [("chip",), ("try", "tries")])
def test_amounts_match_messages_of_vit_jax(words):
  amounts = [errors.format_amount(number, *words) for number in (0, 1, 2, 1437)]
  assert amounts == [texts.format_amount(number, *words) for number in (0, 1, 2, 1437)]
  assert amounts[1] == f"1 {words[0]}" and amounts[3] == f"1,437 {words[-1] if words[1:] else 'chips'}"

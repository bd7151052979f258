"""Conversion of values that were typed in a flag."""

import ast
import os
import re
import shlex
from typing import Any

from vit_jax.schema.errors import ConfigError, show

_PERCENT = re.compile(r"(\d+(?:\.\d*)?) ?%")


class Text(str):
  """A value as it was typed in a flag. The schema determines its type."""


def format_amount(number: int, noun: str, plural: str = "") -> str:
  """Returns a number with its noun, such as "1 trial" or "1,437 trials".

  Args:
    number: the number.
    noun: the noun in the singular.
    plural: the plural, if it is not the noun with an s.
  """
  return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def format_flag(key: str, value: object) -> str:
  """Returns `--KEY=VALUE` for a shell, quoted if necessary.

  Args:
    key: key of the config or name of the flag.
    value: the value. A list is written without spaces.
  """
  text = str(value).replace(" ", "") if isinstance(value, tuple | list) else str(value)
  return f"--{key}={quote_word(text)}"


def quote_word(text: str) -> str:
  """Quotes a text for a shell if necessary.

  Args:
    text: any text. With characters that cannot be printed, it is written as $'...', which bash and zsh support.
  """
  return shlex.quote(text) if text.isprintable() else f"$'{''.join(map(_escape_character, text))}'"


def _escape_character(character: str) -> str:
  if character in "\\'":
    return f"\\{character}"
  return character if character.isprintable() else "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def hide_passwords(text: str) -> str:
  """Returns a text without the users and passwords of its addresses, such as https://user:password@host.

  Args:
    text: any text.
  """
  return re.sub(r"(?<=://)[^\s/]*@", "", text)


def parse_number(value: object) -> Any:
  """Converts a Text like `parse_literal`. A percentage such as "5%" becomes 0.05."""
  percent = _PERCENT.fullmatch(value) if isinstance(value, Text) else None
  return float(percent[1]) / 100 if percent else parse_literal(value)


class _DictCalls(ast.NodeTransformer):  # configs write dict(name="a"), which this class converts to {"name": "a"}
  def visit_Call(self, node: ast.Call) -> ast.AST:
    self.generic_visit(node)
    if not (
      isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args and all(k.arg for k in node.keywords)
    ):
      return node
    return ast.Dict([ast.Constant(k.arg) for k in node.keywords], [k.value for k in node.keywords])


def parse_literal(value: object) -> Any:
  """Converts a Text to a number, list or other literal. Any other value is returned unchanged.

  Args:
    value: a Text, or a value of another type.

  Raises:
    ConfigError: the Text is not a literal.
  """
  if not isinstance(value, Text):
    return value
  try:
    tree = ast.parse({"true": "True", "false": "False"}.get(value.lower(), value.strip()), mode="eval")
    return ast.literal_eval(_DictCalls().visit(tree))
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    raise ConfigError(f"cannot read {show(str(value))} as a number or a list") from None

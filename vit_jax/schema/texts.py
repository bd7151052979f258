"""Values as typed in a flag, which the schema gives their types."""

import ast
import re
import shlex
from typing import Any

from vit_jax.schema.errors import ConfigError, show

_PERCENT = re.compile(r"(\d+(?:\.\d*)?) ?%")


class Text(str):
  """A value as typed in a flag; the schema decides what it is."""


def amount(number: int, noun: str, plural: str = "") -> str:
  """Returns a number with its noun: "1 trial", "1,437 trials"; `plural` if that is not the noun with an s."""
  return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def flag(key: str, value: Any) -> str:
  """Returns `--KEY=VALUE` for a shell: quoted if necessary, and a list without spaces."""
  text = str(value).replace(" ", "") if isinstance(value, tuple | list) else str(value)
  return f"--{key}={shlex.quote(text)}"


def number(value: Any) -> Any:
  """As `literal`, and "5%" is 0.05."""
  percent = _PERCENT.fullmatch(value) if isinstance(value, Text) else None
  return float(percent[1]) / 100 if percent else literal(value)


class _Dicts(ast.NodeTransformer):  # dict(name="a") becomes {"name": "a"}: configs are written so
  def visit_Call(self, node):
    self.generic_visit(node)
    if not (
      isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args and all(k.arg for k in node.keywords)
    ):
      return node
    return ast.Dict([ast.Constant(k.arg) for k in node.keywords], [k.value for k in node.keywords])


def literal(value: Any) -> Any:
  """What a Text says, a number, a list or the like; any other value as it is. ConfigError for a Text that says none."""
  if not isinstance(value, Text):
    return value
  try:
    tree = ast.parse({"true": "True", "false": "False"}.get(value.lower(), value.strip()), mode="eval")
    return ast.literal_eval(_Dicts().visit(tree))
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    raise ConfigError(f"cannot read {show(str(value))} as a number or a list") from None

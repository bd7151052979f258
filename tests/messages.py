"""Lists the messages of a source tree: errors, warnings, notes, progress lines, help texts and report texts.

    python -m tests.messages vit_jax launch

prints one message per line with its file and line, so that a reviewer can read all of them in one place. A message is a
string or f-string of at least four words that is neither a docstring nor the argument of a call that takes a pattern or
code. Values of an f-string are shown as `{expression}`.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

# Calls with strings that no person reads: regular expressions, contractions of axes, code, and names of fields.
CODE = {
  "compile", "einsum", "rearrange", "exec", "eval", "finditer", "fullmatch", "match", "namedtuple", "search", "struct",
  "sub", "findall",
}  # fmt: skip
MIN_WORDS = 4
DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Message(NamedTuple):
  """A message and the file and line of its first character."""

  place: str
  text: str


def messages_in(folder: pathlib.Path) -> Iterator[Message]:
  """Yields the messages of all Python files below a folder, sorted by file and line."""
  for file in sorted(folder.rglob("*.py")):
    found = messages_of(ast.parse(file.read_text()))
    yield from (Message(f"{file}:{line}", text) for line, text in sorted(found))


def messages_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
  """Yields the line and text of each message of a module."""
  waiting: list[ast.AST] = [tree]
  while waiting:
    node = waiting.pop()
    text = text_of(node)
    if text is None:
      skipped = list(_not_messages(node))
      waiting += [each for each in ast.iter_child_nodes(node) if not any(each is part for part in skipped)]
    elif _is_message(text):
      yield node.lineno, text


def text_of(node: ast.AST) -> str | None:
  """Returns the text of a string, an f-string or a sum of them, and None for any other expression."""
  if isinstance(node, ast.Constant):
    return node.value if isinstance(node.value, str) else None
  if isinstance(node, ast.JoinedStr):
    return "".join(
      str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}" for part in node.values
    )
  if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
    left, right = text_of(node.left), text_of(node.right)
    if left is None and right is None:
      return None
    return (left if left is not None else "{}") + (right if right is not None else "{}")
  return None


def _not_messages(node: ast.AST) -> Iterator[ast.AST]:
  """Yields the parts of a node with strings that no person reads: docstrings, annotations, patterns, asserts."""
  if isinstance(node, DEFINITIONS) and node.body and isinstance(node.body[0], ast.Expr):
    yield node.body[0]
  if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
    yield node.annotation
  if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns:
    yield node.returns
  if isinstance(node, ast.Assert) and node.msg:
    yield node.msg
  if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in CODE:
    yield from node.args


def _is_message(text: str) -> bool:
  """Returns True for texts of several words that are not style sheets, scripts or drawings."""
  words = [word for word in text.split() if re.search(r"[A-Za-z{]", word)]
  return len(words) >= MIN_WORDS and re.search(r"[a-z]{2} ", text) is not None and not _is_markup(text)


def _is_markup(text: str) -> bool:
  """Returns True for style sheets, scripts and drawings."""
  return bool(re.search(r"\{\{|;\}|: ?\d+px|</?(?:svg|script|style|path|rect|line)\b|=>", text))


def main() -> None:
  """Prints the messages of the folders on the command line."""
  for folder in sys.argv[1:]:
    for message in messages_in(pathlib.Path(folder)):
      print(f"{message.place}: {message.text!r}")


if __name__ == "__main__":
  main()

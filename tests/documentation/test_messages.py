"""Docstrings and messages are plain English: odd constructions are rare, and arguments are documented."""

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

import pytest

from tests import language, messages
from tests.documentation.extraction import ROOT

PACKAGE = ROOT / "vit_jax"
FOLDERS = [PACKAGE, *sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").exists())]
# Public functions with this many arguments and lines of code need an `Args:` section. Others may do without.
ARGUMENTS, LINES = 2, 8
SHARE = 0.75  # of all public functions with arguments have the section

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def files_of(folder: pathlib.Path) -> list[pathlib.Path]:
  """Returns the Python files of a folder: all below a package, and only the top level of vit_jax itself."""
  return sorted(folder.glob("*.py") if folder == PACKAGE else folder.rglob("*.py"))


@functools.cache
def parsed(file: pathlib.Path) -> ast.Module:
  return ast.parse(file.read_text())


def docstrings(folder: pathlib.Path) -> dict[str, str]:
  """Returns the docstrings of a folder by file and line."""
  found = {}
  for file in files_of(folder):
    for node in ast.walk(parsed(file)):
      if isinstance(node, Definition) and (text := ast.get_docstring(node)):
        found[f"{file.relative_to(ROOT)}:{node.body[0].lineno}"] = text
  return found


def public_functions(folder: pathlib.Path) -> Iterator[tuple[str, ast.FunctionDef, int]]:
  """Yields (file:line, function, number of arguments) of public functions and methods that have arguments."""

  def below(body):
    for node in body:
      if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
        yield from below(node.body)
      elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        yield node

  for file in files_of(folder):
    for node in below(parsed(file).body):
      every = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
      if arguments := [each for each in every if each.arg not in ("self", "cls")]:
        yield f"{file.relative_to(ROOT)}:{node.lineno}", node, len(arguments)


def lines_of_code(function: ast.FunctionDef) -> int:
  """Returns the number of lines of a function without its docstring."""
  text = ast.get_docstring(function, clean=False)
  return function.end_lineno - function.lineno + 1 - (len(text.split("\n")) if text else 0)


def has_arguments_section(function: ast.FunctionDef) -> bool:
  return "Args:" in (ast.get_docstring(function) or "")


def plain(text: str) -> str:
  """Returns a message without the expressions in braces, which are code."""
  return re.sub(r"\{[^{}]*\}", "X", text)


def test_messages_are_plain_english():
  found = {message.place: plain(message.text) for message in messages.messages_in(PACKAGE)}
  assert len(found) > 1000
  excesses = language.excesses(found)
  assert not excesses, "\n".join(excesses)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_docstrings_are_plain_english(folder):
  # Names of documented arguments are code.
  texts = {place: re.sub(r"^ +\w+:", "", text, flags=re.M) for place, text in docstrings(folder).items()}
  excesses = language.excesses(texts)
  assert not excesses, "\n".join(excesses)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_docstrings_start_with_a_verb_or_noun(folder):
  start = re.compile(r"(?:What|Whatever|Whether|Which|Of|Where)\b")
  wrong = [f"{place}: {text.splitlines()[0]}" for place, text in docstrings(folder).items() if start.match(text)]
  assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_long_public_functions_document_arguments(folder):
  wrong = [
    f"{place}: {function.name}"
    for place, function, arguments in public_functions(folder)
    if arguments >= ARGUMENTS and lines_of_code(function) > LINES and not has_arguments_section(function)
  ]
  assert not wrong, "\n".join(wrong)


def test_most_public_functions_document_arguments():
  functions = [function for folder in FOLDERS for _, function, _ in public_functions(folder)]
  documented = sum(map(has_arguments_section, functions))
  assert documented >= SHARE * len(functions), f"{documented} of {len(functions)}"


def test_messages_of_a_module_are_found():
  source = '''
"""The docstring of a module is not a message."""
import re

TEXT = "a text of five words"
PATTERN = re.compile("a pattern of five words")


def function(x: "B H W C of images"):
  """The docstring of a function is not a message."""
  assert x, "an assertion of five words"
  raise ValueError(f"config.x: expected one of {x!r}, " "got two values")
'''
  found = [(message[0], message[1]) for message in messages.messages_of(ast.parse(source))]
  assert sorted(found) == [(5, "a text of five words"), (12, "config.x: expected one of {x}, got two values")]

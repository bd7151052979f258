"""Pages with the flags and the exit codes of all verbs."""

import argparse
import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

from docs.generated.docstrings import EARLY, escape
from launch import errors as launch_errors
from launch import flags as launch_flags
from vit_jax import cli, runtime
from vit_jax.__main__ import VERBS


def make_flags_page() -> str:
  """Returns the page with the flags of all verbs."""
  parts = ["# Flags\n", EARLY]
  parts.append("Verbs that have `--config` also accept `--config.KEY=VALUE`, which changes a value of the config.\n")
  for verb in VERBS:
    actions, description = read_verb_flags(verb)
    summary = escape(re.sub(r"\s+", " ", description.partition("\n\n")[0].partition(": python -m")[0]))
    parts += [f"## vit\\_jax.{verb}\n", f"{summary.rstrip('.')}.\n", format_flags(actions)]
  return "\n".join(parts)


def make_launch_page() -> str:
  """Returns the page with the flags of `launch`."""
  parts = ["# Flags of launch\n", EARLY]
  for name, actions, description in read_launch_flags():
    parts += [f"## launch {name}\n", f"{escape(description[:1].upper() + description[1:])}.\n", format_flags(actions)]
  return "\n".join(parts)


def make_exit_codes_page() -> str:
  """Returns the page with the exit codes of the verbs and of `launch`."""
  parts = ["# Exit codes\n", EARLY]
  for title, exits in (("Verbs", runtime.EXITS), ("launch", launch_errors.EXITS)):
    rows = [
      f"### {title}: {number}\n\n{meaning}.\n\nWhat to do: {action}.\n" for number, (meaning, action) in exits.items()
    ]
    parts += [f"## {title}\n", *rows]
  return "\n".join(parts)


class _ParserBuilt(BaseException):
  """Stops a verb before it parses its flags. Contains the flags of the parser."""

  def __init__(self, actions: list[Any], description: str) -> None:
    super().__init__("built")
    self.actions, self.description = actions, description


def read_verb_flags(verb: str) -> tuple[list[argparse.Action], str]:
  """Returns the flags of a verb, and the description of the verb."""

  def parse(self: cli.Parser, words: Sequence[str] | None = None) -> None:
    raise _ParserBuilt(self._actions, self.description or "")

  module = importlib.import_module(f"vit_jax.{verb}")
  with mock.patch.object(cli.Parser, "parse", parse):
    try:
      module.main()
    except _ParserBuilt as built:
      return built.actions, built.description
  raise AssertionError(f"{verb} reads no flags")


def read_launch_flags() -> Iterator[tuple[str, list[argparse.Action], str]]:
  """Yields name, flags and description of each verb of `launch`."""

  def parse(self: launch_flags.Parser, words: Sequence[str] | None = None, namespace: object = None) -> None:
    groups = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
    raise _ParserBuilt(list(groups.choices.items()), "")

  with mock.patch.object(launch_flags.Parser, "parse_known_args", parse), contextlib.suppress(_ParserBuilt):
    try:
      launch_flags.parse_flags([next(iter(launch_flags.VERBS)), "name"])
    except _ParserBuilt as built:
      for name, parser in built.actions:
        yield name, parser._actions, parser.description or ""


def format_flags(actions: Iterable[argparse.Action]) -> str:
  """Returns a list of flags, one item each."""
  items = []
  for action in actions:
    if isinstance(action, argparse._HelpAction):
      continue
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.metavar or action.dest}`"
    facts = [escape(str(action.help).replace("%%", "%"))] if action.help else []
    facts += [f"one of {', '.join(f'`{each}`' for each in action.choices)}"] if action.choices else []
    facts += ["required"] if action.required and action.option_strings else []
    if action.default not in (None, False, "", [], argparse.SUPPRESS) and not action.const:
      facts.append(f"default: `{action.default}`")
    items.append(f"- {names}: {'; '.join(facts)}" if facts else f"- {names}")
  return "".join(f"{item}\n" for item in items)

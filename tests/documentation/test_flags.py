"""Every flag of every verb and of `launch` is described in the pages."""

import argparse
import dataclasses
import re
from unittest import mock

import pytest

from launch import flags as launch_flags
from tests.documentation import checks, extraction
from vit_jax import cli, config
from vit_jax.__main__ import VERBS

TEXT = "\n".join(page.read_text() for page in extraction.PAGES)


def flags_of_verb(verb):
  """Returns the long flags of a verb's parser."""
  found = []

  def parse(self, given=None):
    found.extend(flag for flag in self._option_string_actions if flag.startswith("--"))
    raise checks.Parsed(argparse.Namespace())

  module = __import__(f"vit_jax.{verb}", fromlist=["main"])
  with mock.patch.object(cli.Parser, "parse", parse), pytest.raises(checks.Parsed):
    module.main()
  return {*found} - {"--help"}


def flags_of_launch(verb=None):
  """Returns the groups of names of the long flags of `launch`, or of its verb; one name of a group is enough."""
  groups = []

  def read(self, words):
    verbs = next(action for action in self._actions if isinstance(action, argparse._SubParsersAction))
    groups.extend(action.option_strings for action in (verbs.choices[verb] if verb else self)._actions)
    raise checks.Parsed(argparse.Namespace())

  with mock.patch.object(launch_flags.Parser, "parse_known_args", read), pytest.raises(checks.Parsed):
    launch_flags.parse_flags([verb or "run", "name"])
  return [names for names in groups if names and "--help" not in names]


def documented(flag, text=TEXT):
  """Returns whether a flag is in the pages."""
  return re.search(rf"(?<![\w-]){flag}(?![\w-])", text) is not None


@pytest.mark.parametrize("verb", VERBS)
def test_d13_every_flag_of_a_verb_is_documented(verb):
  assert [flag for flag in sorted(flags_of_verb(verb)) if not documented(flag)] == []


def test_d13_the_flags_of_a_verb_are_found():
  assert {"--workdir", "--no-report"} <= flags_of_verb("train") and ["--hosts"] in flags_of_launch("run")
  assert documented("--workdir") and not documented("--work") and not documented("--no-such-flag")


def inline_flags():
  """Returns {(page, flag or first part of its key)} of inline code that starts with a flag, without its verb."""
  found = set()
  for page in extraction.PAGES:
    prose = extraction.split(page.read_text())[1]
    for span in re.findall(r"(?<!`)`(--[^`]+)`(?!`)", prose):
      found |= {(extraction.name_of(page), flag) for flag in re.findall(r"(?:^|\s)--([\w-]+(?:\.\w+)?)", span)}
  return found


def test_flags_in_prose_exist():
  known = {flag.removeprefix("--") for verb in VERBS for flag in flags_of_verb(verb)}
  known |= {
    name.removeprefix("--") for verb in (None, *launch_flags.VERBS) for names in flags_of_launch(verb) for name in names
  }
  keys = {field.name for kind in (config.Run, config.Measurement) for field in dataclasses.fields(kind)}
  known |= {f"config.{key}" for key in keys} | {"config.KEY", "help", "topology"}
  known |= {"xla_backend_extra_options"}  # a flag of XLA
  known |= {"user", "volume"}  # flags of docker
  unknown = [
    (page, flag) for page, flag in sorted(inline_flags()) if flag not in known and not flag.startswith("data.")
  ]
  assert unknown == []

"""Tests that values in printed commands are quoted for a shell, so that the commands can be pasted."""

import ast
import re
import shlex

import pytest

from tests.runs import ROOT
from vit_jax.importers import adoption
from vit_jax.importers.hub import metadata
from vit_jax.models import Description
from vit_jax.schema import Choice, texts

WORDS = ast.List | ast.Tuple | ast.ListComp | ast.GeneratorExp | ast.Starred  # words of a command, not a text
# Values that need no quotes, because they are numbers, or names with a restricted spelling.
PLAIN = {
  "vit_jax/convert.py": {"name"},
  "vit_jax/corpora/stats.py": {"2 * image_size"},
  "vit_jax/training/probe_setup.py": {"other"},
  "vit_jax/planning/estimate.py": {"folder"},  # a flag of XLA, not of a shell
  "launch/__main__.py": {"run.backend"},
  "launch/checks.py": {"run.backend", "math.ceil(1.3 * plan['hours'] + 1)"},
  "launch/flags.py": {"workdir", "_make_absolute(word.partition('=')[2])"},  # a word of a command, a mention
  "launch/spec.py": {"run.backend"},
  "launch/decisions.py": {"run.max_cost", "run.max_hours"},
  # Names that launch/spec.py restricts to letters, digits and a few signs, and constants.
  "launch/preflight.py": {"run.project", "name", "member", "role", "region", "ME", "','.join(END)"},
  "launch/gke.py": {"self._selector(attempt)"},  # a word of a command
}
FILES = [file for folder in ("vit_jax", "launch") for file in sorted((ROOT / folder).rglob("*.py"))]


def find_unquoted(tree):
  """Yields the values that follow `--flag=` in a text without shlex."""
  parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
  for node in ast.walk(tree):
    if isinstance(node, ast.JoinedStr) and not isinstance(parents[node], WORDS):
      for text, value in zip(node.values, node.values[1:], strict=False):
        if isinstance(text, ast.Constant) and isinstance(value, ast.FormattedValue):
          source = ast.unparse(value.value)
          if re.search(r"--[\w.-]+=$", text.value) and "shlex." not in source and "quote_word(" not in source:
            yield source


def test_texts_contain_no_flag_with_an_unquoted_value():
  texts_of = {str(file.relative_to(ROOT)): file.read_text() for file in FILES}
  found = {
    file: {*find_unquoted(ast.parse(text))} - PLAIN.get(file, set()) for file, text in texts_of.items() if "--" in text
  }
  assert {file: values for file, values in found.items() if values} == {}, "use texts.format_flag, or shlex"


def test_unquoted_values_are_detected():
  assert list(find_unquoted(ast.parse("say(f'tensorboard --logdir={workdir}')"))) == ["workdir"]
  assert not list(find_unquoted(ast.parse("run([f'--logdir={workdir}'])\nsay(f'--logdir={shlex.quote(workdir)}')")))


VALUES = ("runs/a", "my runs/[1] é", "it's", "$HOME/`id`", "a;b&c", 'say "x"', "")


@pytest.mark.parametrize("value", VALUES)
def test_formatted_flags_survive_a_shell(value):
  assert shlex.split(texts.format_flag("logdir", value)) == [f"--logdir={value}"]
  assert shlex.split(texts.format_flag("mean", (0.5, 0.25))) == ["--mean=(0.5,0.25)"]


def test_flags_in_notes_survive_a_shell():
  [note] = metadata.describe_normalisation({"mean": (0.4, 0.5, 0.6), "std": (0.5, 0.5, 0.5)})
  assert shlex.split(note)[-1] == "--config.data.mean=(0.4,0.5,0.6)"
  description = Description(Choice("ViT-S/8", {"stages": (1, 2)}), 32, 3)
  assert "--config.model.stages=(1,2)" in shlex.split(description.flags())
  assert shlex.split(adoption.format_setting_flags("data.std", (1, 2))) == ["--config.data.std=(1,2)"]

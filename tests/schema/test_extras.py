"""Tests of vit_jax/schema/extras.py: one spelling of the install commands, for the extras of setup.py."""

import ast
import pathlib
import re
import sys

import pytest

from vit_jax.schema import ConfigError, extras

ROOT = pathlib.Path(__file__).parents[2]


def in_setup() -> set[str]:
  """Returns the extras of setup.py, except for the one for tests."""
  tree = ast.parse((ROOT / "setup.py").read_text())
  call = next(node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "extras_require")
  return {key.value for key in call.value.keys} - {"test"}


def test_extras_match_setup():
  assert set(extras.EXTRAS) == in_setup()


@pytest.mark.parametrize("extra", extras.EXTRAS)
def test_advice_contains_the_extra_and_its_command(extra):
  assert extras.format_advice(extra) == f"the extra {extra}: pip install -e '.[{extra}]'"


def test_advice_of_an_installed_package_names_its_distribution(monkeypatch, tmp_path):
  monkeypatch.setattr(extras, "__file__", str(tmp_path / "vit_jax/schema/extras.py"))
  assert extras.get_install_command("gcs") == "pip install 'vit-jax-framework[gcs]'"
  monkeypatch.setitem(sys.modules, "tensorflow", None)
  with pytest.raises(ConfigError, match=r"^mnist: TensorFlow is missing .* Run: pip install tensorflow$"):
    extras.check_tensorflow("mnist")


def test_install_commands_are_defined_once_and_spelt_alike():
  for file in sorted((ROOT / "vit_jax").rglob("*.py")):
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, ast.Module)} if (
      tree := ast.parse(file.read_text())
    ) else set()  # fmt: skip
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    own = file.name == "extras.py"
    assert own or not [text for text in texts if "pip install" in text and text not in docstrings], file
  for file in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "vit_jax").rglob("*.py")):
    for extra in re.findall(r"pip install (?:-e )?'(?:vit_jax|\.)\[(\w+)\]'", file.read_text()):
      assert f"pip install -e '.[{extra}]'" in file.read_text() and f"'vit_jax[{extra}]'" not in file.read_text(), file

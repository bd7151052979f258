"""The Python code of the pages is found, and its excerpts are those of files that tests run."""

import ast
import re

import pytest

from tests.documentation import extraction, snippets

FOUND = snippets.snippets()


def test_python_code_is_in_fenced_blocks():
  """Code in an indented block would not be executed."""
  for page in extraction.PAGES:
    plain = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)
    assert not re.search(r"^ {4}(import|from) \w", plain, re.M), page.name
  assert {snippet.page for snippet in FOUND} >= {"README.md", "guides/python.md", "extend/index.md"}


@pytest.mark.parametrize("snippet", FOUND, ids=lambda snippet: f"{snippet.page}: {snippet.code[:40]}")
def test_code_has_the_syntax_of_python(snippet):
  ast.parse(snippet.code)


@pytest.mark.parametrize("start", snippets.EXCERPTS)
def test_an_excerpt_is_of_a_file_that_a_test_runs(start):
  shown = [snippet.code for snippet in FOUND if snippets.excerpt(snippet) == start]
  assert len(shown) == 1, f"no page has {start!r}; remove it from EXCERPTS"
  file, test = snippets.EXCERPTS[start]
  text = (extraction.ROOT / file).read_text()
  names = {node.attr for node in ast.walk(ast.parse(shown[0])) if isinstance(node, ast.Attribute)}
  assert start in text or start == "import timm"
  assert [name for name in names if name not in text] == []
  assert file.split("/")[1] in (extraction.ROOT / test).read_text() or file == test


F11 = {
  "`model.data`": "python.md", "`model.loss`": "python.md", "product(": "sweeps.md", "zipped(": "sweeps.md",
  "sample(": "sweeps.md", "log_uniform(": "sweeps.md", "local-dir:": "export-weights.md",
  "`width`": "train-from-scratch.md", "`depth`": "train-from-scratch.md", "`heads`": "train-from-scratch.md",
  "`hidden`": "train-from-scratch.md", "`token_hidden`": "train-from-scratch.md",
}  # fmt: skip


@pytest.mark.parametrize(("name", "page"), F11.items())
def test_f11_a_name_is_documented(name, page):
  assert name in (extraction.ROOT / "docs/guides" / page).read_text()

"""Lists and numbers that the pages state are those of the code."""

import re

import pytest

from tests.documentation import extraction
from tests.documentation.checks import packaging
from vit_jax import train
from vit_jax.corpora.builders import MADE
from vit_jax.data import catalog
from vit_jax.data.catalog import vtab


def page(name):
  """Returns a page of the documentation with single spaces between its words."""
  return " ".join((extraction.ROOT / name).read_text().split())


def number(name, pattern):
  """Returns the numbers that a pattern finds in a page, one for each group."""
  (found,) = re.findall(pattern, page(name))
  return tuple(int(each) for each in ([found] if isinstance(found, str) else found))


def test_d12_docs_runs_lists_every_key_that_a_restart_may_change():
  (sentence,) = re.findall(r"may change only these keys: (.*?`)\. ", page("docs/guides/resume.md"))
  assert sorted(re.findall(r"`([^`]+)`", sentence)) == sorted(train.MAY_CHANGE)


def test_d12_questions_name_every_extra():
  (answer,) = re.findall(r"\*\*Which installation\?\*\*(.*?)\*\*It does not", page("docs/questions.md"))
  named = {*re.findall(r"`(\w+)`", answer), *re.findall(r"'\.\[(\w+)\]'", answer)}
  assert packaging()["extras_require"].keys() - named == set()


def test_d12_datasets_are_counted_as_the_catalog_has_them():
  stored = [name for name, row in catalog.CATALOG.items() if row.builder and name not in MADE]
  others = [name for name, row in catalog.CATALOG.items() if not row.builder and row.classes is not None]
  pattern = r"the (\d+) datasets of TFDS, .*? other (\d+) datasets"
  assert number("docs/results.md", pattern) == (len(stored), len(others))


def test_d12_tasks_of_vtab_are_counted():
  assert number("docs/configs.md", r"VTAB's (\d+) tasks") == (len(vtab.TASKS),)


@pytest.mark.parametrize(
  ("name", "pattern"),
  [("README.md", r"(\d+) published models"), ("docs/results.md", r"(\d+) published models")],
)
def test_d12_models_of_the_fixtures_are_counted(name, pattern):
  described = {file.name.split(".")[0] for file in (extraction.ROOT / "tests/parity/fixtures/models").iterdir()}
  assert number(name, pattern) == (len(described),)


def families(name):
  """Returns the first column of the table of families in a page."""
  table = re.search(r"\| family \|.*\n\|[-|]+\n((?:\|.*\n)+)", (extraction.ROOT / name).read_text())[1]
  return [row.split("|")[1].strip() for row in table.splitlines()]


def test_families_of_models_are_counted():
  rows = families("README.md")
  assert number("README.md", r"(\d+) model families") == (len(rows),)
  pages = " ".join(families("docs/models/index.md")).lower()
  assert [name for row in rows for name in row.split(", ") if name.removesuffix("s").lower() not in pages] == []


def test_the_readme_shows_the_whole_config_of_the_digits():
  config = (extraction.ROOT / "configs/digits.py").read_text()
  assert f"```python\n{config}```" in (extraction.ROOT / "README.md").read_text()

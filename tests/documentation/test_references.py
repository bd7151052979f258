"""Names of code in docstrings, messages and pages exist, and tables about the code agree with it."""

import ast
import re

import pytest

from tests import test_house
from tests.documentation import extraction, references
from tests.documentation.references import MODULES, find_unknown

# Paths and names of other projects, and examples, by file.
OTHERS = {
  "configs.fewshot": {"configs/common_fewshot.py"},  # of big_vision
  "launch.checks": {"configs/a.py"},
  "setup": {"vit_jax.recipes", "vit_jax.recipes.ablations"},  # names of `configs` in an installed package
  "vit_jax.corpora.plan": {"shuffle.get_bucket_number"},  # of TFDS
  "vit_jax.runtime.clusters": {"salloc"},
  "vit_jax.storage.archives": {"unzip"},
  "extend/weight-layout.md": {"vit_jax/importers/layouts/lab.py", "lab.py"},
  "guides/distil.md": {"deit_small_distilled_patch16_224"},
  "guides/export-weights.md": {"SiglipModel", "Dinov2ForImageClassification"},
  "guides/restart-checks.md": {"JAX_RANDOM_SEED_OFFSET", "JAX_SOFTMAX_CUSTOM_JVP", "ctime"},
  "guides/resume.md": {"JAX_DISABLE_JIT"},
  "guides/speed.md": {"BadputType"},
  "models/index.md": {"NAME.TAG"},
  "models/sources.md": {"examples/README.md"},  # of Transformers
  "questions.md": {"CpuDevice"},
}


def find_stale(module):
  """Returns (line, reference) of the unknown references in the docstrings and other strings of a module."""
  docstrings = {id(node): node for node in references.list_docstrings(references.parse_module(module))}
  found = [(node.lineno, name) for node in docstrings.values() for name in find_unknown(node.value, module)]
  for node in ast.walk(references.parse_module(module)):
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
      found += [(node.lineno, name) for name in references.find_unknown_paths(node.value)]
  return found


@pytest.mark.parametrize("module", MODULES)
def test_names_of_code_in_docstrings_and_messages_exist(module):
  assert [each for each in find_stale(module) if each[1] not in OTHERS.get(module, ())] == []


@pytest.mark.parametrize("page", extraction.PAGES, ids=extraction.name_of)
def test_names_of_code_in_pages_exist(page):
  name = extraction.name_of(page)
  # The pages of models contain tables with names of weights.
  found = find_unknown(page.read_text(), single=not name.startswith("models/"))
  assert [each for each in found if each not in OTHERS.get(name, ())] == []


def test_every_exception_is_used():
  pages = {extraction.name_of(page): page.read_text() for page in extraction.PAGES}
  for place, names in OTHERS.items():
    found = [name for _, name in find_stale(place)] if place in MODULES else [*find_unknown(pages[place])]
    assert names <= {*found}, place


STALE = [
  ("vit_jax.data.bound_data", "Mixing of images, see `mixing.MIXINGS`."),
  ("vit_jax.models.contract", "Add one, see vit_jax.models.output.classified"),
  ("vit_jax.models.resnet", "a feature map of `stem_sides` and `stem_width`"),
  ("vit_jax.sweeps.study", "a list of changes, see vit_jax/config.py"),
  ("vit_jax.training.goodput", "value of `Clock.rate`"),
  ("vit_jax.training.goodput", "value of `GoodputTracker.speed`"),
  ("vit_jax.models.contract", "see `output.classified`"),
  ("vit_jax.tasks.task", "See `models.sharding`"),
  ("vit_jax.train", "in `data/mixing.py`"),
  ("vit_jax.train", "see `loader.load_batches`"),
  ("", "that it already has, as `_mlflow` does"),
]


@pytest.mark.parametrize("module,text", STALE)
def test_a_stale_name_is_found(module, text):
  assert [*find_unknown(text, module)]


CURRENT = [
  ("vit_jax.data.bound_data", "Mixing of images, see `mixup.MIXINGS` in `data/mixup.py` and `vit_jax/data/mixup.py`."),
  (
    "vit_jax.models.contract",
    "Add one, see vit_jax.models.output.classify, `output.classify` and vit_jax.models.Output",
  ),
  ("vit_jax.models.contract", "`nnx.Param`, `jax.value_and_grad` and `torch/serialization.py` are of other projects"),
  ("vit_jax.training.goodput", "value of `GoodputTracker.rate`, `config.optim.lr`, `metrics.jsonl`, `run.data`"),
  ("", "`vit_jax.load`, `configs/*.py`, `finetune.py:folder,ViT-B/16,384`, tests/test_house.py."),
]


@pytest.mark.parametrize("module,text", CURRENT)
def test_a_current_name_is_accepted(module, text):
  assert [*find_unknown(text, module)] == []


def read_table(page, head):
  """Returns the cells of the rows of a table of a page, by the words in its head."""
  text = (extraction.ROOT / "docs" / page).read_text()
  (rows,) = re.findall(rf"^{re.escape(head)}\n\|[-|]+\n((?:\|.*\n)+)", text, re.M)
  return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]


def test_the_layers_of_the_page_are_the_floors_of_the_house():
  rows = read_table("concepts/code.md", "| layer | contents |")
  assert [int(number) for number, _ in rows] == [*range(len(test_house.FLOORS))]
  names = [{name.removesuffix(".py").rstrip("/") for name in re.findall(r"`([\w/.]+)`", text)} for _, text in rows]
  assert names == [*test_house.FLOORS]


TABLES = {"model": "TABLE", "data": "DATA", "optim": "RULES", "task": "TASKS", "evals.*": "EVALS"}


def test_the_tables_of_choices_are_defined_in_the_files_that_the_page_names():
  rows = read_table("concepts/config.md", "| key | table |")
  assert [key.strip("`") for key, _ in rows] == [*TABLES]
  for key, text in rows:
    name, file = re.fullmatch(r"`(\w+)` in `([\w/.]+)`", text).groups()
    assert name == TABLES[key.strip("`")] and name in references.list_body(references.parse(file)), key

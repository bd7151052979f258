"""Pages of docs/models: each row against the model that it names, and the files and fixtures that they name."""

import dataclasses
import gc
import inspect
import math
import pathlib
import re
from typing import NamedTuple

import jax
import pytest

from tests import modules, parity
from vit_jax import importers, models, schema
from vit_jax.models import flops, table
from vit_jax.models.published.model import Registered

FOLDER = pathlib.Path(__file__).parents[2] / "docs/models"
PAGES = {page.name: page.read_text() for page in sorted(FOLDER.glob("*.md")) if page.stem not in ("index", "sources")}
MODELS = ["Model", "Pixels", "Parameters", "GFLOPs"]
WEIGHTS = ["Model", "Pixels", "Top-1, %", "Weights"]
UNMEASURED = ["Model", "Pixels", "Weights"]  # if no accuracy was found
FIXTURES = parity.FOLDER / "models"
SIZES = ("width", "depth", "heads", "hidden", "patch")  # arguments that do not change the layouts of a model
LAYOUTS: dict[tuple[str, bool, str], set[str]] = {}  # results of `find_layout_names`
FULL_NAMES = "google/"  # names that are repositories of Hugging Face; their tables have no weights


class Row(NamedTuple):
  """A row of a table of models.

  Attributes:
    model: the cell with the name and its arguments.
    size: height and width of the images.
    parameters: "trained" or "trained + averages".
    gflops: GFLOPs of one image.
    page: file name of the page.
  """

  model: str
  size: int
  parameters: str
  gflops: str
  page: str

  @property
  def name(self):
    return re.findall("`([^`]+)`", self.model)[0]

  @property
  def arguments(self):
    pairs = (word.split("=") for word in re.findall("`([^`=]+=[^`]+)`", self.model))
    return {key: int(value) if value.isdigit() else value for key, value in pairs}


class Weights(NamedTuple):
  """A row of a table of weights; several names share weights if a list does not tell them apart."""

  models: tuple[str, ...]
  size: int
  file: str
  accuracy: str
  page: str


def tables(text):
  """Yields (head, rows of cells) of every table."""
  for lines in re.findall(r"(?:^\|.*\n)+", text, re.M):
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.splitlines()]
    yield head, rows


def read():
  """Returns the rows of models and those of weights of all pages."""
  rows, weights = [], []
  for page, text in PAGES.items():
    for head, cells in tables(text):
      assert head in (MODELS, WEIGHTS, UNMEASURED), (page, head)
      for model, size, *others in cells:
        if head == MODELS:
          rows.append(Row(model, int(size), *others, page))
        else:
          accuracy, file = others if head == WEIGHTS else ("not found", *others)
          weights.append(Weights(tuple(model.split(", ")), int(size), file, accuracy, page))
  return rows, weights


def without_weights(text):
  """Returns the names that a page reports as models without published weights."""
  return set(re.findall("`([^`]+)`", "".join(re.findall(r"No published weights were found for\s[^.]*", text))))


def fixtures(text):
  """Returns {fixture: cells of its models} of a page."""
  chapter = text.partition("## Comparison with the original code")[2]
  items = re.findall(r"^- `([^`]+)`: (.*(?:\n  .*)*)", chapter, re.M)
  return {name: re.split(r",\s+", models) for name, models in items}


ROWS, FILES = read()


@pytest.fixture(autouse=True)
def uncollected():
  """No garbage collection while a model is traced: it would walk over everything that JAX holds, for half the time."""
  gc.disable()
  yield
  gc.enable()


def label(row):
  return "-".join([row.name, *map(str, row.arguments.values()), str(row.size)])


def counted(model):
  """Trained parameters, running averages, and FLOPs of one image, without a value or a compiled program."""
  shapes, size = model.shapes(), model.description.image_size
  trained, averages = (
    sum(math.prod(leaf.shape) for path, leaf in shapes.items() if (path in model.statistics) == moved)
    for moved in (False, True)
  )
  images = jax.ShapeDtypeStruct((1, size, size, 3), "float32")
  return (
    trained,
    averages,
    flops.count_flops(lambda params, images: model.outputs(params, images)[0].logits, shapes, images),
  )


def find_layout_names(description):
  """Returns the names of the layouts that support a model. Models that differ only in their sizes have the same."""
  settings = {key: value for key, value in description.settings().items() if key not in SIZES}
  key = description.published.family, bool(description.classes), str(sorted(settings.items()))
  if key not in LAYOUTS:
    LAYOUTS[key] = {layout.name for layout in importers.find_layouts(description)}
  return LAYOUTS[key]


@pytest.mark.sample(3)
@pytest.mark.heavy  # half a minute for all of them
@pytest.mark.parametrize("row", ROWS, ids=label)
def test_a_row_has_the_numbers_of_its_model_and_its_tables_fit(row):
  # A scanned stack is traced once for all blocks. Layouts are written block by block and do not depend on the depth.
  accepted = inspect.signature(models.lookup(row.name)).parameters
  scan = {"scan": True} if "scan" in accepted else {}
  shallow = {"depth": 2} if "depth" in accepted else {}
  settings = {name: value for name, value in row.arguments.items() if name != "classes"}
  choice = schema.Choice(row.name, schema.nest_choices(settings) | scan)
  classes = row.arguments.get("classes", models.find(row.name).classes)
  model = models.make_functional(models.Description(choice, row.size, classes))
  modules.check_tables(model)
  trained, averages, flops = counted(model)
  assert row.parameters == f"{trained:,}" + (f" + {averages:,}" if averages else "")
  decimals = len(row.gflops.partition(".")[2])
  assert row.gflops == f"{flops / 1e9:,.{decimals}f}"
  sentences = " ".join(re.findall(r"`convert --layout=`\swrites ([^.]*)\.", PAGES[row.page]))
  stored = dataclasses.replace(model.description, model=schema.Choice(row.name, choice.args | shallow))
  assert find_layout_names(stored) <= {*re.findall("`([^`]+)`", sentences)}


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "size"), [("ViT-Ti/16", 224), ("cct_2_3x2_32", 32), ("Mixer-S/32", 224)])
def test_scanned_and_unrolled_stacks_count_alike(name, size):
  one, other = (counted(modules.abstract(name, size, scan=scan)) for scan in (True, False))
  assert one == other


def test_every_model_has_a_row_or_is_said_to_have_no_weights():
  rows = {row.name for row in ROWS}
  left_out = set.union(*map(without_weights, PAGES.values()))
  # Sizes of ViT-<size>/<patch> without weights are left out in words.
  shipped = {name for name, row in table.TABLE.items() if not isinstance(row, Registered)}  # not those of other tests
  plain = {name for name in shipped if name.startswith("ViT-")}
  assert shipped - plain - rows <= left_out <= shipped


@pytest.mark.parametrize("page", PAGES)
def test_every_row_has_weights_and_every_file_has_a_row(page):
  rows = {(row.model, row.size) for row in ROWS if row.page == page and not row.name.startswith(FULL_NAMES)}
  files = {(model, weights.size) for weights in FILES if weights.page == page for model in weights.models}
  none = {f"`{name}`" for name in without_weights(PAGES[page])}
  assert files <= rows and rows - files == {(model, size) for model, size in rows if model in none}
  named = [(weights.models, weights.size, weights.file) for weights in FILES if weights.page == page]
  assert len(named) == len(set(named))


def test_every_accuracy_has_a_source():
  sources = set(re.findall(r"^## (.*)$", (FOLDER / "sources.md").read_text(), re.M))
  for weights in FILES:
    cited = re.findall(r"\[([^\]]+)\]", weights.accuracy)
    assert set(cited) <= sources, weights
    assert cited or weights.accuracy in ("not found", "the same weights"), weights
    assert weights.file != "none found" or not cited, weights
    for source in cited:
      assert f"\n[{source}]: sources.md#{source.lower()}\n" in PAGES[weights.page], weights


def test_fixtures_and_rows_name_each_other():
  there = {file.stem for file in FIXTURES.glob("*.json")}
  found = {page: fixtures(text) for page, text in PAGES.items()}
  assert {name for named in found.values() for name in named} == there
  for page, named in found.items():
    cells = {row.model for row in ROWS if row.page == page}
    assert named and {model for each in named.values() for model in each} <= cells, page


def test_the_index_links_every_page():
  (rows,) = [rows for head, rows in tables((FOLDER / "index.md").read_text()) if head[0] == "family"]
  assert {re.search(r"\]\(([^)]+)\)", family)[1] for family, *_ in rows} == PAGES.keys()

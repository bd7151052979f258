"""docs/models.md: every row of its tables against the model that it names, and the fixtures that it names."""

import gc
import inspect
import math
import pathlib
import re
from typing import NamedTuple

import jax
import pytest

from tests import modules, parity
from vit_jax import flops, models

TEXT = (pathlib.Path(__file__).parent.parent / "docs" / "models.md").read_text()
MODELS = ["Model", "Pixels", "Parameters", "GFLOPs", "Fixtures"]
WEIGHTS = ["Model", "Pixels", "Published as", "Accuracy, %"]
FIXTURES = parity.FOLDER / "models"


class Row(NamedTuple):
  """One row; several names share all but their parameters."""

  names: tuple[str, ...]
  arguments: dict
  size: int
  parameters: tuple[str, ...]  # one for each name, or one for all; "trained" or "trained + averages"
  gflops: str
  published: str
  accuracy: str
  fixtures: tuple[str, ...]
  exact: bool  # whether the fixtures are of this size, not only of its family


def tables():
  """(head, rows of cells) of every table."""
  table = None
  for line in [*TEXT.splitlines(), ""]:
    cells = [cell.strip() for cell in line.strip("|").split(" | ")]
    if not line.startswith("|"):
      if table:
        yield table
      table = None
    elif table is None:
      table = cells, []
    elif not set(line) <= set("|-:"):
      table[1].append(cells)


def rows():
  """Every row of a table of models, with the one of the table of weights below it that is of the same."""
  some = list(tables())
  for (head, these), (head_below, below) in zip(some[::2], some[1::2], strict=True):
    assert (head, head_below) == (MODELS, WEIGHTS), these[0]
    assert [row[:2] for row in these] == [row[:2] for row in below], these[0]
    for (model, *numbers), (_, _, *weights) in zip(these, below, strict=True):
      yield read(model, *numbers, *weights)


def read(model, size, parameters, gflops, fixtures, published, accuracy):
  words = re.findall("`([^`]+)`", model)
  pairs = (word.split("=") for word in words if "=" in word)
  return Row(
    tuple(word for word in words if "=" not in word),
    {key: int(value) if value.isdigit() else value for key, value in pairs},
    int(size),
    tuple(parameters.split(" / ")),
    gflops,
    published,
    accuracy,
    tuple(re.findall("`([^`]+)`", fixtures)),
    fixtures != "of the family",
  )


def families():
  """Fixtures that are named below each table of models."""
  return [re.findall("`([^`]+)`", text) for text in re.findall(r"Fixtures of the family: ([^.]*)\.", TEXT)]


ROWS = list(rows())


@pytest.fixture(autouse=True)
def uncollected():
  """No garbage collection while a model is traced: it would walk over everything that JAX holds, for half the time."""
  gc.disable()
  yield
  gc.enable()


def label(row):
  return "-".join([*row.names[:1], *map(str, row.arguments.values()), str(row.size)])


def counted(model):
  """Trained parameters, running averages, and FLOPs of one image, without a value or a compiled program."""
  shapes, size = model.shapes(), model.description.image_size
  trained, averages = (
    sum(math.prod(leaf.shape) for path, leaf in shapes.items() if (path in model.statistics) == moved)
    for moved in (False, True)
  )
  images = jax.ShapeDtypeStruct((1, size, size, 3), "float32")
  return trained, averages, flops.count(lambda params, images: model.outputs(params, images)[0].logits, shapes, images)


@pytest.mark.heavy  # half a minute for all of them
@pytest.mark.parametrize("row", ROWS, ids=label)
def test_a_row_has_the_numbers_of_its_model_and_its_tables_fit(row):
  printed = row.parameters * (len(row.names) if len(row.parameters) == 1 else 1)
  for name, parameters in zip(row.names, printed, strict=True):
    # A scanned stack is traced once for all blocks.
    scan = {"scan": True} if "scan" in inspect.signature(models.lookup(name)).parameters else {}
    model = modules.abstract(name, row.size, **row.arguments, **scan)
    modules.check_tables(model)
    trained, averages, flops = counted(model)
    assert parameters == f"{trained:,}" + (f" + {averages:,}" if averages else ""), name
    decimals = len(row.gflops.partition(".")[2])
    assert row.gflops == f"{flops / 1e9:,.{decimals}f}", name


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "size"), [("ViT-Ti/16", 224), ("cct_2_3x2_32", 32), ("Mixer-S/32", 224)])
def test_scanned_and_unrolled_stacks_count_alike(name, size):
  one, other = (counted(modules.abstract(name, size, scan=scan)) for scan in (True, False))
  assert one == other


def test_every_model_has_a_row_or_is_said_to_have_no_weights():
  rows = {name for row in ROWS for name in row.names}
  words = "".join(re.findall(r"No published weights were found for [^.]*", TEXT))
  left_out = set(re.findall("`([^`]+)`", words))
  assert not rows & left_out
  # Sizes of ViT-<size>/<patch> without weights are left out in words.
  plain = {name for name in models.names() if name.startswith("ViT-")}
  assert set(models.names()) - plain - rows == left_out


def test_every_row_names_fixtures_and_a_source_of_its_accuracy():
  sources = set(re.findall(r"\[([^\]]+)\]", TEXT.partition("## Sources")[2]))
  for row in ROWS:
    assert bool(row.fixtures) == row.exact, row
    named = re.findall(r"\[([^\]]+)\]", row.accuracy)
    assert set(named) <= sources, row
    assert named or row.accuracy == "not found", row
    assert row.published != "none found" or not named, row


def test_fixtures_and_rows_name_each_other():
  there = {file.stem for file in FIXTURES.glob("*.json")}
  assert {name for row in ROWS for name in row.fixtures} == there
  assert {name for names in families() for name in names} == there
  assert len(families()) == len(list(tables())) / 2 and all(families())

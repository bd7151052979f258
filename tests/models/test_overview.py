"""Tests of the short table of parameters: it is complete, merges layer numbers and fits a dozen lines."""

import math
import re

import jax
import jax.numpy as jnp
import pytest

from vit_jax import models
from vit_jax.models import overview, table
from vit_jax.schema import Choice


def shapes_of(name, **arguments):
  """Returns the parameter shapes of a published model with its published sizes."""
  row = models.find(name)
  return models.make_functional(
    models.Description(Choice(name, arguments), row.image_size, row.classes).bind()
  ).shapes()


@pytest.mark.parametrize("name", ["ViT-Ti/16", "R26+S/32", "swin_tiny_patch4_window7_224", "efficientnet_b0", "R50x1"])
def test_every_parameter_is_counted_once_in_at_most_a_dozen_lines(name):
  shapes = shapes_of(name)
  head, *rows = overview.format_table(shapes).splitlines()
  assert head.split() == ["parameters", "of", "tensors", "numbers", "share"]
  assert 5 <= len(rows) <= overview.LINES
  columns = list(zip(*(row.split() for row in rows), strict=True))
  assert sum(int(text.replace(",", "")) for text in columns[1]) == len(shapes)
  numbers = [int(text.replace(",", "")) for text in columns[2]]
  assert sum(numbers) == sum(math.prod(shape.shape) for shape in shapes.values())
  assert list(columns[3]) == [f"{number / sum(numbers):.1%}" for number in numbers]


@pytest.mark.full
def test_tables_of_all_published_models_are_short():
  families = {(row.function, row.row): name for name, row in table.TABLE.items()}
  named = [name for name in families.values() if not re.search("-[GHeg]|large|base|_b[2-7]|_l2|x[34]|152", name)]
  assert max(len(overview.format_table(shapes_of(name)).splitlines()) for name in named) <= overview.LINES + 1


def test_row_names_contain_ranges_of_layer_numbers():
  shapes = {path: jax.ShapeDtypeStruct((2, 3), jnp.float32) for path in ("a/0/x/k", "a/2/x/k", "b/7/k", "c", "d/0/1/k")}
  names = [line.split()[0] for line in overview.format_table(shapes).splitlines()[1:]]
  assert names == ["a/0-2/x", "b/7", "c", "d/0/1"]
  assert overview.format_table({}).splitlines() == ["  parameters of  tensors  numbers  share"]


def test_scanned_stack_is_one_row():
  rows = overview.format_table(shapes_of("ViT-Ti/16", scan=True)).splitlines()
  assert any(row.split()[:2] == ["blocks/attention", "8"] for row in rows)

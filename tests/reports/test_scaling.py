"""Tests of scaling: sizes by a second formulation, and charts of quantities that differ."""

import dataclasses

import pytest

from tests.reports import workdirs
from vit_jax import models
from vit_jax.reports import recorded, scaling
from vit_jax.schema import Choice


@pytest.fixture(scope="module")
def one(tmp_path_factory):
  return recorded.read_run(workdirs.run(tmp_path_factory.mktemp("runs") / "a"), "a")


def vit(width):
  args = {"width": width, "depth": 2, "heads": 2, "hidden": 4 * width}
  return models.Description(Choice("ViT-Ti/16", args), 32, 10).bind()


def macs(width, tokens=5, patches=4, depth=2):
  """Counts multiply-adds of the model above by hand.

  The terms are patches, projections, products of attention and MLP of each block, and the head.
  """
  block = 4 * tokens * width**2 + 2 * tokens**2 * width + 8 * tokens * width**2
  return patches * 16 * 16 * 3 * width + depth * block + width * 10


def test_parameters_macs_and_compute_match_a_count_by_hand(one):
  size = scaling.measure_size(dataclasses.replace(one, description=vit(32)))
  assert size.forward == 2 * macs(32) / 1e9
  assert size.flops == 6 * macs(32) * 12 * 16
  block = 4 * 32 * 32 + 4 * 32 + 8 * 32 * 32 + 5 * 32 + 4 * 32
  assert size.parameters == 768 * 32 + 32 + 5 * 32 + 32 + 2 * block + 2 * 32 + 330


def test_only_quantities_that_differ_are_drawn(one):
  small, large = (dataclasses.replace(one, name=str(w), description=vit(w), records=1437) for w in (32, 64))
  charts, table = scaling.make_chapter([small, large]).parts
  assert len(charts.svgs) == 3, (
    "training FLOPs, parameters, FLOPs of a forward pass; core-hours and images are the same"
  )
  assert table.rows[0][:2] == ["32", "90.00 %"] and table.rows[1][4] == f"{scaling.measure_size(large).parameters:,}"
  assert not scaling.make_chapter([small]).parts


def test_few_shot_curves_are_sorted_and_without_deviations(one):
  figures = {"few/logistic_10shot": 0.8, "few/logistic_10shot_std": 0.1, "few/logistic_5shot": 0.7, "steps": 12}
  run = dataclasses.replace(one, result=figures)
  assert scaling.read_few_shot(run) == {"few/logistic": [(5, 0.7), (10, 0.8)]}
  assert [part.title for part in scaling.make_chapter([run]).parts] == ["Few-shot"]


def test_every_probe_is_drawn(one):
  figures = {f"probe{i}/logistic_{shots}shot": 0.5 for i in range(6) for shots in (1, 5)}
  [charts] = scaling.make_chapter([dataclasses.replace(one, result=figures | {"steps": 12})]).parts
  assert all(f"probe{i}/logistic" in charts.svgs[0] for i in range(6))

"""The papers' ablations: what is compared is comparable, and every setting has three seeds."""

import collections

import pytest

from tests import recipes
from vit_jax import build, config, flags
from vit_jax.models import Description
from vit_jax.sweeps import study

NAMES = [name for name in recipes.NAMES if name.startswith("ablations/")]


def trials(name, tmp_path):
  path = recipes.path(name)
  return study.Study(path, {}, study.sweep_of(path), tmp_path).trials()


@pytest.mark.parametrize("name", NAMES)
def test_an_ablation_chooses_nothing_and_has_three_seeds_of_every_setting(name, tmp_path):
  assert study.sweep_of(recipes.path(name)).decide is None
  settings = collections.Counter()
  for trial in trials(name, tmp_path):
    settings[tuple(sorted((key, value) for key, value in trial.changes.items() if key != "seed"))] += 1
  assert len(settings) >= 4 and set(settings.values()) == {3}


def test_shapes_cost_the_same_within_five_per_cent(tmp_path):
  costs = {}
  for trial in trials("ablations/shape", tmp_path):
    run = build.complete(config.resolve(flags.load(recipes.path("ablations/shape"), trial.flags)))
    costs[run.model.args["depth"]] = build.forward_flops(Description(run.model, run.data.args["image_size"], 10))
  assert sorted(costs) == [1, 2, 4, 8, 16]
  middle = costs[4]
  assert all(abs(cost / middle - 1) < 0.05 for cost in costs.values()), costs


def test_all_sizes_of_data_take_equally_many_steps():
  assert recipes.load("ablations/data_size").total == "450"

"""Tests of suggestions for a config key that exists in another group."""

import pytest

from vit_jax import config
from vit_jax.schema import misplaced

TREE = {
  "model": {"name": "ViT-S/16"},
  "optim": {"lr": 0.1, "schedule": {"name": "cosine"}},
  "evals": {"pets": {"data": {"name": "folder", "image_size": 224}, "shots": "all"}},
  "seed": 0,
}


@pytest.mark.parametrize("editable", [False, True])
@pytest.mark.parametrize(
  ("key", "there"),
  [
    ("image_size", ["evals.pets.data.image_size"]),
    ("data.image_size", ["evals.pets.data.image_size"]),
    ("data.path", ["evals.pets.data.path"]),  # a new key of an existing group
    ("seed.path", []),  # a value, which has no keys
    ("pets.data.test_crop.name", ["evals.pets.data.test_crop.name"]),
    ("optim.shots", ["evals.pets.shots"]),
    ("lr", ["optim.lr"]),
    ("optim.lr", []),  # exists
    ("optim.name", []),  # a key of every choice
    ("lr.image_sise", []),
    ("optim.seed", ["seed"]),
    ("mehs.optim", []),  # a group, which has no value
    ("", []),
  ],
)
def test_key_is_searched_by_its_last_words(key, there, editable):
  assert misplaced.find_other_places(config.recipe(**TREE) if editable else TREE, key) == there


def test_at_most_three_places_are_suggested_as_flags():
  many = {"evals": {f"e{i}": {"data": {"path": "x"}} for i in range(9)}}
  output = misplaced.suggest_places(many, "data.path")
  assert output == " Did you mean " + " or ".join(f"--config.evals.e{i}.data.path" for i in range(3)) + "?"
  assert misplaced.suggest_places(many, "nothing") == ""


def test_required_values_and_cyclic_configs_are_supported():
  tree = config.recipe(total=config.required)
  tree.again = tree
  assert misplaced.find_other_places(tree, "x.total")[0] == "total"

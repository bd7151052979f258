"""Where a key stands that was looked for in another place."""

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
    ("data.path", ["evals.pets.data.path"]),  # a new key of a group that there is
    ("seed.path", []),  # which no value takes
    ("pets.data.test_crop.name", ["evals.pets.data.test_crop.name"]),
    ("optim.shots", ["evals.pets.shots"]),
    ("lr", ["optim.lr"]),
    ("optim.lr", []),  # is there
    ("optim.name", []),  # a word that every choice has
    ("lr.image_sise", []),
    ("optim.seed", ["seed"]),
    ("mehs.optim", []),  # a group, which takes no value
    ("", []),
  ],
)
def test_a_key_is_looked_for_by_its_last_words(key, there, editable):
  assert misplaced.find_other_places(config.recipe(**TREE) if editable else TREE, key) == there


def test_few_of_many_places_are_named_as_flags():
  many = {"evals": {f"e{i}": {"data": {"path": "x"}} for i in range(9)}}
  said = misplaced.suggest_places(many, "data.path")
  assert said == " Did you mean " + " or ".join(f"--config.evals.e{i}.data.path" for i in range(3)) + "?"
  assert misplaced.suggest_places(many, "nothing") == ""


def test_values_that_are_not_given_yet_and_a_config_inside_itself_are_no_obstacle():
  tree = config.recipe(total=config.required)
  tree.again = tree
  assert misplaced.find_other_places(tree, "x.total")[0] == "total"

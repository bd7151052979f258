"""Tests of names, patterns, counts and differences of nested values."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import trees


class Layer(nnx.Module):
  def __init__(self, rngs):
    self.value = nnx.Linear(2, 3, rngs=rngs)  # like the value projection of attention
    self.cls = nnx.Param(jnp.zeros(3))


class Model(nnx.Module):
  def __init__(self):
    rngs = nnx.Rngs(0)
    self.blocks = nnx.List([Layer(rngs) for _ in range(11)])
    self.head = nnx.Linear(3, 2, rngs=rngs)


class Moments(NamedTuple):
  count: int
  mu: dict


def state():
  return nnx.split(Model())[1]


@pytest.mark.heavy
def test_module_state_and_its_plain_dict_have_the_same_names():
  names = list(trees.flatten(state()))
  assert names == list(trees.flatten(nnx.to_pure_dict(state())))
  assert names[:4] == ["blocks/0/cls", "blocks/0/value/bias", "blocks/0/value/kernel", "blocks/1/cls"]
  assert names[-2:] == ["head/bias", "head/kernel"]
  assert not any("." in name or "[" in name for name in names)


@pytest.mark.heavy
def test_shapes_have_the_same_names_as_arrays():
  assert list(trees.flatten(jax.eval_shape(state))) == list(trees.flatten(state()))


@pytest.mark.heavy
def test_numbers_in_names_are_sorted_numerically():
  names = list(trees.flatten(state()))
  assert names.index("blocks/2/cls") < names.index("blocks/10/cls")
  flat = {"blocks/10/cls": 0, "blocks/2/cls": 1, "cls": 2}
  assert list(trees.flatten(flat).items()) == [("blocks/2/cls", 1), ("blocks/10/cls", 0), ("cls", 2)]


def test_lists_tuples_and_fields_are_part_of_a_name():
  tree = [{"a": 1}, (Moments(2, {"b": 3}), None)]
  assert trees.flatten(tree) == {"0/a": 1, "1/0/count": 2, "1/0/mu/b": 3}


@pytest.mark.heavy
def test_unflatten_inverts_flatten_in_any_order():
  tree = state()
  again = trees.unflatten(tree, dict(reversed(trees.flatten(tree).items())))
  assert jax.tree.structure(again) == jax.tree.structure(tree)
  jax.tree.map(np.testing.assert_array_equal, again, tree)


def test_unflatten_with_other_names_is_an_error():
  with pytest.raises(ValueError, match=r"1 missing \['b'\], 1 extra \['c'\]"):
    trees.unflatten({"a": 1, "b": 2}, {"a": 1, "c": 2})


def test_map_named_keeps_the_structure():
  mapped = trees.map_named(lambda name, x, y: (name, x + y), {"a": [1, 2]}, {"a": [10, 20]})
  assert mapped == {"a": [("a/0", 11), ("a/1", 22)]}


@pytest.mark.parametrize(
  ("patterns", "path", "index"),
  [
    (["head/.*", ".*kernel"], "head/kernel", 0),
    (["head/.*", ".*kernel"], "neck/kernel", 1),
    (["head"], "head/kernel", None),  # the pattern must match the whole path
    (["kernel"], "head/kernel", None),
    ([], "head/kernel", None),
  ],
)
def test_first_pattern_that_matches_the_whole_path_is_found(patterns, path, index):
  assert trees.find_first_match(patterns, path) == index


@pytest.mark.heavy
def test_find_nearest_corrects_misspelled_names():
  names = trees.flatten(state())
  assert trees.find_nearest("haed/kernal", names)[0] == "head/kernel"
  assert trees.find_nearest(r"blocks/.*/valeu/kernel", names, 3) == [f"blocks/{i}/value/kernel" for i in range(3)]


@pytest.mark.heavy
def test_values_are_counted_for_arrays_and_shapes():
  tree = {"a": jnp.zeros((2, 3)), "b": jax.ShapeDtypeStruct((4,), jnp.bfloat16), "c": jnp.zeros(())}
  assert trees.count_values(tree) == 6 + 4 + 1


def test_differences_have_one_line_for_each_value():
  old = {"optim": {"lr": 0.001, "name": "adamw", "clip": 1.0}, "betas": [0.9, 0.99], "seed": 0}
  new = {"optim": {"lr": 0.01, "name": "adamw", "ema": 0.99}, "betas": [0.9, 0.95], "seed": 0}
  assert trees.list_differences(old, new) == [
    "optim.lr: 0.001 -> 0.01",
    "optim.clip: 1.0 -> (absent)",
    "optim.ema: (absent) -> 0.99",
    "betas: [0.9, 0.99] -> [0.9, 0.95]",
  ]
  assert trees.list_differences(old, old) == []


def test_true_differs_from_one_and_a_group_may_replace_a_value():
  assert trees.list_differences({"a": 1}, {"a": True}) == ["a: 1 -> True"]
  assert trees.list_differences({"a": 1, "b": "x"}, {"a": 1.0, "b": None}) == ["b: 'x' -> None"]
  assert trees.list_differences({"a": None}, {"a": {"b": 1}}) == ["a: None -> {'b': 1}"]

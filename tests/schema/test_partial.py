"""Tests of evaluations without a name, which take missing keys from the default."""

import ml_collections
import pytest

from vit_jax.schema import partial

ACCURACY = {"name": "accuracy"}


@pytest.mark.parametrize("kind", [dict, ml_collections.ConfigDict])
@pytest.mark.parametrize(
  ("evals", "expected"),
  [
    ({"val": {"every": 2}}, {"val": ACCURACY | {"split": "val", "every": 2}}),
    ({"val": {"split": "x"}}, {"val": ACCURACY | {"split": "x"}}),
    ({"test": {"every": 2}}, {"test": ACCURACY | {"every": 2}}),
    (
      {"it": {"name": "masked", "every": 5, "batch": 8}, "val": {"every": 2}},
      {
        "it": {"name": "masked", "every": 5, "batch": 8},
        "val": {"name": "masked", "split": "val", "every": 2, "batch": 8},
      },
    ),
    ({"it": {"name": "accuracy", "split": "all"}, "val": {"every": 2}}, None),
    ({"val": {"data": {"name": "digits"}}}, {"val": {"data": {"name": "digits"}}}),
    ({"other": {"every": 2}}, {"other": {"every": 2}}),
    ({"val": "accuracy"}, {"val": "accuracy"}),
  ],
)
def test_partial_evaluation_is_filled_from_the_default(kind, evals, expected):
  found = partial.add_names(kind({"evals": evals, "batch": 4}))
  plain = ml_collections.ConfigDict({"evals": dict(found["evals"])}).to_dict()["evals"]
  expected = expected or evals | {"val": ACCURACY | {"split": "val", "every": 2}}
  assert plain == expected and found["batch"] == 4


@pytest.mark.parametrize("config", [3, {}, {"evals": None}, {"evals": 3}])
def test_other_configs_are_unchanged(config):
  assert partial.add_names(config) is config

"""Changes of a sweep: products, zips, samples counted by hand; as flags they make the config that they say."""

import numpy as np
import pytest

from tests import runs
from vit_jax import build, config, flags, schema
from vit_jax.schema import ConfigError
from vit_jax.sweeps import trials


def test_a_product_has_every_combination_once():
  found = config.product({"optim.lr": (0.1, 0.2), "seed": range(3)})
  assert [(row["optim.lr"], row["seed"]) for row in found] == [
    (0.1, 0),
    (0.1, 1),
    (0.1, 2),
    (0.2, 0),
    (0.2, 1),
    (0.2, 2),
  ]
  assert config.product({}) == [{}]


def test_a_zip_goes_side_by_side_and_refuses_what_has_no_partner():
  assert config.zipped({"a": (1, 2), "b": ["x", "y"]}) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
  with pytest.raises(ConfigError, match=r"equally many values; they have \{'a': 2, 'b': 3\}"):
    config.zipped({"a": (1, 2), "b": (1, 2, 3)})


def test_a_sample_follows_from_its_seed_and_fewer_are_among_more():
  space = {"lr": config.log_uniform(1e-4, 1e-1), "p": config.uniform(0.2, 0.4), "model": ("a", "b")}
  found = config.sample(400, space, seed=3)
  assert found == config.sample(400, space, seed=3)
  assert found[:7] == config.sample(7, space, seed=3)
  assert found[:7] != config.sample(7, space, seed=4)
  rates = np.array([row["lr"] for row in found])
  assert 1e-4 <= rates.min() <= rates.max() <= 1e-1
  # Of three decades each has a third.
  assert np.abs(np.histogram(np.log10(rates), 3, (-4, -1))[0] / 400 - 1 / 3).max() < 0.08
  shares = np.array([row["p"] for row in found])
  assert 0.2 <= shares.min() <= shares.max() <= 0.4
  assert abs(shares.mean() - 0.3) < 0.01
  assert {row["model"] for row in found} == {"a", "b"}


@pytest.mark.parametrize(
  ("make", "says"),
  [
    (lambda: config.log_uniform(0, 1), "0 to 1 is no range to draw from by logarithm"),
    (lambda: config.uniform(2, 1), "2 to 1 is no range"),
    (lambda: config.sample(1, {"a": "abc"}), "a is 'abc'; allowed: a list to choose from"),
    (lambda: config.sample(1, {"a": ()}), r"a is \(\)"),
    (lambda: config.Sweep([]), "there are no trials"),
    (lambda: config.Sweep({"seed": 1}), "trials is {'seed': 1}; allowed: a list of changes"),
    (lambda: config.Sweep([1]), r"trials is \[1\]"),
    (lambda: config.Sweep([{1: 2}]), "trials has the key 1; allowed: keys of the config"),
    (lambda: config.Sweep([{}], decide=3), "decide is 3; allowed: a figure"),
    (lambda: config.product({"lr": 0.1}), "lr is 0.1; allowed: a list of values"),
    (lambda: config.sample(2, {"lr": 0.1}), "lr is 0.1; allowed: a list to choose from"),
    (lambda: config.Sweep([{}], decide=None, final=[{}]), "nothing decides which that is"),
    (lambda: trials.of(7, "x.py"), r"sweep\(\) of x.py returned 7; allowed: a Sweep"),
  ],
)
def test_a_mistake_says_what_is_allowed(make, says):
  with pytest.raises(ConfigError, match=says):
    make()


def test_a_list_of_changes_is_compared_and_nothing_chosen():
  assert trials.of([{"seed": 1}], "x.py").decide is None


@pytest.mark.parametrize(
  ("changes", "expected"),
  [
    ({"optim.lr": 0.5, "seed": 7}, {"optim.lr": 0.5, "seed": 7}),
    ({"optim.schedule": {"name": "linear"}}, {"optim.schedule.name": "linear", "optim.schedule.end": 0.0}),
    ({"data.warp": {"name": "none"}}, {"data.warp.name": "none"}),
    ({"optim.clip": None, "data.flip": True}, {"optim.clip": None, "data.flip": True}),
    ({"data.mean": [0.1, 0.2, 0.3]}, {"data.mean": (0.1, 0.2, 0.3)}),
    ({"total": "7ep"}, {"total": "7ep"}),
    ({"model": {"name": "cct_4_3x2_32", "depth": 3}}, {"model.name": "cct_4_3x2_32", "model.depth": 3}),
  ],
)
def test_changes_are_flags_that_make_that_config(changes, expected):
  edited = flags.load(str(runs.ROOT / "configs/digits.py"))
  for key, text in trials.flags(changes, schema.plain(edited)).items():
    flags.edit(edited, key, text)
  run = schema.plain(build.complete(config.resolve(edited)))
  for key, value in expected.items():
    found = run
    for name in key.split("."):
      found = found[name]
    assert schema.plain(value) == found, key

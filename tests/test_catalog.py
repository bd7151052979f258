"""The catalog of datasets: rows, and the check of a data choice before any file is opened."""

import inspect

import pytest

from vit_jax import config
from vit_jax.data import augment, catalog, crops

KNOWN = [name for name, row in catalog.CATALOG.items() if row.splits]


def choice(name, **args):
  return config.Choice(name, args)


@pytest.mark.parametrize("name", KNOWN)
def test_a_row_states_everything_that_a_plan_needs(name):
  row = catalog.CATALOG[name]
  assert row.reader == "tfds"
  assert row.builder.startswith(f"{name}:")
  assert all(count > 0 for count in row.splits.values())
  assert row.classes > 1


@pytest.mark.parametrize("name", [n for n in KNOWN if "test" in catalog.CATALOG[n].splits])
def test_binding_fills_in_every_default(name):
  bound = catalog.bind(choice(name))
  assert bound.args["image_size"] == 224
  assert bound.args["crop"] == config.Choice("inception", {"area": (0.05, 1.0), "ratio": (3 / 4, 4 / 3)})
  assert bound.args["warp"] == config.Choice("none", {})
  assert catalog.bind(bound) == bound


def test_imagenet_has_no_test_split_and_says_so():
  with pytest.raises(config.ConfigError, match=r"config.data.test: no split 'test'.*train, validation"):
    catalog.bind(choice("imagenet2012"))
  catalog.bind(choice("imagenet2012", train="train[:99%]", test="validation"))


@pytest.mark.parametrize(
  ("name", "args", "message"),
  [
    ("cifar11", {}, "Did you mean 'cifar10'"),
    (
      "digits",
      {"crop": {"name": "incepton"}},
      "config.data.crop.name: unknown name 'incepton'. Did you mean 'inception'",
    ),
    ("digits", {"test_crop": {"name": "inception"}}, "config.data.test_crop.name: unknown name 'inception'"),
    ("digits", {"crop": {"name": "inception", "areas": (0.1, 1)}}, "config.data.crop.areas: unknown key"),
    ("digits", {"crop": {"name": "inception", "area": (0.0, 1)}}, "out of range"),
    ("digits", {"crop": {"name": "inception", "area": (0.9, 0.1)}}, "high to low"),
    ("digits", {"test_crop": {"name": "centre", "resize": 100}}, "100 is smaller than image_size 224"),
    ("digits", {"warp": {"name": "affine", "scale": (1.2, 0.8)}}, "high to low"),
    ("digits", {"mixing": {"name": "mixup", "alpha": 0}}, "config.data.mixing.alpha: 0.0 is out of range"),
    ("digits", {"image_size": 0}, "out of range"),
    ("digits", {"std": (0.5, 0.0, 0.5)}, "out of range"),
    ("digits", {"train": "tran"}, "config.data.train: no split 'tran'. Did you mean 'train'"),
    ("digits", {"train": "train[:99"}, "is not a split"),
    ("digits", {"test": "test[:2000]"}, "which has 360 records"),
    ("digits", {"builder": "mnist"}, "use name='tfds'"),
    ("digits", {"on_error": "ignore"}, "config.data.on_error: 'ignore'"),
    ("folder", {}, "config.data.path: missing"),
    ("tfds", {}, "config.data.builder: missing"),
  ],
)
def test_a_mistake_is_one_clear_error(name, args, message):
  with pytest.raises(config.ConfigError) as caught:
    catalog.bind(choice(name, **args))
  assert message in str(caught.value)


@pytest.mark.parametrize("table", [crops.CROPS, crops.TEST_CROPS, augment.WARPS, augment.MIXINGS])
def test_every_argument_of_every_table_has_a_default(table):
  for name, function in table.items():
    config.bind(choice(name), (function,), "config")
    assert all(
      p.default is not p.empty for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    )

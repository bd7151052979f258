"""The catalog of datasets: rows, and the check of a data choice before any file is opened."""

import inspect

import pytest

from vit_jax import schema
from vit_jax.data import catalog, crops, erasing, mixing, randaugment, warping

KNOWN = [name for name, row in catalog.CATALOG.items() if row.splits]
OWN = ("imagenet21k", "jft300m", "jft3b")  # TFDS makes none of these


def choice(name, **args):
  return schema.Choice(name, args)


@pytest.mark.parametrize("name", KNOWN)
def test_a_row_states_everything_that_a_plan_needs(name):
  row = catalog.CATALOG[name]
  assert row.reader == "tfds"
  assert row.builder is None if name in OWN else row.builder.startswith(f"{name}:")
  assert all(count > 0 for count in row.splits.values())
  assert row.classes > 1
  assert 1 <= row.labels < row.classes
  assert 1_000 < row.image_bytes < 200_000


@pytest.mark.parametrize(
  ("name", "images", "classes", "train", "test"),
  [
    ("digits", 1797, 10, 1437, 360),
    ("cifar10", 60_000, 10, 50_000, 10_000),
    ("cifar100", 60_000, 100, 50_000, 10_000),
    ("imagenet2012", 1_331_167, 1000, 1_281_167, 50_000),
    ("oxford_iiit_pet", 7349, 37, 3680, 3669),
    ("oxford_flowers102", 8189, 102, 1020, 6149),
    ("imagenet21k", 14.2e6, 21_843, 14.2e6 - 51_200, 25_600),
    ("jft300m", 303e6, 18_291, 303e6 - 50_000, 50_000),
    ("jft3b", 3e9, 29_593, 3e9 - 50_000, 50_000),
  ],
)
def test_what_is_published_of_a_set_is_known_without_its_data(tmp_path, name, images, classes, train, test):
  data = catalog.bind(choice(name, path=str(tmp_path)))
  known = {split: catalog.known_split(data, split) for split in ("all", "train", "test")}
  assert [len(source) for source in known.values()] == [images, train, test]
  assert all(len(source.classes) == classes for source in known.values())
  assert known["train"].labels == (8 if name.startswith("jft") else 1)
  # Both say the same when images are wanted after all.
  for attempt in (lambda: known["train"].read(0), lambda: catalog.open_split(data, "train")):
    with pytest.raises(schema.ConfigError) as caught:
      attempt()
    own = f"give your own copy of {name}, which has no public builder: --config.data.path=DIR"
    assert (own if name in OWN else f"python -m vit_jax.prepare {name} --data_dir={tmp_path}") in str(caught.value)


@pytest.mark.parametrize("args", [{"name": "tfds", "builder": "mnist:3.0.1"}, {"name": "folder", "path": "/nowhere"}])
def test_of_data_that_no_row_describes_nothing_is_known(args, tmp_path):
  data = catalog.bind(choice(**{"path": str(tmp_path)} | args))
  with pytest.raises(schema.ConfigError, match=r"config\.data"):
    catalog.known_split(data, "train")


@pytest.mark.parametrize("name", KNOWN)
def test_binding_fills_in_every_default(name):
  bound = catalog.bind(choice(name))
  assert bound.args["image_size"] == 224
  assert bound.args["crop"] == schema.Choice("inception", {"area": (0.05, 1.0), "ratio": (3 / 4, 4 / 3)})
  assert bound.args["warp"] == schema.Choice("none", {})
  assert catalog.bind(bound) == bound


def test_imagenet_is_tested_on_its_validation_split():
  assert catalog.bind(choice("imagenet2012")).args["test"] == "validation"
  with pytest.raises(schema.ConfigError, match=r"config.data.test: no split 'test'.*train, validation"):
    catalog.bind(choice("imagenet2012", test="test"))
  catalog.bind(choice("imagenet2012", train="train[:99%]", test="train[99%:]"))


def test_val_is_what_the_config_says_or_a_split_of_that_name(tmp_path):
  def known(name, **args):
    return catalog.known_split(catalog.bind(choice(name, path=str(tmp_path), **args)), "val")

  halves = {"train": "train[:98%]", "val": "train[98%:]"}
  assert catalog.bind(choice("cifar10")).args["val"] is None
  assert (known("cifar10", **halves).split, len(known("cifar10", **halves))) == ("train[98%:]", 1000)
  assert len(known("oxford_flowers102", val="validation")) == 1020
  with pytest.raises(
    schema.ConfigError, match=r"no split 'val'.*Allowed: train, test\. Set config\.data\.val, as 'train"
  ):
    known("cifar10")
  with pytest.raises(schema.ConfigError, match=r"config\.data\.val: no split 'val'.*Allowed: train, test\.$"):
    known("cifar10", val="val")


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
    ("digits", {"mixing": {"name": "mixup", "mode": "pairs"}}, "config.data.mixing.mode: 'pairs' is not a choice"),
    ("digits", {"mixing": {"name": "mixup", "mode": "pair", "partner": "rolled"}}, "which makes no pairs"),
    ("digits", {"mixing": {"name": "cutmix", "off_after": "0"}}, "0 would never mix"),
    ("digits", {"erasing": {"name": "randm"}}, "config.data.erasing.name: unknown name 'randm'. Did you mean 'random'"),
    ("digits", {"erasing": {"name": "random", "area": (0.3, 0.1)}}, "erasing.area: (0.3, 0.1) goes from high to low"),
    ("digits", {"policy": {"name": "randaug"}}, "config.data.policy.name: unknown name 'randaug'"),
    ("digits", {"image_size": 0}, "out of range"),
    ("digits", {"std": (0.5, 0.0, 0.5)}, "out of range"),
    ("digits", {"train": "tran"}, "config.data.train: no split 'tran'. Did you mean 'train'"),
    ("digits", {"val": "tran[90%:]"}, "config.data.val: no split 'tran'. Did you mean 'train'"),
    ("digits", {"train": "train[:99"}, "is not a split"),
    ("digits", {"test": "test[:2000]"}, "which has 360 records"),
    ("digits", {"builder": "mnist"}, "use name='tfds'"),
    ("digits", {"on_error": "ignore"}, "config.data.on_error: 'ignore'"),
    ("folder", {}, "config.data.path: missing"),
    ("tfds", {}, "config.data.builder: missing"),
  ],
)
def test_a_mistake_is_one_clear_error(name, args, message):
  with pytest.raises(schema.ConfigError) as caught:
    catalog.bind(choice(name, **args))
  assert message in str(caught.value)


@pytest.mark.parametrize(
  "table",
  [
    *(crops.CROPS, crops.TEST_CROPS, randaugment.POLICIES),
    *(warping.WARPS, mixing.MIXINGS, erasing.ERASINGS),
  ],
)
def test_every_argument_of_every_table_has_a_default(table):
  for name, function in table.items():
    schema.bind(choice(name), (function,), "config")
    assert all(
      p.default is not p.empty for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    )

"""Tests of the catalog of datasets: rows, the keys of each dataset, and mistakes that are reported before training."""

import inspect
import re

import pytest

from vit_jax import schema
from vit_jax.data import catalog, crops, erasing, mixup, policies, sources, warping
from vit_jax.data.readers import folder, manifest, parquet, segmentation, tars, tfds
from vit_jax.data.views import Fields
from vit_jax.schema.errors import AbsentError

OF_OTHERS = ("mixture", "pseudo_labelled")  # built from other datasets
KNOWN = [name for name, row in catalog.CATALOG.items() if row.splits]
OWN = ("imagenet21k", "imagenet21k_p", "jft300m", "jft3b")  # TFDS prepares none of these


def bound(name, table=catalog.DATA, **args):
  """Returns the data choice of a run, with every argument checked and filled in."""
  with schema.enter_key("config.data"):
    return schema.bind(schema.Choice(name, args), schema.lookup(table, name), table)


def known(choice, split):
  with schema.enter_key("config.data"):
    return catalog.open_known_split(choice, split)


def used(choice):
  """Does everything that a run does with its data before it trains. No image is read."""
  source = known(choice, "train")
  with schema.enter_key("config.data"):
    choice.train_examples(source, 0, Fields(), 1)
    choice.eval_examples(source)
    choice.augmentation("float32", 0, None, lambda duration: 1)


@pytest.mark.parametrize("name", KNOWN)
def test_row_contains_everything_that_a_plan_needs(name):
  row = catalog.CATALOG[name]
  assert row.reader is (tfds.open_own_copy if name in OWN else tfds.open_catalogued)
  assert row.builder is None if name in OWN else re.fullmatch(r"\w+(/[\w.-]+)?:\d+\.\d+\.\d+", row.builder)
  assert all(count > 0 for count in row.splits.values())
  assert row.classes > 1
  assert 1 <= row.labels < row.classes
  assert 200 < row.image_bytes < 1_000_000


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
def test_published_figures_are_known_without_the_data(tmp_path, name, images, classes, train, test):
  data = bound(name, path=str(tmp_path))
  splits = {split: known(data, split) for split in ("all", "train", "test")}
  assert [len(source) for source in splits.values()] == [images, train, test]
  assert all(len(source.classes) == classes for source in splits.values())
  assert splits["train"].labels == (8 if name.startswith("jft") else 1)
  # Both calls raise the same error when images are needed.
  for attempt in (lambda: splits["train"].read(0), lambda: catalog.open_split(data, "train")):
    with pytest.raises(AbsentError) as caught, schema.enter_key("config.data"):
      attempt()
    assert caught.value.place == "config.data"
    own = f"{name} has no public builder. Give your own copy: --config.data.path=DIR"
    assert (own if name in OWN else f"python -m vit_jax.prepare {name} --data_dir={tmp_path}") in str(caught.value)


@pytest.mark.parametrize("args", [{"name": "tfds", "builder": "mnist:3.0.1"}, {"name": "folder", "path": "/nowhere"}])
def test_data_without_a_catalog_row_have_no_known_split(args, tmp_path):
  data = bound(**{"path": str(tmp_path)} | args)
  with pytest.raises(schema.ConfigError, match=r"config\.data"):
    known(data, "train")


@pytest.mark.parametrize("name", KNOWN)
def test_binding_fills_in_the_defaults_of_nested_choices(name):
  data = bound(name)
  assert data.args["image_size"] == 224
  row = catalog.CATALOG[name]
  inception = {"area": (0.05, 1.0), "ratio": (3 / 4, 4 / 3), "interpolation": "bilinear_aliased"}
  crops_of = {True: ("inception", inception), False: ("resize", {"interpolation": "area"})}
  assert data.args["crop"] == schema.Choice(*crops_of[row.crop])
  assert data.args["flip"] == row.flip
  assert data.args["warp"] == schema.Choice("none", {})
  assert bound(name, **data.args) == data


@pytest.mark.parametrize("name", [name for name in catalog.CATALOG if name not in OF_OTHERS])
def test_keys_of_a_dataset_match_its_reader(name):
  own = {
    tfds.open_catalogued: set(),
    tfds.open_own_copy: {"labels"},
    tfds.any_builder: {"builder", "labels"},
    folder.folder: {"holdout", "split_seed", "class_order", "validation"},
    tars.tars: {"classes", "class_order", "label", "labels"},
    manifest.manifest: {"classes", "class_order", "labels"},
    parquet.parquet: {"classes", "class_order", "image", "label", "labels"},
    segmentation.segmentation: {"classes", "images", "masks", "first", "ignored", "holdout", "split_seed"},
  }[catalog.CATALOG[name].reader]
  images = {"image_size", "test_crop", "mean", "std", "on_error", "max_bad", "exif", "max_pixels", "max_aspect",
            "threads", "prefetch"}  # fmt: skip
  training = {"order", "repeats", "crop", "flip", "policy", "warp", "mixing", "erasing", "workers"}
  measured = {"path", "train", "val", "test"} | own | images
  data = {"path": "/photos"} | ({"classes": 8} if name == "segmentation" else {})
  assert bound(name, **data).args.keys() == measured | training
  assert bound(name, catalog.EVAL_DATA, **data).args.keys() == measured
  for key in {"holdout", "split_seed", "builder", "labels"} - own:
    with pytest.raises(schema.ConfigError) as caught:
      bound(name, **data, **{key: 1})
    assert caught.value.place == f"config.data.{key}"
    assert "unknown key" in caught.value.message
    assert caught.value.message.endswith(".") and "image_size" in caught.value.message


@pytest.mark.parametrize(
  ("name", "words"),
  [
    ("kitti_distance", ("kitti:3.3.0", "train 6,347", "test 711", "4 classes", "top-1 accuracy", "(structured)")),
    ("imagenet_a", ("test 7,500", "1,000 classes, of which 200 occur")),
    ("imagenet2012_real", ("imagenet2012_real:1.0.0", "46,837")),
    ("jft300m", ("no public builder", "'train[:50000]'")),
  ],
)
def test_description_of_a_dataset_has_one_line(name, words):
  line = catalog.describe_dataset(name)
  assert all(word in line for word in words) and "\n" not in line


def test_datasets_without_a_catalog_row_have_no_description():
  assert catalog.describe_dataset("folder") == catalog.describe_dataset("mnist:3.0.1") == ""


@pytest.mark.parametrize("name", KNOWN)
def test_train_and_test_records_do_not_overlap(name):
  row = catalog.CATALOG[name]
  if row.train == row.test:  # a dataset that has only a test set
    assert name.startswith("imagenet") and "train" not in row.splits
    return
  train, test = (dict(sources.select_parts(spec, row.splits)) for spec in (row.train, row.test))
  for part in train.keys() & test.keys():
    assert train[part].stop <= test[part].start or test[part].stop <= train[part].start


def test_imagenet_is_tested_on_its_validation_split():
  assert bound("imagenet2012").args["test"] == "validation"
  with pytest.raises(sources.SplitError, match=r"config.data.test: no split 'test'.*train, validation"):
    known(bound("imagenet2012", test="test"), "train")
  known(bound("imagenet2012", train="train[:99%]", test="train[99%:]"), "train")


def test_val_is_the_configured_split_or_the_split_named_val(tmp_path):
  def val(name, **args):
    return known(bound(name, path=str(tmp_path), **args), "val")

  halves = {"train": "train[:98%]", "val": "train[98%:]"}
  assert bound("cifar10").args["val"] is None
  assert (val("cifar10", **halves).split, len(val("cifar10", **halves))) == ("train[98%:]", 1000)
  assert len(val("oxford_flowers102", val="validation")) == 1020
  with pytest.raises(
    sources.SplitError, match=r"no split 'val'.*Allowed: train, test\. Set config\.data\.val, as 'train"
  ):
    val("cifar10")
  with pytest.raises(sources.SplitError, match=r"config\.data\.val: no split 'val'.*Allowed: train, test\.$"):
    val("cifar10", val="val")


@pytest.mark.parametrize(
  ("name", "args", "key", "message"),
  [
    ("cifar11", {}, "name", "Did you mean 'cifar10'"),
    ("digits", {"crop": {"name": "incepton"}}, "crop.name", "'incepton'. Did you mean 'inception'"),
    ("digits", {"test_crop": {"name": "inception"}}, "test_crop.name", "unknown name 'inception'"),
    ("digits", {"crop": {"name": "inception", "areas": (0.1, 1)}}, "crop.areas", "Did you mean 'area'"),
    ("digits", {"crop": {"name": "inception", "area": (0.0, 1)}}, "crop.area[0]", "0.0 is out of range"),
    ("digits", {"crop": {"name": "inception", "area": (0.9, 0.1)}}, "crop.area", "(0.9, 0.1) goes from high to low"),
    ("digits", {"test_crop": {"name": "centre", "resize": 100}}, "test_crop.resize", "smaller than image_size 224"),
    ("digits", {"warp": {"name": "affine", "scale": (1.2, 0.8)}}, "warp.scale", "(1.2, 0.8) goes from high to low"),
    ("digits", {"mixing": {"name": "mixup", "alpha": 0}}, "mixing.alpha", "0.0 is out of range"),
    ("digits", {"mixing": {"name": "mixup", "mode": "pairs"}}, "mixing.mode", "Did you mean 'pair'"),
    ("digits", {"mixing": {"name": "mixup", "mode": "pair", "partner": "rolled"}}, "mixing.mode", "makes no pairs"),
    ("digits", {"mixing": {"name": "cutmix", "off_after": "0"}}, "mixing.off_after", "0 would never mix"),
    ("digits", {"erasing": {"name": "randm"}}, "erasing.name", "'randm'. Did you mean 'random'"),
    ("digits", {"erasing": {"name": "random", "area": (0.3, 0.1)}}, "erasing.area", "(0.3, 0.1) goes from high to low"),
    ("digits", {"policy": {"name": "randaug"}}, "policy.name", "'randaug'. Did you mean 'randaugment'"),
    ("digits", {"image_size": 0}, "image_size", "0 is out of range"),
    ("digits", {"std": (0.5, 0.0, 0.5)}, "std[1]", "0.0 is out of range"),
    ("digits", {"train": "tran"}, "train", "no split 'tran'. Did you mean 'train'"),
    ("digits", {"val": "tran[90%:]"}, "val", "no split 'tran'. Did you mean 'train'"),
    ("digits", {"train": "train[:99"}, "train", "'train[:99' is not a split"),
    ("digits", {"test": "test[:2000]"}, "test", "which has 360 records"),
    ("digits", {"on_error": "ignore"}, "on_error", "'ignore' is not a choice"),
    ("folder", {}, "path", "missing. Give the folder, files or bucket with the data: --config.data.path="),
    ("folder", {"path": ""}, "path", "no folder ''"),
    ("tfds", {}, "builder", "such as 'cifar10:3.0.2'"),
  ],
)
def test_error_names_the_key_the_value_and_the_allowed_values(name, args, key, message):
  with pytest.raises(schema.ConfigError) as caught:
    used(bound(name, **args))
  assert caught.value.place == f"config.data.{key}"
  assert message in caught.value.message


@pytest.mark.parametrize(
  "table",
  [
    *(crops.CROPS, crops.TEST_CROPS, policies.POLICIES),
    *(warping.WARPS, mixup.MIXINGS, erasing.ERASINGS),
  ],
)
def test_every_argument_of_every_table_has_a_default(table):
  for name, function in table.items():
    schema.bind(schema.Choice(name), (function,))
    assert all(
      p.default is not p.empty for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY
    )


@pytest.mark.parametrize("name", catalog.DATA)
def test_exif_is_applied_by_default_only_to_user_files(name):
  labelled = {"labelled": {"name": "digits"}} if name == "pseudo_labelled" else {}
  needed = labelled | ({"classes": 8} if name == "segmentation" else {})
  data = {"parts": ({"name": "digits"},)} if name == "mixture" else {"path": "x"} | needed
  for table in (catalog.DATA, catalog.EVAL_DATA):
    try:
      args = bound(name, table, **data).args
    except schema.ConfigError:  # it does not have a key `path`
      args = bound(name, table).args
    assert args["exif"] == (name in ("folder", "manifest"))

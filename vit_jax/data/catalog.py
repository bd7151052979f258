"""The datasets: one row each. A row names the reader and states what is known before any file is opened."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

from vit_jax import config
from vit_jax.data import augment, crops, sources, stream


@dataclasses.dataclass(frozen=True)
class Row:
  """A dataset: its reader, the TFDS builder with its version, images per split and classes, where these are known."""

  reader: Literal["tfds", "folder"]
  builder: str | None = None
  splits: Mapping[str, int] = dataclasses.field(default_factory=dict)
  classes: int | None = None


CATALOG = {
  "digits": Row("tfds", "digits:1.0.0", {"train": 1437, "test": 360}, 10),
  "cifar10": Row("tfds", "cifar10:3.0.2", {"train": 50_000, "test": 10_000}, 10),
  "cifar100": Row("tfds", "cifar100:3.0.2", {"train": 50_000, "test": 10_000}, 100),
  "imagenet2012": Row("tfds", "imagenet2012:5.1.0", {"train": 1_281_167, "validation": 50_000}, 1000),
  "oxford_iiit_pet": Row("tfds", "oxford_iiit_pet:4.0.0", {"train": 3680, "test": 3669}, 37),
  "oxford_flowers102": Row("tfds", "oxford_flowers102:2.1.1", {"train": 1020, "validation": 1020, "test": 6149}, 102),
  "tfds": Row("tfds"),
  "folder": Row("folder"),
}


def open_source(
  name: str,
  split: str,
  *,
  path: str | None = None,
  builder: str | None = None,
  train: str = "train",
  test: str = "test",
  holdout: config.Fraction = 0.2,
  split_seed: Annotated[int, config.Range(0, 2**31 - 1)] = 0,
) -> sources.Source:
  """The source of a catalog name; `split` is "train" or "test", which `train` and `test` spell out, or a split string.

  `path` is an image folder, a TFDS builder directory, or a TFDS data directory ($TFDS_DATA_DIR, ~/tensorflow_datasets).
  `holdout` and `split_seed` split a folder that has no split folders; the run's own seed must not move its test images.
  """
  row = config.lookup(CATALOG, name, "config.data")
  where = f"config.data.{split}" if split in ("train", "test") else "split"
  spec = {"train": train, "test": test}.get(split, split)
  if row.reader == "folder":
    return sources.open_folder(path, spec, (train, test), holdout, split_seed, where)
  return sources.open_tfds(name, row.builder or builder, path, row.splits, spec, where)


def bind(choice: config.Choice, where: str = "config.data") -> config.Choice:
  """The data choice with every argument checked and every default filled in, nested choices too; opens no file."""
  row = config.lookup(CATALOG, choice.name, where)
  bound = config.bind(choice, (open_source, stream.train_batches, stream.eval_batches, augment.build), where)
  args = dict(bound.args)
  for key, table in (
    ("crop", crops.CROPS),
    ("test_crop", crops.TEST_CROPS),
    ("warp", augment.WARPS),
    ("mixing", augment.MIXINGS),
  ):
    args[key] = config.bind(args[key], (config.lookup(table, args[key].name, f"{where}.{key}"),), f"{where}.{key}")
  # Building says what types cannot: a range upside down, a crop larger than the image.
  stream.build_crop(args["crop"], crops.CROPS, args["image_size"], f"{where}.crop")
  stream.build_crop(args["test_crop"], crops.TEST_CROPS, args["image_size"], f"{where}.test_crop")
  augment.build_part(args["warp"], augment.WARPS, f"{where}.warp")
  augment.build_part(args["mixing"], augment.MIXINGS, f"{where}.mixing")
  if row.splits:
    for key in ("train", "test"):
      sources.select(args[key], row.splits, f"{where}.{key}")
  if row.builder and args["builder"]:
    raise config.ConfigError(
      f"{where}.builder: {args['builder']!r} given, but {choice.name!r} is {row.builder}; use name='tfds'"
    )
  if row.reader == "folder" and not args["path"]:
    raise config.ConfigError(f"{where}.path: missing; a folder with <split>/<class>/*.jpg or <class>/*.jpg")
  if choice.name == "tfds" and not (args["builder"] or args["path"]):
    raise config.ConfigError(
      f"{where}.builder: missing; a TFDS name such as 'cifar10:3.0.2', or path= its builder directory"
    )
  return config.Choice(choice.name, args)

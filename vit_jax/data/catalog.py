"""The datasets: one row each. A row names the reader and states what is known before any file is opened."""

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

from vit_jax import schema
from vit_jax.data import augment, crops, erasing, mixing, randaugment, sources, stream, warping
from vit_jax.data.readers import folder, tfds


@dataclasses.dataclass(frozen=True)
class Row:
  """A dataset: its reader, the TFDS builder with its version, and the facts that a plan needs, where these are known.

  Facts without a builder are those of a set that TFDS cannot make: `config.data.path` names the user's own copy.
  """

  reader: Literal["tfds", "folder"]
  builder: str | None = None
  splits: Mapping[str, int] = dataclasses.field(default_factory=dict)  # images
  classes: int | None = None
  train: str = "train"  # split strings, unless a config says otherwise
  test: str = "test"
  labels: int = 1  # the most that one image has
  image_bytes: int | None = None  # of a typical stored image, for the rate at which a host must read


# Sizes of images are those of the archives (TFDS checksums) by the images in them, if not said otherwise.
CATALOG = {
  "digits": Row(
    "tfds",
    "digits:1.0.0",
    {"train": 1437, "test": 360},
    10,
    image_bytes=1_900,  # measured
  ),
  "cifar10": Row(
    "tfds",
    "cifar10:3.0.2",
    {"train": 50_000, "test": 10_000},
    10,
    image_bytes=2_500,  # PNG, of at most 3,072 bytes of pixels
  ),
  "cifar100": Row(
    "tfds",
    "cifar100:3.0.2",
    {"train": 50_000, "test": 10_000},
    100,
    image_bytes=2_500,  # as CIFAR-10
  ),
  "imagenet2012": Row(
    "tfds",
    "imagenet2012:5.1.0",
    {"train": 1_281_167, "validation": 50_000},
    1000,
    test="validation",
    image_bytes=115_000,  # 147.9 GB; 135 kB in the validation split
  ),
  "oxford_iiit_pet": Row(
    "tfds",
    "oxford_iiit_pet:4.0.0",
    {"train": 3680, "test": 3669},
    37,
    image_bytes=108_000,  # 792 MB
  ),
  "oxford_flowers102": Row(
    "tfds",
    "oxford_flowers102:2.1.1",
    {"train": 1020, "validation": 1020, "test": 6149},
    102,
    image_bytes=42_000,  # 345 MB
  ),
  # Fall 2011, with the two classes more that Google's models have, and big_vision's splits of it.
  "imagenet21k": Row(
    "tfds",
    splits={"full": 14_200_000},  # Kolesnikov et al. 2020: 14.2 M
    classes=21_843,
    train="full[51200:]",
    test="full[:25600]",
    image_bytes=92_000,  # 1.31 TB
  ),
  # Private to Google. No split for tests is published: the first images are held out.
  "jft300m": Row(
    "tfds",
    splits={"train": 303_000_000},  # Dosovitskiy et al. 2021, section 4.1
    classes=18_291,
    train="train[50000:]",
    test="train[:50000]",
    labels=8,  # assumed; 1.26 on average (Kolesnikov et al. 2020, section 3.1)
    image_bytes=115_000,  # assumed: ImageNet's
  ),
  "jft3b": Row(
    "tfds",
    splits={"train": 3_000_000_000},  # "nearly 3 billion": Zhai et al. 2022
    classes=29_593,
    train="train[50000:]",
    test="train[:50000]",
    labels=8,  # assumed, as for JFT-300M
    image_bytes=115_000,  # assumed: ImageNet's
  ),
  "tfds": Row("tfds"),
  "folder": Row("folder"),
}


def open_source(
  name: str,
  split: str,
  *,
  path: str | None = None,
  builder: str | None = None,
  train: str | None = None,
  val: str | None = None,
  test: str | None = None,
  labels: schema.Count | None = None,
  holdout: schema.Fraction = 0.2,
  split_seed: Annotated[int, schema.Range(0, 2**31 - 1)] = 0,
) -> sources.Source:
  """The source of a catalog name; `split` is "train", "val" or "test", as the arguments spell them, or a split string.

  `val` decides between settings, so that test images need not; without it, "val" is the dataset's split of that name.
  `path` is an image folder, a TFDS builder directory, or a TFDS data directory ($TFDS_DATA_DIR, ~/tensorflow_datasets).
  `labels` is the most labels that an image has, where the dataset has lists of them; the catalog knows it for its own.
  `holdout` and `split_seed` split a folder that has no split folders; the run's own seed must not move its test images.
  """
  row = schema.lookup(CATALOG, name, "config.data")
  train, test = train or row.train, test or row.test
  with _spelled(split, train, val, test) as (spec, where):
    if row.reader == "folder":
      peers = tuple(other for other in (train, val, test) if other)
      return folder.open_folder(path, spec, peers, holdout, split_seed, where)
    builder = row.builder or builder
    counts = row.splits if row.builder else {}  # what the user's own copy says goes first
    return tfds.open_tfds(builder, path, counts, labels or row.labels, spec, where, remedy(name, builder, path))


def open_split(choice: schema.Choice, split: str) -> sources.Source:
  """The source of a bound data choice; "train", "val" and "test" are what the data names so."""
  return open_source(choice.name, split, **schema.arguments(choice, open_source))


def known_split(choice: schema.Choice, split: str) -> sources.Source:
  """The same, or where the data are absent, what the catalog knows of them: enough for a plan, and an error to read.

  Data that are there and cannot be used are an error, as are absent data that no row describes.
  """
  row = schema.lookup(CATALOG, choice.name, "config.data")
  try:
    return open_split(choice, split)
  except sources.AbsentError as error:
    if row.classes is None:
      raise
    absent = error

  def read(i):
    raise absent

  with _spelled(split, *(choice.args[key] for key in ("train", "val", "test"))) as (spec, where):
    length = sum(len(numbers) for _, numbers in sources.select(spec, row.splits, where))
  classes = tuple(map(str, range(row.classes)))
  labels = choice.args["labels"] or row.labels
  return sources.Source(choice.name, spec, classes, length, read, lambda i: f"{choice.name}, record {i}", labels)


def remedy(name: str, builder: str | None, path: str | None) -> str:
  """What to do where a dataset is absent or of no use."""
  row = CATALOG.get(name)
  if row and row.classes and not row.builder:
    return (
      f"give your own copy of {name}, which has no public builder: --config.data.path=DIR, a TFDS directory (with "
      "dataset_info.json) in array_record format whose label is a ClassLabel or a list of them"
    )
  if not builder:
    return "give builder='name:1.0.0', or path= the directory of one version, '.../name/1.0.0'"
  return f"prepare it with: python -m vit_jax.prepare {builder if name == 'tfds' else name}" + (
    f" --data_dir={path}" if path else ""
  )


@contextlib.contextmanager
def _spelled(split, train, val, test):
  """The split string that "train", "val", "test" or a split string stands for, and where a config has it."""
  words = {"train": train, "val": val or "val", "test": test}
  try:
    yield words.get(split, split), f"config.data.{split}" if split in words else "split"
  except sources.SplitError as error:
    if split != "val" or val:
      raise
    advice = "Set config.data.val, as 'train[90%:]' with config.data.train='train[:90%]'"
    raise schema.ConfigError(f"{error} {advice}") from None


def bind(choice: schema.Choice, where: str = "config.data") -> schema.Choice:
  """The data choice with every argument checked and every default filled in, nested choices too; opens no file."""
  row = schema.lookup(CATALOG, choice.name, where)
  bound = schema.bind(choice, (open_source, stream.train_batches, stream.eval_batches, augment.build), where)
  args = dict(bound.args)
  args |= {"train": args["train"] or row.train, "test": args["test"] or row.test}
  for key, table, given in (
    ("crop", crops.CROPS, (args["image_size"],)),
    ("test_crop", crops.TEST_CROPS, (args["image_size"],)),
    ("policy", randaugment.POLICIES, ()),
    ("warp", warping.WARPS, ()),
    ("mixing", mixing.MIXINGS, (None, lambda duration: 1)),  # no patches; a run of some length
    ("erasing", erasing.ERASINGS, (None,)),
  ):
    function = schema.lookup(table, args[key].name, f"{where}.{key}")
    args[key] = schema.bind(args[key], (function,), f"{where}.{key}")
    # Building says what types cannot: a range upside down, a crop larger than the image.
    function(*given, **args[key].args)
  if row.builder:
    for key in ("train", "val", "test"):
      if args[key]:
        sources.select(args[key], row.splits, f"{where}.{key}")
  if row.builder and args["builder"]:
    raise schema.ConfigError(
      f"{where}.builder: {args['builder']!r} given, but {choice.name!r} is {row.builder}; use name='tfds'"
    )
  if row.reader == "folder" and not args["path"]:
    raise schema.ConfigError(f"{where}.path: missing; a folder with <split>/<class>/*.jpg or <class>/*.jpg")
  if choice.name == "tfds" and not (args["builder"] or args["path"]):
    raise schema.ConfigError(
      f"{where}.builder: missing; a TFDS name such as 'cifar10:3.0.2', or path= its builder directory"
    )
  return schema.Choice(choice.name, args)

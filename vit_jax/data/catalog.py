"""The datasets: one row each. A row names the reader and states what is known before any file is opened."""

from vit_jax import schema
from vit_jax.data import augment, loader, sources, stream
from vit_jax.data.readers import folder, tfds
from vit_jax.data.sources import Row, Splits
from vit_jax.schema import Choice, bind, lookup

# Sizes of images are those of the archives (TFDS checksums) by the images in them, if not said otherwise.
CATALOG = {
  "digits": Row(
    tfds.catalogued,
    "digits:1.0.0",
    {"train": 1437, "test": 360},
    10,
    image_bytes=1_900,  # measured
  ),
  "cifar10": Row(
    tfds.catalogued,
    "cifar10:3.0.2",
    {"train": 50_000, "test": 10_000},
    10,
    image_bytes=2_500,  # PNG, of at most 3,072 bytes of pixels
  ),
  "cifar100": Row(
    tfds.catalogued,
    "cifar100:3.0.2",
    {"train": 50_000, "test": 10_000},
    100,
    image_bytes=2_500,  # as CIFAR-10
  ),
  "imagenet2012": Row(
    tfds.catalogued,
    "imagenet2012:5.1.0",
    {"train": 1_281_167, "validation": 50_000},
    1000,
    test="validation",
    image_bytes=115_000,  # 147.9 GB; 135 kB in the validation split
  ),
  "oxford_iiit_pet": Row(
    tfds.catalogued,
    "oxford_iiit_pet:4.0.0",
    {"train": 3680, "test": 3669},
    37,
    image_bytes=108_000,  # 792 MB
  ),
  "oxford_flowers102": Row(
    tfds.catalogued,
    "oxford_flowers102:2.1.1",
    {"train": 1020, "validation": 1020, "test": 6149},
    102,
    image_bytes=42_000,  # 345 MB
  ),
  # Fall 2011, with the two classes more that Google's models have, and big_vision's splits of it.
  "imagenet21k": Row(
    tfds.own_copy,
    splits={"full": 14_200_000},  # Kolesnikov et al. 2020: 14.2 M
    classes=21_843,
    train="full[51200:]",
    test="full[:25600]",
    image_bytes=92_000,  # 1.31 TB
  ),
  # Private to Google. No split for tests is published: the first images are held out.
  "jft300m": Row(
    tfds.own_copy,
    splits={"train": 303_000_000},  # Dosovitskiy et al. 2021, section 4.1
    classes=18_291,
    train="train[50000:]",
    test="train[:50000]",
    labels=8,  # assumed; 1.26 on average (Kolesnikov et al. 2020, section 3.1)
    image_bytes=115_000,  # assumed: ImageNet's
  ),
  "jft3b": Row(
    tfds.own_copy,
    splits={"train": 3_000_000_000},  # "nearly 3 billion": Zhai et al. 2022
    classes=29_593,
    train="train[50000:]",
    test="train[:50000]",
    labels=8,  # assumed, as for JFT-300M
    image_bytes=115_000,  # assumed: ImageNet's
  ),
  "tfds": Row(tfds.any_builder),
  "folder": Row(folder.folder),
}


def _defaults(row):
  """What a row says of keys that its reader has."""
  return {key: getattr(row, key) for key in ("train", "test", "labels") if key in schema.keywords(row.reader)}


# The keys of `config.data` by name: those of the reader, and of what is made of its images.
READERS = {name: schema.preset(row.reader, name, row, **_defaults(row)) for name, row in CATALOG.items()}
DATA = {
  name: (reader, stream.train_examples, stream.eval_examples, loader.batches, loader.processes, augment.build)
  for name, reader in READERS.items()
}
# The same for data that are measured and not trained on.
EVAL_DATA = {
  name: (reader, stream.eval_examples, loader.batches, augment.normalise) for name, reader in READERS.items()
}


def open_split(choice: Choice, split: str) -> sources.Source:
  """The source of a data choice; `split` is "train", "val" or "test", as the choice has them, or a split string."""
  return schema.make(choice, DATA, split)


def train_examples(choice: Choice, seed: int, patch: int | None, batch: int, source: sources.Source | None = None):
  """`stream.train_examples` of the choice's "train", which is opened unless it is given as `source`."""
  source = open_split(choice, "train") if source is None else source
  return stream.train_examples(source, seed, patch, batch, **schema.arguments(choice, stream.train_examples))


def known_split(choice: Choice, split: str) -> sources.Source:
  """The same, or where the data are absent, what the catalog knows of them: enough for a plan, and an error to read.

  Data that are there and cannot be used are an error, as are absent data that no row describes.
  """
  try:
    return open_split(choice, split)
  except sources.AbsentError as error:
    row = CATALOG[choice.name]
    if row.classes is None:
      raise
    absent = error

  def read(i):
    raise absent

  choice = bind(choice, lookup(DATA, choice.name))
  splits = Splits(*(choice.args[key] for key in ("train", "val", "test")))
  length = sum(len(numbers) for _, numbers in splits.select(split, row.splits))
  classes, labels = tuple(map(str, range(row.classes))), choice.args.get("labels", row.labels)
  return sources.Source(
    choice.name, splits.spec(split), classes, length, read, lambda i: f"{choice.name}, record {i}", labels
  )

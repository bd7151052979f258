"""The datasets: one row each. A row names the reader and states what is known before any file is opened."""

import logging
from typing import Annotated

from vit_jax import paths, schema
from vit_jax.data import augment, class_names, loader, mixture, pseudo_labels, sources, stream
from vit_jax.data.catalog import imagenet, licences, small, vtab
from vit_jax.data.readers import folder, manifest, parquet, segmentation, tars, tfds
from vit_jax.data.rows import Row
from vit_jax.data.sources import Splits
from vit_jax.schema import Choice, amount, bind, lookup, show

# Sizes of images are those of the archives (TFDS checksums) by the images in them, if not said otherwise.
CATALOG = {
  **small.ROWS,
  **vtab.ROWS,
  **imagenet.ROWS,
  "tfds": Row(tfds.any_builder),
  "folder": Row(folder.folder, exif=True),
  "manifest": Row(manifest.manifest, exif=True),
  "tars": Row(tars.tars),
  "parquet": Row(parquet.parquet),
  "segmentation": Row(segmentation.segmentation),
}


def _defaults(row):
  """What a row says of keys that its reader has."""
  return {key: getattr(row, key) for key in ("train", "test", "labels") if key in schema.keywords(row.reader)}


def _training(row):
  """How training sees images: cropped and mirrored, unless that changes the labels of the row."""
  return schema.preset(
    stream.train_examples,
    **({} if row.flip else {"flip": False}),
    **({} if row.crop else {"crop": Choice("resize")}),
  )


def _loading(row):
  """How images are decoded: those of a camera, which nobody has published results on, as people see them."""
  return schema.preset(loader.batches, exif=row.exif)


def _weight(*, weight: Annotated[float, schema.Range(1e-9, 1e12)] = 1.0) -> float:
  return weight


def _reader(name, row):
  """The reader of a row, with what the row knows filled in."""
  return schema.preset(row.reader, name, row, **_defaults(row))


# All tables below follow from `CATALOG`: a row that is added to it, also by `vit_jax.register`, is in all of them.
_COMPOSED = ("mixture", "pseudo_labelled")  # of other datasets, and so no part of a mixture
# The keys of `config.data` by name: those of the reader, and of what is made of its images.
READERS = schema.Derived(CATALOG, _reader)
PARTS = schema.Derived(CATALOG, lambda name, row: (READERS[name], _weight), without=_COMPOSED)  # of a mixture


def _mixture(
  open_part,
  name: str,
  row: Row,
  split: str,
  *,
  parts: tuple[Annotated[Choice, PARTS], ...],
  classes: mixture.Classes = "union",
  epoch: str | None = None,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
) -> sources.Source:
  """Several datasets by weights, dict(name="imagenet21k", weight=2, ...): how many of the examples are drawn of each.

  Each is permuted anew in every epoch of its own. "90ep" are 90 times as many examples as all parts have images, or
  with `epoch`, the name of a part, so many that this part is seen 90 times. `classes` are the "union" by name, or the
  "same" in all parts. `train`, `val` and `test` are what is asked of every part.
  """
  splits, opened = Splits(train, val, test), []
  if not parts:
    raise schema.ConfigError("no part; write parts=(dict(name=..., weight=1), ...)", "parts")
  for i, part in enumerate(parts):
    choice = Choice(part.name, {key: value for key, value in part.args.items() if key != "weight"})
    with schema.at("parts"), schema.at(f"[{i}]"):
      opened.append(open_part(choice, splits.spec(split)))
  weights = [part.args["weight"] for part in parts]
  return mixture.mixture(name, splits.spec(split), opened, weights, classes, epoch)


def _open_part(choice, split):
  return schema.make(choice, PARTS, split)


def _pseudo_labelled(
  open_part,
  name: str,
  row: Row,
  split: str,
  *,
  path: str,
  labelled: Annotated[Choice, READERS],
  images: Annotated[Choice | None, READERS] = None,
  ratio: Annotated[float, schema.Range(1e-3, 1e3)] = 1.0,
  minimum: schema.Fraction = 0.3,
  per_class: Annotated[int, schema.Range(1, 2**31)] | None = None,
  soft: bool = True,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
) -> sources.Source:
  """Labelled images, and to train on also images with a teacher's labels (Noisy Student, Xie et al. 2020).

  `path` is the folder that `evaluate --write-labels` wrote. `ratio` images with its labels are drawn for each labelled
  one: those whose best class has at least the `minimum` probability, and with `per_class` so many of each class, the
  surest ones, or what there is of it several times. `soft` labels are the best classes with their probabilities.
  `images` says where the images are, if no longer where they were labelled. `train`, `val` and `test` are what is asked
  of the labelled ones.
  """
  splits = Splits(train, val, test)
  with schema.at("labelled"):
    source = open_part(labelled, splits.spec(split))
  if split != "train":
    return source
  folder = paths.path(path)
  with schema.at("path"):
    plan = pseudo_labels.read_plan(folder)
    if plan is None:
      raise sources.AbsentError(
        f"{path} holds no labels; write them: python -m vit_jax.evaluate --workdir=TEACHER --split=SPLIT "
        f"{schema.texts.flag('write-labels', path)}"
      )
    if tuple(map(class_names.normal, plan.classes)) != source.classes:
      raise schema.ConfigError(
        f"{path} has labels of {amount(len(plan.classes), 'class', 'classes')}, "
        f"{show(plan.classes[0])} first; those of labelled are "
        f"{len(source.classes)}, {show(source.classes[0])} first. Take a teacher of the same classes"
      )
  with schema.at("images" if images else "path"):
    stored = schema.convert(plan.data, Choice)
    others = open_part(images or bind(stored, lookup(READERS, stored.name)), plan.split)
  taken = pseudo_labels.Choice(minimum, per_class, soft)
  pseudo = pseudo_labels.labelled("pseudo-labels", plan.split, others, folder, plan, taken)
  return mixture.mixture(name, splits.spec(split), [source, pseudo], [1.0, ratio], "same", None)


CATALOG["mixture"] = Row(schema.preset(_mixture, _open_part))
CATALOG["pseudo_labelled"] = Row(schema.preset(_pseudo_labelled, _open_part))
DATA = schema.Derived(
  CATALOG,
  lambda name, row: (
    READERS[name],
    _training(row),
    stream.eval_examples,
    _loading(row),
    loader.processes,
    augment.build,
  ),
)
# The same for data that are measured and not trained on.
EVAL_DATA = schema.Derived(
  CATALOG, lambda name, row: (READERS[name], stream.eval_examples, _loading(row), augment.normalise)
)


def about(name: str) -> str:
  """What the catalog knows of a set, on one line: "" of one whose data alone say what they are."""
  row = CATALOG.get(name)
  if row is None or row.classes is None:
    return ""
  task = vtab.TASKS.get(name)
  parts = [
    f"{name}: {row.builder or 'no public builder'}",
    ", ".join(f"{split} {images:,}" for split, images in row.splits.items()),
    f"{row.classes:,} classes" + (f", of which {len(row.subset)} occur" if row.subset else ""),
    f"trained on {row.train!r}, tested on {row.test!r} by {row.metric}",
    *([f"VTAB's {task.title} ({task.group})"] if task else []),
    f"licence: {licences.licence(row.builder)}",
  ]
  return "; ".join(parts)


def open_split(choice: Choice, split: str) -> sources.Source:
  """The source of a data choice; `split` is "train", "val" or "test", as the choice has them, or a split string."""
  return schema.make(choice, DATA, split)


def train_examples(choice: Choice, seed: int, patch: int | None, batch: int, source: sources.Source | None = None):
  """`stream.train_examples` of the choice's "train", which is opened unless it is given as `source`."""
  source = open_split(choice, "train") if source is None else source
  _warn_of_changed_labels(choice)
  return stream.train_examples(source, seed, patch, batch, **schema.arguments(choice, stream.train_examples))


def _warn_of_changed_labels(choice):
  """Of parts of a mixture, whose rows cannot have a say in how all of it is augmented."""
  crops = choice.args["crop"].name != "resize"
  for part in choice.args.get("parts", ()):
    row = CATALOG[part.name]
    for harm, key, value in (
      (crops and not row.crop, "crop", "resize"),
      (choice.args["flip"] and not row.flip, "flip", "false"),
    ):
      if harm:
        logging.warning(
          "labels of %s are those of whole images as they are; take config.data.%s=%s", part.name, key, value
        )


def known_split(choice: Choice, split: str, prefix: str = "") -> sources.Source:
  """As `open_split`, or where data are absent, what the catalog knows of them: enough for a plan, and an error to read.

  Data that are there and cannot be used are an error, as are absent data that no row describes. Classes of absent data
  are numbers behind the `prefix`.
  """
  if choice.name == "mixture":
    same = choice.args.get("classes") == "same"

    def open_part(part, split):
      return known_split(part, split, "" if same else f"{part.name} ")  # none is known to be one of another part

    known = {"mixture": (schema.preset(_mixture, open_part, "mixture", CATALOG["mixture"]), *DATA["mixture"][1:])}
    return schema.make(choice, known, split)
  try:
    return open_split(choice, split)
  except sources.AbsentError as error:
    if choice.name == "pseudo_labelled":  # of the same classes; steps do not depend on how many there are
      known = bind(choice, lookup(DATA, choice.name)).args
      splits = Splits(known["train"], known["val"], known["test"])
      return known_split(known["labelled"], splits.spec(split))
    row = CATALOG[choice.name]
    if row.classes is None:
      raise
    absent = error

  def read(i):
    raise absent

  choice = bind(choice, lookup(DATA, choice.name))
  splits = Splits(*(choice.args[key] for key in ("train", "val", "test")), row.slices)
  length = sum(len(numbers) for _, numbers in splits.select(split, row.splits))
  classes, labels = tuple(f"{prefix}{i}" for i in range(row.classes)), choice.args.get("labels", row.labels)
  masks = row.segments and sources.Masks(tuple(row.segments.values), read)
  return sources.Source(
    choice.name, splits.spec(split), classes, length, read, lambda i: f"{choice.name}, record {i}", labels, masks=masks
  )

"""The catalog of datasets, with one row per dataset, and the functions that open a dataset.

A row names the reader of the dataset. It also contains the facts that are known before any file is opened. To add a
dataset, add a row to `CATALOG` or call `vit_jax.register`.
"""

import logging
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

from vit_jax import schema
from vit_jax.data import augment, class_names, loader, mixture, pseudo_labels, sources, stream
from vit_jax.data.bound_data import EvalData, TrainData
from vit_jax.data.catalog import imagenet, licences, small, vtab
from vit_jax.data.dataset_row import DatasetRow
from vit_jax.data.readers import folder, manifest, parquet, segmentation, tars, tfds
from vit_jax.data.sources import Splits
from vit_jax.data.views import Fields
from vit_jax.schema import Choice, bind, format_amount, lookup, show
from vit_jax.schema.errors import AbsentError
from vit_jax.storage import paths

# `image_bytes` is the size of the archive (TFDS checksums) divided by its number of images, except where a row notes
# otherwise.
CATALOG = {
  **small.ROWS,
  **vtab.ROWS,
  **imagenet.ROWS,
  "tfds": DatasetRow(tfds.any_builder),
  "folder": DatasetRow(folder.folder, exif=True),
  "manifest": DatasetRow(manifest.manifest, exif=True),
  "tars": DatasetRow(tars.tars),
  "parquet": DatasetRow(parquet.parquet),
  "segmentation": DatasetRow(segmentation.segmentation),
}


def _collect_defaults(row: DatasetRow) -> dict[str, Any]:
  """Returns the row's default values for the config keys that its reader supports."""
  return {key: getattr(row, key) for key in ("train", "test", "labels") if key in schema.read_keywords(row.reader)}


def _bind_training(row: DatasetRow) -> Callable[..., Any]:
  """Returns the function that makes training examples.

  Disables flips and crops that would change the labels of the row.
  """
  return schema.preset(
    stream.train_examples,
    **({} if row.flip else {"flip": False}),
    **({} if row.crop else {"crop": Choice("resize")}),
  )


def _bind_loading(row: DatasetRow) -> Callable[..., Any]:
  """Returns `loader.batches` with the row's default of `exif`."""
  return schema.preset(loader.batches, exif=row.exif)


def _weight(*, weight: Annotated[float, schema.Range(1e-9, 1e12)] = 1.0) -> float:
  return weight


def _bind_reader(name: str, row: DatasetRow) -> Callable[..., sources.Source]:
  """Returns the reader of a row with the row's own values filled in."""
  return schema.preset(row.reader, name, row, **_collect_defaults(row))


# The tables below are derived from `CATALOG`. They include rows that `vit_jax.register` adds later.
_COMPOSED = ("mixture", "pseudo_labelled")  # they consist of other datasets
# The keys of `config.data` that the reader of each dataset supports.
READERS = schema.DerivedTable(CATALOG, _bind_reader)
# The keys of each part of a mixture.
PARTS = schema.DerivedTable(CATALOG, lambda name, row: (READERS[name], _weight), without=_COMPOSED)


def _mixture(
  open_part: Any,
  name: str,
  row: DatasetRow,
  split: str,
  *,
  parts: tuple[Annotated[Choice, PARTS], ...],
  classes: mixture.MergeMode = "union",
  epoch: str | None = None,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
) -> sources.Source:
  """Opens a mixture of several datasets and draws examples from each in proportion to its weight.

  The images of each dataset are permuted again in each epoch of that dataset.

  Args:
    open_part: function (choice, split string) that opens a part.
    name: name of the mixture.
    row: row of the catalog.
    split: "train", "val", "test" or a split string.
    parts: datasets with their weights, such as `dict(name="imagenet21k", weight=2)`. Weights are relative.
    classes: "union" joins the classes of the parts by name. "same" requires equal classes in all parts.
    epoch: name of a part. An epoch then ends when every image of this part was used once, so that "90ep" uses its
      images 90 times. Default: an epoch has as many examples as all parts together have images.
    train: split string for training, of every part.
    val: split string for validation, of every part.
    test: split string for testing, of every part.

  Raises:
    ConfigError: if `parts` is empty, or if a part cannot be opened.
  """
  splits, opened = Splits(train, val, test), []
  if not parts:
    raise schema.ConfigError("no part. Write parts=(dict(name=..., weight=1), ...)", "parts")
  for i, part in enumerate(parts):
    choice = Choice(part.name, {key: value for key, value in part.args.items() if key != "weight"})
    with schema.enter_key("parts"), schema.enter_key(f"[{i}]"):
      opened.append(open_part(choice, splits.spec(split)))
  weights = [part.args["weight"] for part in parts]
  return mixture.join_sources(name, splits.spec(split), opened, weights, classes, epoch)


def _open_part(choice: Choice, split: str) -> sources.Source:
  return schema.make(choice, PARTS, split)


def _pseudo_labelled(
  open_part: Any,
  name: str,
  row: DatasetRow,
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
  """Opens labelled images and, for training, adds images with a teacher's labels (Noisy Student, Xie et al. 2020).

  Args:
    open_part: function (choice, split string) that opens a dataset.
    name: name of the mixture.
    row: row of the catalog.
    split: "train", "val", "test" or a split string. Only "train" includes pseudo-labelled images.
    path: directory that `evaluate --write-labels` wrote.
    labelled: dataset with labels.
    images: location of the pseudo-labelled images, if they were moved after the teacher labelled them.
    ratio: number of pseudo-labelled images that are drawn for each labelled image.
    minimum: lowest probability of the best class with which an image is used.
    per_class: number of images per class. The images with the highest probabilities are used. A class with fewer
      images repeats them.
    soft: whether labels are the best classes with their probabilities, instead of the best class alone.
    train: split string for training, of `labelled`.
    val: split string for validation, of `labelled`.
    test: split string for testing, of `labelled`.

  Raises:
    AbsentError: if `path` contains no labels.
    ConfigError: if the classes of the teacher and of `labelled` differ.
  """
  splits = Splits(train, val, test)
  with schema.enter_key("labelled"):
    source = open_part(labelled, splits.spec(split))
  if split != "train":
    return source
  folder = paths.resolve_path(path)
  with schema.enter_key("path"):
    plan = pseudo_labels.read_plan(folder)
    if plan is None:
      raise AbsentError(
        f"{path} contains no labels. Write them: python -m vit_jax.evaluate --workdir=TEACHER --split=SPLIT "
        f"{schema.texts.format_flag('write-labels', path)}"
      )
    if tuple(map(class_names.normalise_name, plan.classes)) != source.classes:
      raise schema.ConfigError(
        f"{path} has labels of {format_amount(len(plan.classes), 'class', 'classes')}, "
        f"{show(plan.classes[0])} first, but the labelled "
        f"data have {len(source.classes)}, {show(source.classes[0])} first. Use a teacher of the same classes"
      )
  with schema.enter_key("images" if images else "path"):
    stored = schema.convert(plan.data, Choice)
    others = open_part(images or bind(stored, lookup(READERS, stored.name)), plan.split)
  taken = pseudo_labels.Selection(minimum, per_class, soft)
  pseudo = pseudo_labels.select_labelled("pseudo-labels", plan.split, others, folder, plan, taken)
  return mixture.join_sources(name, splits.spec(split), [source, pseudo], [1.0, ratio], "same", None)


CATALOG["mixture"] = DatasetRow(schema.preset(_mixture, _open_part))
CATALOG["pseudo_labelled"] = DatasetRow(schema.preset(_pseudo_labelled, _open_part))
DATA = schema.DerivedTable(
  CATALOG,
  lambda name, row: (
    READERS[name],
    _bind_training(row),
    stream.eval_examples,
    _bind_loading(row),
    loader.processes,
    augment.build,
  ),
  kind=TrainData,
)
# The same for data that are only evaluated.
EVAL_DATA = schema.DerivedTable(
  CATALOG,
  lambda name, row: (READERS[name], stream.eval_examples, _bind_loading(row), augment.normalise),
  kind=EvalData,
)


def describe_dataset(name: str) -> str:
  """Returns a one-line description of a dataset, or "" if the catalog has no facts about it."""
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
    f"licence: {licences.describe_licence(row.builder)}",
  ]
  return "; ".join(parts)


def open_split(choice: Choice, split: str) -> sources.Source:
  """Opens a split of a dataset.

  Args:
    choice: name and arguments from `config.data`, bound by `schema.bind`.
    split: "train", "val" or "test" for the split that the choice defines, or a split string such as "train[:99%]".

  Returns:
    The source, which reads undecoded image files and labels by record number.

  Raises:
    AbsentError: if the data are missing. The message explains how to get them.
    SplitError: if the dataset has no such split.
    ConfigError: if the data do not fit the choice.

  Example:
    from vit_jax import schema
    from vit_jax.data import catalog

    choice = schema.bind(schema.Choice("digits"), catalog.DATA["digits"], catalog.DATA)
    source = catalog.open_split(choice, "train[:100]")
    len(source)  # 100
    image_file, label = source.read(0)
  """
  return schema.make(choice, DATA, split)


def open_train_examples(
  choice: TrainData, seed: int, fields: Fields, batch: int, source: sources.Source | None = None
) -> stream.Examples:
  """Returns the training examples of a dataset. See `stream.train_examples`.

  Args:
    choice: the bound choice of `config.data`.
    seed: seed of the run.
    fields: the arrays of an example.
    batch: size of the global batch.
    source: the opened split "train", if it is already open.
  """
  source = open_split(choice, "train") if source is None else source
  _warn_of_changed_labels(choice)
  return choice.train_examples(source, seed, fields, batch)


def _warn_of_changed_labels(choice: TrainData) -> None:
  """Warns if crops or flips change the labels of a part of a mixture. All parts have the same augmentation."""
  crops = choice.crop.name != "resize"
  for part in choice.parts:
    row = CATALOG[part.name]
    for harm, key, value in (
      (crops and not row.crop, "crop", "resize"),
      (choice.flip and not row.flip, "flip", "false"),
    ):
      if harm:
        logging.warning(
          "labels of %s are correct only for whole, unchanged images. Use config.data.%s=%s", part.name, key, value
        )


def open_known_split(choice: Choice, split: str, prefix: str = "") -> sources.Source:
  """Returns the result of `open_split`, or a source without images if the data are missing.

  The source without images is sufficient for planning. It has the number of images and classes from the catalog. The
  names of its classes consist of `prefix` and a number. Reading an image raises the error for the missing data.

  Args:
    choice: name and arguments from `config.data`.
    split: "train", "val", "test" or a split string.
    prefix: text before the number of each class.

  Raises:
    AbsentError: if the data are missing and the catalog has no facts about them.
    ConfigError: if the data exist but cannot be used.
  """
  if choice.name == "mixture":
    same = choice.args.get("classes") == "same"

    def open_part(part: Choice, split: str) -> sources.Source:
      return open_known_split(part, split, "" if same else f"{part.name} ")  # classes of different parts may differ

    known = {"mixture": (schema.preset(_mixture, open_part, "mixture", CATALOG["mixture"]), *DATA["mixture"][1:])}
    return schema.make(choice, known, split)
  try:
    return open_split(choice, split)
  except AbsentError as error:
    if choice.name == "pseudo_labelled":  # the classes are the same, and steps do not depend on the number of images
      args = bind(choice, lookup(DATA, choice.name)).args
      splits = Splits(args["train"], args["val"], args["test"])
      return open_known_split(args["labelled"], splits.spec(split))
    row = CATALOG[choice.name]
    if row.classes is None:
      raise
    absent = error

  def read(i: int) -> NoReturn:
    raise absent

  choice = bind(choice, lookup(DATA, choice.name))
  splits = Splits(choice.args["train"], choice.args["val"], choice.args["test"], row.slices)
  length = sum(len(numbers) for _, numbers in splits.select(split, row.splits))
  classes, labels = tuple(f"{prefix}{i}" for i in range(row.classes)), choice.args.get("labels", row.labels)
  masks = sources.Masks(tuple(row.segments.values), read) if row.segments else None
  return sources.Source(
    choice.name, splits.spec(split), classes, length, read, lambda i: f"{choice.name}, record {i}", labels, masks=masks
  )

"""Weights to use, of a run or of any file: the model, what its images are made of, and what its classes are called."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax import build, checkpoints, config, evals, extensions, files, identity, importers, paths, renames, schema
from vit_jax.data import augment, loader, stream
from vit_jax.importers import normalisation, processing, surgery
from vit_jax.importers.processing import Beside
from vit_jax.importers.tensors import Tensors
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError, amount


class Stored(NamedTuple):
  """What weights are used by."""

  description: Description  # bound, of a model for squares
  arrays: Tensors  # by path, layer by layer
  data: Choice  # how images are prepared: arguments of `evals.preparation`
  classes: tuple[str, ...]  # names; numbers where nobody says them
  loss: str  # a name of `losses.PROBABILITIES`
  notes: list[str]


def load(
  path: str | pathlib.Path,
  ema: bool | None = None,
  image_size: int | None = None,
  hints: Mapping[str, Any] | None = None,
  prefix: str | None = None,
) -> Stored:
  """The weights of a workdir or of any file that `importers.load` reads.

  Images are prepared as the run of a workdir was evaluated with; those of a file as its publisher did: what the JSON
  beside it says, else what is usual for its layout. ConfigError for what is neither.

  Args:
    path: also in a bucket.
    ema: True takes averaged weights, False raw ones. By default averaged ones of a file that has them, raw ones of a
      workdir.
    image_size: side of the images, if not that of the weights; positions are resampled.
    hints: what the tensors of a file do not show, as of `importers.recognise`.
    prefix: the beginning of the names to read, of a file with several models.
  """
  use = read(path, ema, hints, prefix)
  size = image_size or use.description.image_size
  if not isinstance(size, int) or use.description.channels != 3:
    raise ConfigError(
      f"{path}: the weights are of images of {use.description.image_size} pixels with "
      f"{amount(use.description.channels, 'channel')}; here images are squares in RGB. Name a side: "
      "--image-size=N, image_size=N"
    )
  wanted = use.description.replaced(image_size=size).bound()
  try:
    have = {name: np.asarray(array) for name, array in use.arrays.items()}
    arrays, done = surgery.fit(have, use.description, wanted, "keep")
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error
  # Nobody wants a portrait to be seen lying on its side, also by models whose evaluation ignores EXIF.
  data = Choice(use.data.name, {**at_size(use.data, size).args, "exif": True})
  names = use.classes or tuple(map(str, range(wanted.classes)))
  return Stored(wanted, dict(arrays), data, names, use.loss, [*use.notes, *done])


def read(
  path: str | pathlib.Path,
  ema: bool | None = None,
  hints: Mapping[str, Any] | None = None,
  prefix: str | None = None,
) -> Stored:
  """As `load`, of images of any shape and size; `classes` is empty where nobody says names.

  What a file holds is read when it is needed, and not kept.
  """
  path = paths.path(path)
  if importers.is_workdir(path):
    description, arrays = importers.load(path, hints, ema, prefix)
    data, loss, names, notes = _of_workdir(path, description)
  else:
    recognised = importers.inspect(path, hints, ema=ema, prefix=prefix)
    description = recognised.description
    try:
      arrays = recognised.lazily()
    except ConfigError as error:
      raise ConfigError(f"{path}: {error}") from error
    usual = normalisation.usual(recognised.layout.name, description)
    data, loss, names, notes = _said(path, recognised.beside, description, usual)
    notes = [*recognised.notes, *notes]
  if not description.classes:  # pre-trained without labels, on data that may well have names
    names = ()
  elif names and len(names) != description.classes:
    notes = [
      *notes,
      f"there {'is' if len(names) == 1 else 'are'} {amount(len(names), 'name')} for "
      f"{amount(description.classes, 'class', 'classes')}; numbers are used instead",
    ]
    names = ()
  return Stored(description, arrays, data, names, loss, notes)


def travelling(use: Stored) -> Beside:
  """What is to be said of images and classes wherever the weights go."""
  args = use.data.args
  normalised = {key: args[key] for key in ("mean", "std")}
  return Beside(normalised, args["test_crop"], args["image_size"], use.classes, use.loss)


def at_size(data: Choice, size: int) -> Choice:
  """The preparation of images for those of another size."""
  crop = processing.at_size(data.args["test_crop"], data.args["image_size"], size)
  return Choice(data.name, {**data.args, "image_size": size, "test_crop": crop})


def normalised(
  path: str | pathlib.Path, ema: bool | None = None, prefix: str | None = None
) -> dict[str, tuple[float, ...]]:
  """{"mean", "std"} of the images that weights are for, as `load` has them; the weights themselves are not read."""
  path = paths.path(path)
  if not importers.is_workdir(path):
    return normalisation.published(importers.inspect(path, ema=ema, prefix=prefix))
  about = checkpoints.about(path) or {}
  extensions.restore_of(path, about)
  data = _of_workdir(path, Description.from_json(about.get("model")))[0]
  return {key: data.args[key] for key in ("mean", "std")}


def other_normalisation(
  weights: str | pathlib.Path, data: Choice, ema: bool | None = None, prefix: str | None = None
) -> str | None:
  """Returns flags with the normalisation of the weights' images if the data have another one, which costs accuracy."""
  wanted = {key: tuple(values) for key, values in normalised(weights, ema, prefix).items()}
  other = {key: values for key, values in wanted.items() if data.args[key] != values}
  if not other:
    return None
  return " ".join(schema.texts.flag(f"config.data.{key}", values) for key, values in other.items())


def run_of(workdir: pathlib.Path) -> config.Run | None:
  """The run that a workdir is of, completed; None where it says of none. ConfigError for one that cannot be read."""
  about = checkpoints.about(workdir, identity.check) or {}
  own = identity.stored_config(workdir, about)
  if own is None:
    return None
  extensions.restore_of(workdir, about or files.read_json(workdir / identity.RECIPE) or {})
  try:
    return build.complete(config.resolve(renames.run(own)), adopt=False)
  except ConfigError as error:
    raise ConfigError(f"{workdir / 'config.json'} is no run of this code: {error}") from error


def _of_workdir(workdir, description):
  """(data, loss, names of classes, notes) of a workdir."""
  run, about = run_of(workdir), checkpoints.about(workdir, identity.check) or {}
  if run is None:  # weights that `convert` wrote, which say less than a run
    about = checkpoints.about(workdir) or {}
    said = processing.from_json(about["use"]) if "use" in about else Beside()
    return _said(workdir, said, description, normalisation.HALVES)
  names = tuple(about["identity"]["data"]["classes"]) if "identity" in about else ()
  return Choice(run.data.name, evals.preparation(run.data)), run.task.args.get("loss", "softmax"), names, []


def _said(path, said, description, usual):
  """(data, loss, names of classes, notes) of weights beside which this is said, if not all of it."""
  notes = []
  if set(said.normalised) != {"mean", "std"}:
    values = ", ".join(f"{key}={str(value).replace(' ', '')}" for key, value in usual.items())
    where = (
      "the workdir holds no run, which would say" if importers.is_workdir(path) else "nothing beside the file says"
    )
    notes = [f"{where} how its images were normalised; taken is {values}, see docs/models.md#images"]
  side = _side(description)
  crop = {"test_crop": processing.at_size(said.crop, said.size, side)} if said.crop else {}
  try:
    data = _data(side, **{**usual, **said.normalised}, **crop)
  except ConfigError as error:
    raise ConfigError(f"{path}: what is said of its images: {error}") from error
  return data, said.loss or "softmax", said.labels, notes


def _side(description):
  size = description.image_size
  return size if isinstance(size, int) else min(size)


def _data(image_size, **changes: Any) -> Choice:
  """A preparation of images, with every argument filled in."""
  functions = stream.eval_examples, loader.batches, augment.normalise
  return schema.bind(Choice("images", {"image_size": image_size, **changes}), functions)

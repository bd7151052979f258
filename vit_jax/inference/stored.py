"""Weights to use, of a run or of any file: the model, what its images are made of, and what its classes are called."""

import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from vit_jax import build, checkpoints, config, evals, identity, importers, paths, renames, schema
from vit_jax.data import augment, loader, stream
from vit_jax.importers import normalisation, surgery
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError


class Stored(NamedTuple):
  """What weights are used by."""

  description: Description  # bound, of a model for squares
  arrays: dict[str, np.ndarray]  # by path, layer by layer
  data: Choice  # how images are prepared: arguments of `evals.preparation`
  classes: tuple[str, ...]  # names; numbers where nobody says them
  loss: str  # a name of `losses.PROBABILITIES`
  notes: list[str]


def load(
  path: str | pathlib.Path,
  ema: bool = False,
  image_size: int | None = None,
  hints: Mapping[str, Any] | None = None,
) -> Stored:
  """The weights of a workdir or of any file that `importers.load` reads.

  Images are prepared as the run of a workdir was evaluated with; those of a file as its publisher did: what the JSON
  beside it says, else what is usual for its layout. ConfigError for what is neither.

  Args:
    path: also in a bucket.
    ema: take the moving average of a workdir.
    image_size: side of the images, if not that of the weights; positions are resampled.
    hints: what the tensors of a file do not show, as of `importers.recognise`.
  """
  path = paths.path(path)
  if importers.is_workdir(path):
    description, arrays = importers.load(path, ema=ema)
    data, loss, names, notes = _of_run(path, description)
  else:
    if ema:
      raise ConfigError(f"{path}: a moving average is in workdirs only; a file has one set of weights")
    recognised = importers.inspect(path, hints)
    description = recognised.description
    try:
      arrays = recognised.read()
    except ConfigError as error:
      raise ConfigError(f"{path}: {error}") from error
    data, loss, names = _published(recognised), "softmax", recognised.beside.labels
    notes = _unsaid(recognised)
  size = image_size or description.image_size
  if not isinstance(size, int) or description.channels != 3:
    raise ConfigError(
      f"{path}: the weights are of images of {description.image_size} pixels with {description.channels} channels; "
      "here images are squares in RGB. Name a side: --image-size=N, image_size=N"
    )
  wanted = description.replaced(image_size=size).bound()
  try:
    arrays, done = surgery.fit(arrays, description, wanted, "keep")
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error
  if names and len(names) != description.classes:
    notes = [*notes, f"{len(names)} names are said for {description.classes} classes; numbers stand for the classes"]
  if len(names) != description.classes:
    names = tuple(map(str, range(description.classes)))
  # Nobody wants a portrait to be seen lying on its side, also by models whose evaluation ignores EXIF.
  data = Choice(data.name, {**data.args, "image_size": size, "exif": True})
  return Stored(wanted, dict(arrays), data, tuple(names), loss, [*notes, *done])


def run_of(workdir: pathlib.Path) -> config.Run | None:
  """The run that a workdir is of, completed; None where it says of none. ConfigError for one that cannot be read."""
  about = checkpoints.about(workdir, identity.check) or {}
  own = identity.stored_config(workdir, about)
  if own is None:
    return None
  try:
    return build.complete(config.resolve(renames.run(own)))
  except ConfigError as error:
    raise ConfigError(f"{workdir / 'config.json'} is no run of this code: {error}") from error


def _of_run(workdir, description):
  """(data, loss, names of classes, notes) of a workdir."""
  run, about = run_of(workdir), checkpoints.about(workdir, identity.check) or {}
  names = tuple(about["identity"]["data"]["classes"]) if "identity" in about else ()
  if run is None:  # weights that `convert` wrote
    note = "the workdir holds no run, which would say how images are normalised; taken is mean=0.5, std=0.5"
    return _data(_side(description)), "softmax", names, [note]
  return Choice(run.data.name, evals.preparation(run.data)), run.task.args.get("loss", "softmax"), names, []


def _published(recognised) -> Choice:
  """How the images of a recognised file are prepared."""
  beside, description = recognised.beside, recognised.description
  crop = {"test_crop": Choice("torchvision", beside.crop)} if beside.crop else {}
  return _data(_side(description), **normalisation.published(recognised), **crop)


def _unsaid(recognised):
  """A note where nobody says how the images were normalised."""
  if set(recognised.beside.normalised) == {"mean", "std"}:
    return []
  usual = normalisation.usual(recognised.layout.name, recognised.description)
  values = ", ".join(f"{key}={str(value).replace(' ', '')}" for key, value in usual.items())
  return [f"nothing beside the file says how its images were normalised; taken is {values}, see docs/models.md#images"]


def _side(description):
  size = description.image_size
  return size if isinstance(size, int) else min(size)


def _data(image_size, **changes: Any) -> Choice:
  """A preparation of images, with every argument filled in."""
  functions = stream.eval_examples, loader.batches, augment.normalise
  return schema.bind(Choice("images", {"image_size": image_size, **changes}), functions)

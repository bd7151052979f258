"""Weights of a run or of a file, together with their model, preprocessing and class names."""

import pathlib
from collections.abc import Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from vit_jax import checkpoints, config, importers, schema
from vit_jax.checkpoints import forms, provenance
from vit_jax.config import extensions, migrations
from vit_jax.data import augment, loader, stream
from vit_jax.data.bound_data import EvalData
from vit_jax.importers import normalisation, surgery
from vit_jax.importers.formats.lazy_tensors import Tensors
from vit_jax.importers.hints import Hints
from vit_jax.importers.hub import preprocessing
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError, format_amount
from vit_jax.storage import files, hub_files
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun

Data = TypeVar("Data", bound=EvalData)


Preparation = tuple[EvalData, str, tuple[str, ...], list[str]]  # (data, loss, class names, notes)


class StoredWeights(NamedTuple):
  """Weights with everything that is needed to use them.

  Attributes:
    description: the model, bound. Its images are square after `load`.
    arrays: parameters by path, layer by layer.
    data: preprocessing of the images, with at least the arguments of `EvalData.preparation`.
    classes: class names, or class numbers if the names are unknown.
    loss: a name in `losses.PROBABILITIES`.
    notes: assumptions and changes to report to the user.
  """

  description: Description
  arrays: Tensors
  data: EvalData
  classes: tuple[str, ...]
  loss: str
  notes: list[str]


def load(
  path: str | pathlib.Path,
  ema: bool | None = None,
  image_size: int | None = None,
  hints: Hints | None = None,
  prefix: str | None = None,
) -> StoredWeights:
  """Reads the weights of a workdir or of any file that `importers.load` reads.

  Images of a workdir are prepared as in the evaluation of its run. Images for the weights of a file are prepared as by
  their publisher. The JSON file next to the weights specifies this preprocessing. Without a JSON file, the usual values
  of the layout are used.

  Args:
    path: workdir or weight file, local or in a bucket.
    ema: True selects averaged weights, False selects raw weights. The default is averaged weights for a file that
      contains them, and for a workdir with the average as teacher. Otherwise, raw weights are read.
    image_size: side of the images in pixels, if it differs from that of the weights. Position embeddings are resampled.
    hints: model arguments that the tensors of a file do not determine. See `importers.recognise`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.

  Returns:
    The weights, for square RGB images.

  Raises:
    ConfigError: if the path is neither a workdir nor a supported file, or the model does not fit square RGB images.

  Example:
    from vit_jax.inference import stored

    use = stored.load("model.npz", image_size=384)
    print(use.description, use.classes[:3])
  """
  use = read(path, ema, hints, prefix)
  size = image_size or use.description.image_size
  if not isinstance(size, int) or use.description.channels != 3:
    raise ConfigError(
      f"{path}: the model processes images of {use.description.image_size} pixels with "
      f"{format_amount(use.description.channels, 'channel')}, but this command requires square RGB images. Set the "
      "side: --image-size=N, image_size=N"
    )
  wanted = use.description.replace(image_size=size).bind()
  try:
    stored = {name: np.asarray(array) for name, array in use.arrays.items()}
    arrays, done = surgery.fit(stored, use.description, wanted, "keep")
  except ConfigError as error:
    raise ConfigError(f"{path}: {error}") from error
  # Photographs are rotated upright, even if the evaluation of the model ignores EXIF.
  data = resize_preprocessing(use.data, size).replace(exif=True)
  names = use.classes or tuple(map(str, range(wanted.classes)))
  return StoredWeights(wanted, dict(arrays), data, names, use.loss, [*use.notes, *done])


def read(
  path: str | pathlib.Path,
  ema: bool | None = None,
  hints: Hints | None = None,
  prefix: str | None = None,
) -> StoredWeights:
  """Reads weights like `load`, for images of any shape and size.

  Tensors are read from the file when they are used, and are not kept in memory.

  Args:
    path: workdir or weight file, local or in a bucket.
    ema: True selects averaged weights, False selects raw weights. See `load`.
    hints: model arguments that the tensors of a file do not determine. See `importers.recognise`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.

  Returns:
    The weights. `classes` is empty if the class names are unknown.

  Raises:
    ConfigError: if the path is neither a workdir nor a supported file.
  """
  path = hub_files.resolve_weights(path)
  arrays: Tensors
  if importers.is_workdir(path):
    description, arrays = importers.load(path, hints, ema, prefix)
    data, loss, names, notes = _read_workdir(path, description)
  else:
    recognised = importers.inspect(path, hints, ema=ema, prefix=prefix)
    description = recognised.description
    try:
      arrays = recognised.read_lazily()
    except ConfigError as error:
      raise ConfigError(f"{path}: {error}") from error
    data, loss, names, notes = _apply_metadata(
      path, recognised.image_metadata, description, normalisation.find_normalisation(recognised)
    )
    notes = [*recognised.notes, *notes]
  if not description.classes:  # The model was pre-trained without labels, although its data may have class names.
    names = ()
  elif names and len(names) != description.classes:
    notes = [
      *notes,
      f"there {'is' if len(names) == 1 else 'are'} {format_amount(len(names), 'name')} for "
      f"{format_amount(description.classes, 'class', 'classes')}; numbers are used instead",
    ]
    names = ()
  return StoredWeights(description, arrays, data, names, loss, notes)


def describe_images(use: StoredWeights) -> ImageMetadata:
  """Returns the metadata of images and classes to write next to the weights."""
  data = use.data
  return ImageMetadata(data.normalisation, data.test_crop, data.image_size, use.classes, use.loss)


def resize_preprocessing(data: Data, size: int) -> Data:
  """Returns the preprocessing of images for another image size.

  Args:
    data: the preprocessing.
    size: side of the images in pixels.
  """
  crop = preprocessing.scale_crop(data.test_crop, data.image_size, size)
  return data.replace(image_size=size, test_crop=crop)


def read_normalisation(
  path: str | pathlib.Path, ema: bool | None = None, prefix: str | None = None
) -> Mapping[str, tuple[float, ...]]:
  """Returns the mean and standard deviation of the images that weights require.

  The values are the same as in `load`, but the weights are not read.

  Args:
    path: workdir or weight file, local or in a bucket.
    ema: True selects averaged weights, False selects raw weights. See `load`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.

  Returns:
    {"mean": values, "std": values}, one value per channel.
  """
  path = hub_files.resolve_weights(path)
  if not importers.is_workdir(path):
    return normalisation.find_normalisation(importers.inspect(path, ema=ema, prefix=prefix))
  about = checkpoints.read_description(path) or {}
  extensions.restore_for_workdir(path, about)
  data = _read_workdir(path, Description.from_json(about.get("model")))[0]
  return data.normalisation


def load_run(workdir: pathlib.Path) -> BoundRun | None:
  """Returns the completed run of a workdir.

  Args:
    workdir: the workdir.

  Returns:
    The run, or None if the workdir does not contain its config.

  Raises:
    ConfigError: if the config is not valid for this version of the code.
  """
  about = checkpoints.read_description(workdir, forms.check_metadata) or {}
  own = provenance.read_stored_config(workdir, about)
  if own is None:
    return None
  extensions.restore_for_workdir(workdir, about or files.read_json(workdir / provenance.RECIPE) or {})
  try:
    return build.complete(config.resolve(migrations.migrate_run(own)), adopt=False)
  except ConfigError as error:
    raise ConfigError(f"{workdir / 'config.json'} is not the config of a run: {error}") from error


def _read_workdir(workdir: pathlib.Path, description: Description) -> Preparation:
  """Returns (data, loss, class names, notes) of a workdir."""
  run, about = load_run(workdir), checkpoints.read_description(workdir, forms.check_metadata) or {}
  if run is None:  # weights that `convert` wrote have less metadata than a run
    about = checkpoints.read_description(workdir) or {}
    metadata = preprocessing.from_json(about["use"]) if "use" in about else ImageMetadata()
    return _apply_metadata(workdir, metadata, description, normalisation.HALVES)
  names = tuple(about["identity"]["data"]["classes"]) if "identity" in about else ()
  return EvalData(run.data.name, run.data.preparation), run.task.args.get("loss", "softmax"), names, []


def _apply_metadata(
  path: pathlib.Path, metadata: ImageMetadata, description: Description, usual: Mapping[str, tuple[float, ...]]
) -> Preparation:
  """Returns (data, loss, class names, notes) from the metadata of weights, with defaults for missing values."""
  notes = []
  if set(metadata.normalised) != {"mean", "std"}:
    values = ", ".join(f"{key}={str(value).replace(' ', '')}" for key, value in usual.items())
    where = (
      "the workdir does not contain a run, which would specify"
      if importers.is_workdir(path)
      else "no metadata file next to the weights specifies"
    )
    notes = [f"{where} how its images were normalised. Using {values}, see docs/models/index.md#images"]
  side = _get_side(description)
  crop = {"test_crop": preprocessing.scale_crop(metadata.crop, metadata.size, side)} if metadata.crop else {}
  try:
    data = complete_preprocessing(side, **{**usual, **metadata.normalised}, **crop)
  except ConfigError as error:
    raise ConfigError(f"{path}: its image metadata are not valid: {error}") from error
  return data, metadata.loss or "softmax", metadata.labels, notes


def _get_side(description: Description) -> int:
  size = description.image_size
  return size if isinstance(size, int) else min(size)


def complete_preprocessing(image_size: int, **changes: object) -> EvalData:
  """Returns the preprocessing of images, with all arguments filled in.

  Args:
    image_size: side of the square images, in pixels.
    **changes: arguments of the preprocessing that differ from the defaults.
  """
  functions = stream.eval_examples, loader.batches, augment.normalise
  bound = schema.bind(Choice("images", {"image_size": image_size, **changes}), functions)
  return EvalData(bound.name, bound.args)

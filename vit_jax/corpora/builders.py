"""Preparation of a dataset of the catalog, or of any TFDS builder, on a disk or in a bucket."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from vit_jax import runtime, schema
from vit_jax.data import catalog, digits, glyphs, scenes
from vit_jax.data.dataset_row import DatasetRow
from vit_jax.data.readers import features as feature_classes
from vit_jax.data.readers import tfds
from vit_jax.data.sources import Splits
from vit_jax.schema import extras
from vit_jax.storage import files, paths

MADE = {"digits": digits, "glyphs": glyphs, "scenes": scenes}  # made from an installed library or without data


def prepare_dataset(name: str, data_dir: str | None = None) -> str:
  """Prepares a dataset as array_record in the TFDS data directory, unless it exists.

  An interrupted preparation leaves no files that look complete.

  Args:
    name: a name of the catalog, or any TFDS builder such as "mnist:3.0.1".
    data_dir: the TFDS data directory. The default is $TFDS_DATA_DIR, or ~/tensorflow_datasets.

  Returns:
    A sentence with the location of the dataset.

  Raises:
    ConfigError: the name is unknown, files must be downloaded manually, or TensorFlow is missing. The check precedes
      any download.
  """
  row = catalog.CATALOG.get(name, DatasetRow(tfds.any_builder, name))
  if not row.builder:
    with schema.enter_key("config.data"):
      advice = tfds.describe_remedy(name, row, data_dir)
    raise schema.ConfigError(advice if row.classes else f"{name!r} is read directly and needs no preparation")
  root = tfds.find_data_dir(data_dir)
  folder = tfds.find_builder_dir(row.builder, data_dir)
  if folder is None:
    if paths.is_in_bucket(root):
      return _prepare_and_copy(name, row.builder, root)
    with _lock_directory(root):
      folder = tfds.find_builder_dir(row.builder, data_dir)
      if folder is None:  # otherwise another process has just prepared it
        return _write_dataset(name, row, root, data_dir)
  tfds.open_prepared(name, row, data_dir, row.labels, "all", Splits("train", None, "test"))
  return f"{name} is already prepared at {folder}"


@contextlib.contextmanager
def _lock_directory(root: os.PathLike[str]) -> Iterator[None]:
  """Ensures that only one process at a time prepares datasets in a directory.

  Other processes wait. The lock is released when the process ends.
  """
  try:
    os.makedirs(root, exist_ok=True)
    file = open(os.path.join(root, ".prepare.lock"), "a")
  except OSError as error:
    raise schema.ConfigError(f"cannot write to {root}: {error}") from error
  with file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _prepare_and_copy(name: str, builder: str, root: pathlib.Path) -> str:
  """Prepares on a disk, as TFDS requires, and copies missing files to a bucket. The last file marks a complete copy."""
  disk = tfds.find_data_dir(None)
  if paths.is_in_bucket(disk):  # $TFDS_DATA_DIR
    disk = tfds.find_data_dir("~/tensorflow_datasets")
  prepare_dataset(name, str(disk))
  source = tfds.find_builder_dir(builder, str(disk))
  assert source is not None, disk
  target = root / source.relative_to(disk)
  for file in sorted((f for f in source.rglob("*") if f.is_file()), key=lambda f: f.name == "dataset_info.json"):
    there = target / file.relative_to(source)
    if files.get_size(there) != file.stat().st_size:
      files.copy_to_bucket(file, there)
  return f"{name} is prepared at {target}, a copy of {source}"


def check_manual(name: str, row: DatasetRow, root: os.PathLike[str]) -> None:
  """Checks that the files of a manual download exist, before any download starts.

  Args:
    name: name of the dataset.
    row: its row of the catalog.
    root: the TFDS data directory.

  Raises:
    ConfigError: files are missing. The message contains the steps of the manual download.
  """
  manual = os.path.join(root, "downloads", "manual")
  missing = [part for part in row.manual if not os.path.exists(os.path.join(manual, part))]
  if missing:
    raise schema.ConfigError(
      f"{name} must be downloaded by hand: {row.steps}. In {manual}, {', '.join(missing)} "
      f"{'is' if len(missing) == 1 else 'are'} missing. Add the files and run the same command again"
    )


def _make_dataset(name: str, module: Any, segments: Any, root: pathlib.Path) -> None:
  """Writes a dataset of `MADE` in version 1.0.0. One rename at the end makes it visible when it is complete."""
  import tensorflow_datasets as tfds

  tfds.disable_progress_bar()
  image, mask = (
    tfds.features.Image(shape=(module.PIXELS, module.PIXELS, channels), encoding_format="png") for channels in (3, 1)
  )
  label = tfds.features.ClassLabel(names=module.CLASSES)
  features = {"image": image, "label": label} | ({segments.feature: mask} if segments else {})
  try:
    tfds.dataset_builders.store_as_tfds_dataset(
      name=name,
      version="1.0.0",
      features=tfds.features.FeaturesDict(features),
      split_datasets={split: enumerate(records) for split, records in module.examples().items()},
      description=module.DESCRIPTION,
      data_dir=root,
      file_format="array_record",
      disable_shuffling=True,
    )
  except (OSError, RuntimeError) as error:  # TFDS raises RuntimeError for errors of its writer, such as a full disk
    reason = str(error.__cause__ or error).splitlines()[0]
    raise schema.ConfigError(
      f"{name} cannot be prepared in {root}: {reason}. Run the same command again to restart"
    ) from error


def _write_dataset(name: str, row: DatasetRow, root: pathlib.Path, data_dir: str | None) -> str:
  check_manual(name, row, root)
  if row.caution:
    runtime.print_line(f"{name}: " + row.caution.format(manual=os.path.join(root, "downloads", "manual")))
  if name in MADE:
    extras.check_tensorflow(name)
    _make_dataset(name, MADE[name], row.segments, root)
  else:
    builder = _create_builder(name, row, root)
    extras.check_tensorflow(name)  # TFDS imports it after the download
    try:
      builder.download_and_prepare()
    # Missing files of a manual download, as for ImageNet, no network, or no space.
    except (AssertionError, OSError) as error:
      raise schema.ConfigError(f"{name} cannot be prepared in {root}: {error}") from error
  return f"{name} is prepared at {tfds.find_builder_dir(row.builder, data_dir)}"


def _create_builder(name: str, row: DatasetRow, root: pathlib.Path) -> Any:
  """Returns TFDS's builder of a dataset. Raises ConfigError for an unknown name, config or version."""
  import tensorflow_datasets

  feature_classes.refuse_imports()
  try:
    tensorflow_datasets.core.naming.parse_builder_name_kwargs(row.builder)
  except ValueError as error:  # the name contains characters that are not allowed in names
    raise schema.ConfigError(_describe_unknown(name)) from error
  try:
    return tensorflow_datasets.builder(row.builder, data_dir=root, file_format="array_record", try_gcs=False)
  except tensorflow_datasets.core.registered.DatasetNotFoundError as error:
    raise schema.ConfigError(_describe_unknown(name)) from error
  except (AssertionError, OSError, TypeError, ValueError) as error:  # wrong config, version or arguments, or no network
    reason = str(error).splitlines()[0].rpartition('": ')[2].partition(". Here are")[0].rstrip(".")
    raise schema.ConfigError(f"{name} cannot be prepared in {root}: {reason}. See the catalog of TFDS") from error


def _describe_unknown(name: str) -> str:
  """Returns the message for an unknown dataset, with the closest names."""
  import tensorflow_datasets

  names = [
    *(each for each, other in catalog.CATALOG.items() if other.builder),
    *tensorflow_datasets.list_builders(with_community_datasets=False),
  ]
  return f"unknown dataset {name!r}.{schema.suggest_nearest(name, names)}"

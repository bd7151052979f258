"""Writes a dataset of the catalog to a disk or a bucket, once: `python -m vit_jax.prepare digits [--data_dir=DIR]`."""

import contextlib
import fcntl
import functools
import os

from vit_jax import cli, files, paths, schema
from vit_jax.data import catalog, digits
from vit_jax.data.readers import tfds


def prepare(name: str, data_dir: str | None = None) -> str:
  """Makes sure that dataset `name` stands in the TFDS data directory as array_record; says where, in one sentence.

  A name of the catalog, or any TFDS builder ("mnist:3.0.1"). Killed halfway, it leaves nothing that looks complete.
  """
  row = catalog.CATALOG.get(name, catalog.Row(tfds.any_builder, name))
  if not row.builder:
    with schema.at("config.data"):
      advice = tfds.remedy(name, row, data_dir)
    raise schema.ConfigError(advice if row.classes else f"{name!r} is read as it is; there is nothing to prepare")
  root = tfds.data_dir(data_dir)
  folder = tfds.builder_dir(row.builder, data_dir)
  if folder is None and paths.in_bucket(root):
    return _copy(name, row.builder, root)
  if folder is None:
    with _alone(root):
      folder = tfds.builder_dir(row.builder, data_dir)
      if folder is None:  # else another process has just done it
        return _write(name, row, root, data_dir)
  tfds.open_prepared(name, row, data_dir, row.labels, "all", catalog.Splits("train", None, "test"))
  return f"{name} is already prepared at {folder}"


@contextlib.contextmanager
def _alone(root):
  """One process at a time prepares in a directory; others wait. The lock dies with the process."""
  try:
    os.makedirs(root, exist_ok=True)
    file = open(os.path.join(root, ".prepare.lock"), "a")
  except OSError as error:
    raise schema.ConfigError(f"cannot write to {root}: {error}") from error
  with file:
    fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _copy(name, builder, root):
  """Prepares on a disk, as TFDS can, and copies to a bucket what is not there yet; the last file says it is whole."""
  disk = tfds.data_dir(None)
  if paths.in_bucket(disk):  # $TFDS_DATA_DIR
    disk = tfds.data_dir("~/tensorflow_datasets")
  prepare(name, str(disk))
  source = tfds.builder_dir(builder, str(disk))
  target = root / source.relative_to(disk)
  for file in sorted((f for f in source.rglob("*") if f.is_file()), key=lambda f: f.name == "dataset_info.json"):
    there = target / file.relative_to(source)
    if not there.exists() or there.stat().length != file.stat().st_size:
      files.copy(file, there)
  return f"{name} is prepared at {target}, a copy of {source}"


def _write(name, row, root, data_dir):
  import tensorflow_datasets

  if name == "digits":
    digits.write(root)
  else:
    try:
      builder = tensorflow_datasets.builder(row.builder, data_dir=root, file_format="array_record", try_gcs=False)
      builder.download_and_prepare()
    except tensorflow_datasets.core.registered.DatasetNotFoundError:
      known = [
        *(n for n, r in catalog.CATALOG.items() if r.builder),
        *tensorflow_datasets.list_builders(with_community_datasets=False),
      ]
      raise schema.ConfigError(f"unknown dataset {name!r}.{schema.nearest(name, known)}") from None
    except (AssertionError, OSError) as error:  # files to be fetched by hand, as for ImageNet; no network, no space
      raise schema.ConfigError(f"{name} cannot be prepared in {root}: {error}") from error
  return f"{name} is prepared at {tfds.builder_dir(row.builder, data_dir)}"


def main() -> None:
  """Reads flags, prepares, says where."""
  parser = cli.Parser("prepare", __doc__)
  parser.add_argument("name", help="a dataset of the catalog, or any TFDS builder: digits, cifar10, mnist:3.0.1")
  parser.add_argument(
    "--data_dir",
    type=functools.partial(cli.path, bare=True),
    help="TFDS data directory; default $TFDS_DATA_DIR, else ~/tensorflow_datasets",
  )
  arguments = parser.parse()
  os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # TFDS encodes with TensorFlow, which must not see it
  print(prepare(arguments.name, arguments.data_dir and str(arguments.data_dir)))


if __name__ == "__main__":
  cli.main(main)

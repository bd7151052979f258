"""Writes a dataset to a disk or a bucket, once.

    python -m vit_jax.prepare digits [--data_dir=DIR]
    python -m vit_jax.prepare NAME --data.name=folder --data.path=/photos [--data.KEY=VALUE] [--size=256]

The first is a dataset of the catalog, or of any TFDS builder. The second is a corpus of your own, of whatever a reader
reads: docs/data.md. Both are array_record datasets of TFDS, and the same command goes on after a kill.

    python -m vit_jax.prepare --show=configs/digits.py [--config.KEY=VALUE] [--out=show.png]

writes nothing but a picture: images of a run's first batch as the model will see them, classes, and what stands out.
"""

import argparse
import contextlib
import fcntl
import functools
import os
from collections.abc import Mapping
from typing import Annotated

import ml_collections

from vit_jax import cli, files, flags, paths, runtime, schema
from vit_jax.corpora import beam, survey, write
from vit_jax.corpora.duplicates import DISTANCE
from vit_jax.corpora.plan import Options
from vit_jax.data import catalog, decoding, digits
from vit_jax.data.readers import tfds
from vit_jax.schema.errors import some

OF_A_CORPUS = ("size", "shards", "dedup_against", "beam")  # flags


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


def fetched(name: str, row: catalog.Row, root) -> None:
  """ConfigError, before anything is downloaded, with what is missing of the files that are fetched by hand, and how."""
  manual = os.path.join(root, "downloads", "manual")
  missing = [part for part in row.manual if not os.path.exists(os.path.join(manual, part))]
  if missing:
    raise schema.ConfigError(
      f"{name} is fetched by hand: {row.steps}. It has to be at {manual}, where {', '.join(missing)} "
      f"{'is' if len(missing) == 1 else 'are'} missing; then the same command again"
    )


def _write(name, row, root, data_dir):
  import tensorflow_datasets

  fetched(name, row, root)
  if row.caution:
    runtime.say(f"{name}: " + row.caution.format(manual=os.path.join(root, "downloads", "manual")))
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


def input_choice(words: Mapping[str, str]) -> dict:
  """The choice that `--data.KEY=VALUE` make, bound and plain. ConfigError at the flag, as for `--config.data.KEY`."""
  config = ml_collections.ConfigDict({"data": ml_collections.ConfigDict(type_safe=False)})
  for key, text in words.items():
    flags.edit(config, f"data.{key}", text)
  with schema.at("data"):
    if "name" not in config["data"]:
      readers = some(name for name, row in catalog.CATALOG.items() if row.classes is None)
      raise schema.ConfigError(f"missing; --data.name=READER says how the input is stored: {readers}", "name")
    return schema.plain(schema.convert(config["data"], Annotated[schema.Choice, catalog.READERS]))


def corpus(arguments) -> list[str]:
  """Writes the corpus of the command line; lines about it."""
  choice = input_choice(arguments.data)
  root = tfds.data_dir(arguments.data_dir and str(arguments.data_dir))
  if paths.in_bucket(root):
    paths.path(root, bare=True)
  against = tuple(filter(None, (arguments.dedup_against or "").split(",")))
  options = Options(
    arguments.size, arguments.shards, arguments.seed, against, arguments.dedup_distance if against else 0
  )
  if arguments.beam is not None:
    return beam.write(arguments.name, choice, options, root, arguments.beam.split(), arguments.max_rejected)
  return write.write(
    arguments.name, choice, options, root, arguments.processes or decoding.cores(), arguments.max_rejected
  )


def show(arguments: argparse.Namespace) -> list[str]:
  """Draws the contact sheet of the config of the command line; lines about it."""
  import jax

  from vit_jax import build, config, preview  # all that a run is made of: what prepares does without

  jax.config.update("jax_platforms", "cpu")  # an accelerator may be at work on another run
  changes = arguments.overrides | {"init.from": "none"}  # no weights are read
  run = build.complete(config.resolve(flags.load(arguments.show, changes)))
  return preview.write(run, arguments.out or cli.path("show.png"), arguments.sample or preview.SAMPLE)


def _check(arguments):
  """ConfigError for a flag that the form of the command which is written does not take."""
  if arguments.show is not None:
    form, others = (
      "--show takes all of its config and --config.KEY=VALUE",
      (*OF_A_CORPUS, "name", "data_dir", "processes"),
    )
    others += tuple(f"data.{key}" for key in arguments.data)
  else:
    form, others = "it is for --show=CONFIG", ("out", "sample", *(f"config.{key}" for key in arguments.overrides))
  values = vars(arguments)
  if odd := [name for name in others if "." in name or values[name] is not None]:
    raise schema.ConfigError(f"{'NAME' if odd[0] == 'name' else '--' + odd[0].replace('_', '-')}: {form}; see --help")
  if arguments.show is None and arguments.name is None:
    raise schema.ConfigError("name: missing; --help says what it is")
  for flag in OF_A_CORPUS if arguments.show is None and not arguments.data else ():
    if values[flag] is not None:
      raise schema.ConfigError(
        f"--{flag.replace('_', '-')}: it is for a corpus, whose input --data.name and its keys say; see --help"
      )


def number(kind):
  """A `type` of argparse: what the schema takes for this kind of number."""

  def parse(text):
    try:
      return schema.convert(schema.Text(text), kind)
    except schema.ConfigError as error:
      raise argparse.ArgumentTypeError(str(error)) from error

  return parse


def main() -> None:
  """Reads flags, prepares, says where."""
  parser = cli.Parser("prepare", __doc__, data=True)
  count = number(schema.Count)
  parser.add_argument(
    "name",
    nargs="?",
    help="a dataset of the catalog, or any TFDS builder: digits, cifar10, mnist:3.0.1; or that of your corpus",
  )
  parser.add_argument(
    "--data_dir",
    type=functools.partial(cli.path, bare=True),
    help="TFDS data directory; default $TFDS_DATA_DIR, else ~/tensorflow_datasets",
  )
  parser.add_argument("--size", type=count, help="pixels of an image's smaller side, at most; default as they are")
  parser.add_argument("--shards", type=count, help="files of each split; default about 256 MiB each")
  parser.add_argument(
    "--seed", type=number(Annotated[int, schema.Range(0, 2**31 - 1)]), default=0, help="of the order of images"
  )
  parser.add_argument(
    "--max-rejected", type=number(schema.Fraction), default=0.01, help="share of the images that may be left out as bad"
  )
  parser.add_argument("--processes", type=count, help="default as many as cores; the bytes are the same")
  parser.add_argument(
    "--dedup-against", metavar="DATASET[,...]", help="leave out images of these test sets: of the catalog, or paths"
  )
  parser.add_argument(
    "--dedup-distance",
    type=number(Annotated[int, schema.Range(0, 31)]),
    default=DISTANCE,
    help=f"bits of 64 in which the hashes of two pictures of one thing may differ; default {DISTANCE}",
  )
  parser.add_argument("--beam", metavar="OPTIONS", help="by Apache Beam, '--runner=DataflowRunner --project=...'")
  parser.add_argument("--show", metavar="CONFIG", help=f"{cli.CONFIG}; draws what a run would see of its data")
  parser.add_argument("--out", type=cli.path, metavar="FILE", help="of --show, a PNG; default show.png")
  parser.add_argument(
    "--sample",
    type=number(Annotated[int, schema.Range(1, survey.LARGEST)]),
    metavar="IMAGES",
    help="of --show, that are looked at for what stands out; default 4,096",
  )
  arguments = parser.parse()
  _check(arguments)
  os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")  # TFDS encodes with TensorFlow, which must not see it
  if arguments.show is not None:
    print(*show(arguments), sep="\n")
    return
  if arguments.data:
    print(*corpus(arguments), sep="\n")
    return
  if known := catalog.about(arguments.name):
    print(known)
  print(prepare(arguments.name, arguments.data_dir and str(arguments.data_dir)))


if __name__ == "__main__":
  cli.main(main)

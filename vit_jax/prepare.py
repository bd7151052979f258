"""Prepares datasets, draws contact sheets, and checks image folders.

    python -m vit_jax.prepare digits [--data_dir=DIR]
    python -m vit_jax.prepare NAME --data.name=folder --data.path=/photos [--data.KEY=VALUE] [--size=256]

The first command writes a dataset of the catalog, or of any TFDS builder. The second command writes your own corpus
from any data that a reader supports: docs/guides/your-data.md. Both write array_record datasets of TFDS, on a disk or
in a bucket. After a kill, the same command continues.

    python -m vit_jax.prepare --show=digits [--config.KEY=VALUE] [--out=show.png]

draws a contact sheet and writes no dataset. The sheet shows images of a run's first batch as the model will see them,
the classes, and outliers.

    python -m vit_jax.prepare --check=/photos [--move-bad=DIR]

decodes every image of a folder and lists the bad ones. --move-bad moves them to another folder, which is created if
necessary. Exit code 0 means that all images in the folder are good, after the move. Exit code 1 means that bad images
remain in it. Exit code 2 means that a run with the default settings cannot read the folder, for example because it has
no folders of classes.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from vit_jax import cli, runtime, schema
from vit_jax.config import flags
from vit_jax.corpora import beam, check, stats, writer
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.corpora.duplicates import DISTANCE
from vit_jax.corpora.plan import CorpusOptions
from vit_jax.data import catalog, decoding, outputs
from vit_jax.data.images import ImageError
from vit_jax.data.readers import tfds
from vit_jax.schema.errors import format_names
from vit_jax.storage import paths

OF_A_CORPUS = ("size", "shards", "dedup_against", "beam")  # flags
FORMS = (  # flags of the three forms of the command
  (
    *("--data_dir", "--size", "--shards", "--seed", "--max-rejected", "--processes", "--dedup-against"),
    *("--dedup-distance", "--beam"),
  ),
  ("--show", "--out", "--sample"),
  ("--check", "--move-bad"),
)


def parse_data_choice(words: Mapping[str, str]) -> dict[str, Any]:
  """Builds the data choice that the flags `--data.KEY=VALUE` describe.

  Args:
    words: maps keys to texts.

  Returns:
    The bound choice as plain values.

  Raises:
    ConfigError: a key is unknown or has an invalid value, or the reader is not named.
  """
  choice = flags.parse_choice(words, "data")
  with schema.enter_key("data"):
    if "name" not in choice:
      readers = format_names(name for name, row in catalog.CATALOG.items() if row.classes is None)
      raise schema.ConfigError(f"missing. Set --data.name=READER to specify how the input is stored: {readers}", "name")
    return schema.to_plain(schema.convert(choice, Annotated[schema.Choice, catalog.READERS]))


def write_corpus(arguments: argparse.Namespace) -> list[str]:
  """Writes the corpus that the command line describes.

  Args:
    arguments: parsed flags.

  Returns:
    Lines for the screen.
  """
  choice = parse_data_choice(arguments.data)
  root = tfds.find_data_dir(arguments.data_dir and str(arguments.data_dir))
  if paths.is_in_bucket(root):
    paths.resolve_path(root, bare=True)
  outputs.check_output_location(root / arguments.name, choice, "--data_dir")
  against = tuple(filter(None, (arguments.dedup_against or "").split(",")))
  distance = arguments.dedup_distance if against else 0
  options = CorpusOptions(arguments.size, arguments.shards, arguments.seed, against, distance)
  if arguments.beam is not None:
    return beam.write(arguments.name, choice, options, root, arguments.beam.split(), arguments.max_rejected)
  processes = arguments.processes or decoding.count_usable_cores()
  return writer.write(arguments.name, choice, options, root, processes, arguments.max_rejected)


def draw_contact_sheet(arguments: argparse.Namespace) -> list[str]:
  """Draws the contact sheet of a config.

  Args:
    arguments: parsed flags.

  Returns:
    Lines for the screen.
  """
  import jax

  from vit_jax import config
  from vit_jax.reports import preview  # imports all modules of a run, which preparation does not need
  from vit_jax.training import build

  jax.config.update("jax_platforms", "cpu")  # another run may be using the accelerator
  changes = arguments.overrides | {"init.from": "none"}  # no weights are read
  run = build.complete(config.resolve(flags.load_config(arguments.show, changes)))
  out = arguments.out or cli.parse_path("show.png")
  outputs.check_output_location(out, run.data, "--out")
  return preview.write_sheet(run, out, arguments.sample or preview.SAMPLE)


def check_folder(arguments: argparse.Namespace) -> None:
  """Checks an image folder and prints the result. Ends the program with exit code 1 if bad images remain in the folder.

  Args:
    arguments: parsed flags.

  Raises:
    ConfigError: the folder cannot be read, or no run with the default settings can read it.
  """
  try:
    report = check.check_images(
      paths.expand_home(arguments.check), arguments.move_bad and paths.expand_home(arguments.move_bad)
    )
  except ImageError as error:
    raise schema.ConfigError(str(error)) from error
  print(*report.lines, sep="\n", flush=True)
  if report.problem:
    raise schema.ConfigError(f"--check: a run with the default settings cannot read this folder: {report.problem}")
  if report.remaining:
    sys.exit(1)


def _find_flag(name: str) -> str:
  """Returns the flag, key or argument that has a name in the parsed flags."""
  return {"name": "NAME", "data_dir": "--data_dir"}.get(name, "--" + (name if "." in name else name.replace("_", "-")))


def _check_allowed(arguments: argparse.Namespace) -> None:
  """Raises ConfigError for a flag that does not belong to the form of the command."""
  if arguments.check is not None:
    form = "--check=PATH can only be combined with --move-bad=DIR"
    others = [*OF_A_CORPUS, "name", "data_dir", "processes", "show", "out", "sample"]
    others += [*(f"data.{key}" for key in arguments.data), *(f"config.{key}" for key in arguments.overrides)]
  elif arguments.show is not None:
    form = "--show can only be combined with --config.KEY=VALUE and options of --show"
    others = [*OF_A_CORPUS, "name", "data_dir", "processes", "move_bad", *(f"data.{key}" for key in arguments.data)]
  else:
    form = "only valid with --show=CONFIG"
    others = ["out", "sample", *(f"config.{key}" for key in arguments.overrides)]
    if arguments.move_bad is not None:
      raise schema.ConfigError("--move-bad: only valid with --check=PATH. See --help")
  values = vars(arguments)
  if odd := [name for name in others if "." in name or values[name] is not None]:
    raise schema.ConfigError(f"{_find_flag(odd[0])}: {form}. See --help")
  if arguments.check is not None:
    return
  if arguments.show is None and arguments.name is None:
    raise schema.ConfigError(
      "name: missing. Name a dataset, for example `python -m vit_jax.prepare digits`, or use --check=FOLDER to check a "
      "folder of images. See --help"
    )
  for flag in OF_A_CORPUS if arguments.show is None and not arguments.data else ():
    if values[flag] is not None:
      raise schema.ConfigError(
        f"--{flag.replace('_', '-')}: only for a corpus, with input from --data.name and its keys. See --help"
      )


def _execute_command(arguments: argparse.Namespace) -> list[str]:
  """Executes the command and returns lines for the screen."""
  if arguments.show is not None:
    return draw_contact_sheet(arguments)
  if arguments.data:
    return write_corpus(arguments)
  if known := catalog.describe_dataset(arguments.name):
    print(known)
  return [prepare_dataset(arguments.name, arguments.data_dir and str(arguments.data_dir))]


def _make_parser() -> cli.Parser:
  parser = cli.Parser("prepare", __doc__, data=True, forms=FORMS)
  count = cli.make_number_parser(schema.Count)
  parser.add_argument(
    "name",
    nargs="?",
    help="a dataset of the catalog, any TFDS builder (digits, cifar10, mnist:3.0.1), or the name of your corpus",
  )
  parser.add_argument(
    "--data_dir",
    type=cli.parse_data_directory,
    help="TFDS data directory; default $TFDS_DATA_DIR, else ~/tensorflow_datasets",
  )
  parser.add_argument("--size", type=count, help="largest smaller side of an image in pixels; default: unchanged")
  parser.add_argument("--shards", type=count, help="files of each split; default: about 256 MiB each")
  parser.add_argument(
    "--seed",
    type=cli.make_number_parser(Annotated[int, schema.Range(0, 2**31 - 1)]),
    default=0,
    help="seed of the order of images",
  )
  parser.add_argument(
    "--max-rejected",
    type=cli.make_number_parser(schema.Fraction),
    default=0.01,
    help="largest share of images that may be rejected",
  )
  parser.add_argument("--processes", type=count, help="worker processes, without effect on the output; default: cores")
  parser.add_argument(
    "--dedup-against", metavar="DATASET[,...]", help="leave out images of these test sets (catalog names or paths)"
  )
  parser.add_argument(
    "--dedup-distance",
    type=cli.make_number_parser(Annotated[int, schema.Range(0, 31)]),
    default=DISTANCE,
    help=f"maximum number of different bits between the 64-bit hashes of duplicates; default {DISTANCE}",
  )
  parser.add_argument(
    "--beam",
    metavar="OPTIONS",
    help="run with Apache Beam and these options, such as '--runner=DataflowRunner --project=...'",
  )
  parser.add_argument(
    "--show", metavar="CONFIG", help=f"{cli.CONFIG}; write a picture of training images as a run uses them"
  )
  parser.add_argument("--out", type=cli.parse_path, metavar="FILE", help="PNG file for --show; default show.png")
  parser.add_argument(
    "--sample",
    type=cli.make_number_parser(Annotated[int, schema.Range(1, stats.LARGEST)]),
    metavar="IMAGES",
    help="number of images that --show searches for outliers; default 4,096",
  )
  parser.add_argument(
    "--check", type=cli.parse_directory, metavar="PATH", help="decode all images of a folder, see above"
  )
  parser.add_argument(
    "--move-bad", type=cli.parse_directory, metavar="DIR", help="with --check: move bad images to DIR, which is created"
  )
  return parser


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags, prepares data and prints the location.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  arguments = _make_parser().parse(words)
  _check_allowed(arguments)
  # TFDS encodes with TensorFlow, which must not use the accelerator
  os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
  with runtime.convert_stop_signals():
    if arguments.check is not None:
      check_folder(arguments)
    else:
      print(*_execute_command(arguments), sep="\n")


if __name__ == "__main__":
  cli.run_verb(main)

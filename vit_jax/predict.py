"""Predicts classes of images with any weights: python -m vit_jax.predict --weights=runs/a photos/ [--out=classes.csv]

A PATH is an image file, a directory that is searched recursively for images, or a manifest of JSON lines such as
{"path": "a.jpg"}. The PATH - reads paths from standard input, one per line. This is also the default if no PATH is
given. Weights are the workdir of a run, or any file that `vit_jax.convert` reads. Images are prepared as in the
evaluation of the run, or as the publisher of the file specifies.

--out=FILE.csv, .jsonl or .npz has a row for each file, in the order of the PATHs. Directories are read in order of
file names. A row contains the best five classes with their probabilities, or the reason why the file is bad.
--features adds the input of the head (.jsonl, .npz). --features-of=cls, patches or cls_patches adds the class token
after the last norm, the mean of the patches, or both. Without --out the first rows are printed. Exit code 1 means that
some files are bad.
"""

import argparse
import contextlib
import pathlib
import sys
import time
import typing
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax

from vit_jax import cli, models, runtime, schema
from vit_jax.corpora.screen import ProgressScreen
from vit_jax.inference import batches, inputs, output, stored
from vit_jax.inference.batches import FileResult
from vit_jax.runtime import print_line
from vit_jax.schema import escape_line, format_amount
from vit_jax.schema.errors import format_names, make_printable
from vit_jax.storage import hub_files

EXIT_BAD = 1  # some files are bad; all others have predictions
NAMED = 5  # maximum number of bad files on the screen


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags and weights, predicts and writes.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  parser = cli.Parser("predict", __doc__)
  parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders, manifests, or - for paths on stdin")
  parser.add_argument("--weights", required=True, help="a file of weights, a workdir or hf:OWNER/NAME")
  parser.add_argument("--out", type=cli.parse_path, metavar="FILE", help="a row for each image: .csv, .jsonl or .npz")
  parser.add_argument("--features", action="store_true", help="write the input of the head to that file (.jsonl, .npz)")
  parser.add_argument(
    "--features-of",
    choices=typing.get_args(models.Features),
    help="with --features: input of the head (default), class token, mean of the patches, or both",
  )
  cli.add_weight_options(parser)
  parser.add_argument(
    "--image-size",
    type=cli.make_number_parser(schema.Count),
    metavar="N",
    help="side of the images in pixels; default: the size of the weights",
  )
  parser.add_argument(
    "--batch",
    type=cli.make_number_parser(schema.Count),
    default=batches.TOGETHER,
    help="images at a time on each device",
  )
  arguments = parser.parse(words)
  features: models.Features | None = arguments.features_of or ("head" if arguments.features else None)
  output.check_output(arguments.out, bool(features))
  chosen = inputs.collect_files(_read_paths(arguments.paths), sys.stdin.buffer)
  with runtime.join_processes(again="starts it again") as watch:
    if jax.process_count() > 1:
      raise schema.ConfigError(
        f"{jax.process_count()} processes, but predict runs in one process. Give each host its own PATHs and unset "
        f"VITJAX_PROCESSES"
      )
    with watch.phase("restore"):
      use = load_weights(arguments)
    if not use.classes and not features:
      raise schema.ConfigError(
        f"--weights: {arguments.weights} has no head, so it cannot predict classes. Add --features"
      )
    if features:
      with schema.enter_key("--features-of"):
        # Raises an error before files are read or written.
        models.make_functional(use.description).select_features(features)
    _print_model(hub_files.pin_commit(arguments.weights), use, chosen)
    with watch.phase("evaluation"):
      computed = batches.predict_files(use, chosen.files, jax.local_devices(), features, watch.poll, arguments.batch)
      bad = _write_rows(computed, len(chosen.files), use.classes, arguments.out)
  if bad:
    print_line(
      f"  {len(bad):,} of {format_amount(len(chosen.files), 'file')} {'is' if len(bad) == 1 else 'are'} bad: "
      + "; ".join(bad[:NAMED])
      + "; ..." * (len(bad) > NAMED)
    )
    sys.exit(EXIT_BAD)


def _read_paths(paths: Sequence[str]) -> Sequence[str]:
  """Returns the PATHs. If there are none and standard input is a pipe, returns its lines."""
  if not paths and (sys.stdin is None or sys.stdin.isatty()):
    raise schema.ConfigError(
      "no PATH. Name files, folders or a manifest (.jsonl), or pipe paths into the command, one per line"
    )
  return paths or [inputs.STDIN]


def load_weights(arguments: argparse.Namespace) -> stored.StoredWeights:
  """Loads the weights of the command line.

  Args:
    arguments: flags of the command: `weights`, `ema`, `image_size` and `prefix`.

  Returns:
    The model with its preprocessing and class names.

  Raises:
    ConfigError: the weights cannot be loaded.
  """
  try:
    return stored.load(arguments.weights, arguments.ema, arguments.image_size, prefix=arguments.prefix)
  except schema.ConfigError as error:
    raise schema.ConfigError(f"--weights: {error}") from error


def _print_model(weights: str, use: stored.StoredWeights, chosen: Any) -> None:
  """Prints the model and its notes, and the number of ignored files."""
  print_line(f"{weights}: {use.description}")
  for note in use.notes:
    print_line(f"  {make_printable(note)}")
  if chosen.ignored:
    print_line(
      "  ignored: " + format_names(f"{count:,} {suffix or 'files'}" for suffix, count in sorted(chosen.ignored.items()))
    )


def _write_rows(
  computed: Iterator[list[FileResult]], count: int, classes: Sequence[str], out: pathlib.Path | None
) -> list[str]:
  """Writes or prints all rows and the throughput. Returns descriptions of the bad files."""
  bad, start_time = [], time.monotonic()
  with contextlib.ExitStack() as stack:
    screen = stack.enter_context(ProgressScreen("predict", count))
    rows = _count_rows(computed, screen, bad)
    lines = [] if out else list(output.format_lines(rows, classes))
    if out:
      output.write_rows(out, rows, count, classes)
  for line in lines:
    print_line(line)
  seconds = time.monotonic() - start_time
  written = f", written to {out}" if out else ""
  print_line(f"  {format_amount(count, 'file')} in {seconds:,.1f} s, with compilation{written}")
  return bad


def _count_rows(computed: Iterable[list[FileResult]], screen: ProgressScreen, bad: list[str]) -> Iterator[FileResult]:
  """Yields the rows one by one, shows their number on the screen, and appends descriptions of bad files to `bad`."""
  for some_rows in computed:
    reasons = [f"{escape_line(row.file)} ({escape_line(row.reason)})" for row in some_rows if row.reason is not None]
    bad += reasons
    screen.add(len(some_rows), len(reasons))
    yield from some_rows


if __name__ == "__main__":
  cli.run_verb(main)

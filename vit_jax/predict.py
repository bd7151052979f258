"""Predicts classes of images by any weights: python -m vit_jax.predict --weights=runs/a photos/ [--out=classes.csv]

A PATH is an image file; a folder, of which all images below count; a manifest of JSON lines, {"path": "a.jpg"}; or -,
paths on stdin, one a line, which are read too where there is no PATH. Weights are a run's workdir, or any file that
`vit_jax.convert` reads. Images are prepared as for the run's own evaluation, or as the publisher of the file says.

--out=FILE.csv, .jsonl or .npz has a row for each file in the order of the PATHs, folders in order of name: the best
five classes by name with their probabilities, or the reason why the file is bad; with --features also what goes into
the head (.jsonl, .npz), or with --features-of=cls, patches or cls_patches the class token after the last norm, the mean
of the patches, or both. Without it the first rows are shown. Exit code 1 says that there were bad files.
"""

import contextlib
import sys
import time
import typing
from collections.abc import Iterable, Iterator

import jax

from vit_jax import cli, models, runtime, schema
from vit_jax.corpora.screen import Screen
from vit_jax.inference import batches, inputs, output, stored
from vit_jax.inference.batches import Row
from vit_jax.runtime import say
from vit_jax.schema import amount
from vit_jax.schema.errors import readable, some

EXIT_BAD = 1  # some files are bad; all others are predicted
NAMED = 5  # bad files on the screen


def main() -> None:
  """Reads flags and weights, predicts, writes."""
  parser = cli.Parser("predict", __doc__)
  parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders, manifests, or - for paths on stdin")
  parser.add_argument("--weights", required=True, help="a file of weights or a workdir")
  parser.add_argument("--out", type=cli.path, metavar="FILE", help="a row for each image: .csv, .jsonl or .npz")
  parser.add_argument("--features", action="store_true", help="what goes into the head, in that file (.jsonl, .npz)")
  parser.add_argument(
    "--features-of",
    choices=typing.get_args(models.Features),
    help="--features of what: head unless given; class token, mean of the patches, both",
  )
  cli.add_weight_options(parser)
  parser.add_argument(
    "--image-size", type=cli.number(schema.Count), metavar="N", help="side in pixels, if not that of the weights"
  )
  parser.add_argument(
    "--batch", type=cli.number(schema.Count), default=batches.TOGETHER, help="images at a time on each device"
  )
  arguments = parser.parse()
  features = arguments.features_of or ("head" if arguments.features else None)
  output.check(arguments.out, bool(features))
  chosen = inputs.listed(_words(arguments.paths), sys.stdin.buffer)
  with runtime.joined(again="starts it again") as watch:
    if jax.process_count() > 1:
      raise schema.ConfigError(
        f"{jax.process_count()} processes; predict is one: give each host its own PATHs and no VITJAX_PROCESSES"
      )
    with watch.phase("restore"):
      use = _loaded(arguments)
    if not use.classes and not features:
      raise schema.ConfigError(f"--weights: {arguments.weights} has no head, and so predicts no class; add --features")
    if features:
      with schema.at("--features-of"):
        models.functional(use.description).features_of(features)  # an error before anything is read or written
    _introduce(arguments.weights, use, chosen)
    with watch.phase("evaluation"):
      computed = batches.predictions(use, chosen.files, jax.local_devices(), features, watch.poll, arguments.batch)
      bad = _finish(computed, len(chosen.files), use.classes, arguments.out)
  if bad:
    say(
      f"  {len(bad):,} of {amount(len(chosen.files), 'file')} {'is' if len(bad) == 1 else 'are'} bad: "
      + "; ".join(bad[:NAMED])
      + "; ..." * (len(bad) > NAMED)
    )
    sys.exit(EXIT_BAD)


def _words(paths) -> list[str]:
  """The PATHs, or where there are none stdin, if anything may come from it."""
  if not paths and (sys.stdin is None or sys.stdin.isatty()):
    raise schema.ConfigError("no PATH; name files, folders, a manifest (.jsonl), or pipe paths into it, one a line")
  return paths or [inputs.STDIN]


def _loaded(arguments) -> stored.Stored:
  """The weights of the command line."""
  try:
    return stored.load(arguments.weights, arguments.ema, arguments.image_size, prefix=arguments.prefix)
  except schema.ConfigError as error:
    raise schema.ConfigError(f"--weights: {error}") from error


def _introduce(weights, use, chosen) -> None:
  """Says what is used, and of which files nothing is."""
  say(f"{weights}: {use.description}")
  for note in use.notes:
    say(f"  {readable(note)}")
  if chosen.ignored:
    say("  no images: " + some(f"{count:,} {suffix or 'files'}" for suffix, count in sorted(chosen.ignored.items())))


def _finish(computed: Iterator[list[Row]], count: int, classes, out) -> list[str]:
  """Writes or shows all rows, and says how fast that was; words about those that are bad."""
  bad, began = [], time.monotonic()
  with contextlib.ExitStack() as stack:
    screen = stack.enter_context(Screen("predict", count))
    rows = _counted(computed, screen, bad)
    lines = [] if out else list(output.lines(rows, classes))
    if out:
      output.write(out, rows, count, classes)
  for line in lines:
    say(line)
  rate = count / max(1e-3, time.monotonic() - began)
  say(f"  {amount(count, 'file')}, {rate:,.0f} a second with compiling" + (f", in {out}" if out else ""))
  return bad


def _counted(computed: Iterable[list[Row]], screen: Screen, bad: list[str]) -> Iterator[Row]:
  """The rows, one by one, counted on the screen; those that are bad go to `bad` in words."""
  for some_rows in computed:
    reasons = [f"{readable(row.file)} ({readable(row.reason)})" for row in some_rows if row.reason is not None]
    bad += reasons
    screen.add(len(some_rows), len(reasons))
    yield from some_rows


if __name__ == "__main__":
  cli.main(main)

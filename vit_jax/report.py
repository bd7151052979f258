"""Makes a page to look at, of runs, sweeps or weights: python -m vit_jax.report runs/digits

One HTML file that loads nothing from anywhere: what came of it and what it cost, the curves, what the model saw and
what it got wrong, and what is inside of it. Several PATHs are compared; of a sweep, all trials that have begun. `train`
and `sweep` end by making one in their workdir.
"""

import pathlib
import time

from vit_jax import cli
from vit_jax.reports import report
from vit_jax.runtime import say


def main() -> None:
  """Reads flags, writes the page."""
  parser = cli.Parser("report", __doc__)
  parser.add_argument(
    "paths", nargs="+", type=cli.path, metavar="PATH", help="a workdir of a run or a sweep, or a file of weights"
  )
  parser.add_argument(
    "--out", type=cli.path, metavar="FILE", help="ends in .html; by default report.html in the one workdir, else here"
  )
  arguments = parser.parse()
  began = time.perf_counter()
  out = arguments.out or default(arguments.paths)
  report.make(arguments.paths, out)
  say(f"  report    {out}   made in {time.perf_counter() - began:.1f} s")


def default(places: list[pathlib.Path]) -> pathlib.Path:
  """Where the page goes that nobody gave a name."""
  return places[0] / report.NAME if len(places) == 1 and places[0].is_dir() else pathlib.Path(report.NAME)


if __name__ == "__main__":
  cli.main(main)

"""Writes an HTML report on runs, sweeps or weights: python -m vit_jax.report runs/digits

The report is one HTML file that loads no other files. It shows results and cost, curves, training images, misclassified
images, and the model's weights and attention. Several PATHs are compared. A sweep is shown with all trials that have
started. `train` and `sweep` write a report in their workdir at the end. With --export, the metrics of the runs are sent
to a tracker instead. The same command later sends only new lines.
"""

import pathlib
import sys
import time
from collections.abc import Sequence

from vit_jax import cli, schema
from vit_jax.inference import inputs
from vit_jax.reports import outcomes, report, trackers
from vit_jax.runtime import print_line
from vit_jax.storage import hub_files


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags and writes the report.

  Args:
    words: arguments. The default is the arguments of the command line.
  """
  parser = cli.Parser("report", __doc__)
  images_help = "images or folders for attention maps; default: test images of the run"
  limit = "largest number of images on which the best run is evaluated again to find its errors"
  out_help = "output file (.html); default: report.html in the only workdir, else in the current directory"
  parser.add_argument(
    "paths", nargs="+", type=cli.parse_weights, metavar="PATH", help="a run's or sweep's workdir, or weights"
  )
  parser.add_argument("--out", type=cli.parse_path, metavar="FILE", help=out_help)
  parser.add_argument("--images", type=cli.parse_path, action="append", default=[], metavar="PATH", help=images_help)
  parser.add_argument(
    "--limit", type=cli.make_number_parser(schema.Count), default=outcomes.LIMIT, metavar="N", help=limit
  )
  parser.add_argument(
    "--export", choices=trackers.TRACKERS, help="send the metrics of the runs to this tracker instead of writing a page"
  )
  parser.add_argument("--project", default="vit_jax", metavar="NAME", help="project name in the tracker")
  arguments = parser.parse(words)
  if arguments.export:
    export_metrics(
      [run.workdir for run in report.read_contents(arguments.paths).runs], arguments.export, arguments.project
    )
    return
  start_time = time.perf_counter()
  places = [hub_files.resolve_weights(path) for path in arguments.paths]
  out = arguments.out or choose_output_path(places)
  images = inputs.collect_files(map(str, arguments.images), sys.stdin.buffer).files if arguments.images else []
  report.make_report(places, out, images, arguments.limit)
  print_line(f"  report    {out}   made in {time.perf_counter() - start_time:.1f} s")


def export_metrics(workdirs: list[pathlib.Path], to: str, project: str) -> None:
  """Sends the metrics of runs to a tracker.

  Runs without metrics are skipped with a message, if other runs have metrics.

  Args:
    workdirs: workdirs of the runs.
    to: name of the tracker.
    project: project in the tracker.

  Raises:
    ConfigError: `workdirs` is empty, or the tracker cannot be used.
  """
  if not workdirs:
    raise schema.ConfigError(f"--export: no PATH is a run with metrics for {to}. Name a workdir")
  measured = [workdir for workdir in workdirs if trackers.has_exportable_rows(workdir)]
  for workdir in workdirs:
    if measured and workdir not in measured:
      print_line(f"{workdir}: no measurements yet, skipped")
    else:
      print_line(trackers.export_metrics(workdir, to, project))


def choose_output_path(places: list[pathlib.Path]) -> pathlib.Path:
  """Returns the default path of the report: in the workdir if there is only one workdir, otherwise in the current
  directory.

  Args:
    places: PATHs of the command line.
  """
  return places[0] / report.NAME if len(places) == 1 and places[0].is_dir() else pathlib.Path(report.NAME)


if __name__ == "__main__":
  cli.run_verb(main)

"""Plans a run on TPUs that are not attached: python -m vit_jax.plan --config=vit_i21k:L/16 --topology=v3-32

The command compiles the train step of the config with the TPU compiler (the extra tpu). No TPU is needed. For each
slice it reports whether the run fits, the time of a step and its bottleneck, and the requirements of the whole
run. The data of a dataset by name need not be present, because the catalog contains the number of images. Image
folders and other files of your own must be present. `--search` tries meshes, rematerialisation, micro-batches and fused
attention, and lists the best combinations of hours and memory. During compilation, a line on standard error reports
every 15 seconds which program is compiled, and for how long.

The report marks runs with hosts that cannot feed their chips. Pass the measured number of images that one host prepares
per second as `--host-rate`. By default this number is estimated from the cores of the host. The figures are not
measurements on a TPU. Their meaning is printed below the table.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Sequence

from vit_jax import cli, config, models, runtime
from vit_jax.config import flags
from vit_jax.data import catalog
from vit_jax.models import overview
from vit_jax.parallel import hardware
from vit_jax.planning import estimate, search, tables
from vit_jax.planning.progress import Progress
from vit_jax.schema import ConfigError
from vit_jax.storage import files, paths
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun
from vit_jax.trees import count_values

INTERVAL = 15.0  # seconds between two lines about progress


def main(words: Sequence[str] | None = None) -> None:
  """Reads the flags, plans each slice and prints the table.

  Args:
    words: arguments. The default is the arguments of the command line.

  Raises:
    ConfigError: a flag or the config is invalid, or no plan is possible on any slice.
  """
  args, slices, run = parse_flags(words)
  plans, fronts = [], []
  kernels = search.is_fused(run) or (args.search and search.supports_fused(run))
  with (
    runtime.end_on_stop_signals(estimate.delete_schedules),
    Progress().print_regularly(INTERVAL) as progress,
    estimate.use_tpu_compiler(kernels) as schedules,
  ):
    progress.start(f"{run.model.name}: counting the parameters")
    print_model(run, args.parameters)
    make_plan = functools.partial(
      estimate.make_plan, schedules=schedules, price=args.price, host_rate=args.host_rate, start=progress.start
    )
    for slice_ in slices:
      made = []
      for plan in search.generate_plans(run, slice_, make_plan) if args.search else [make_plan(run, slice_)]:
        if len(slices) > 1 or args.search or not plan.problem:  # the error contains the problem of a single plan
          print(tables.format_plan(plan), flush=True)
        made.append(plan)
        if args.json:  # after each plan, so that an error in the next one loses no result
          files.write_text(args.json, json.dumps([dataclasses.asdict(p) for p in plans + made], indent=2) + "\n")
      plans += search.rank_plans(made)
      fronts += [search.find_pareto_front(made)] if args.search else []
  if all(plan.problem for plan in plans):
    raise ConfigError(describe_problems(plans))
  text = [tables.format_plans(plans), *(tables.format_front(front) for front in fronts if front), tables.METHOD]
  print("", *text, sep="\n\n")


def parse_flags(words: Sequence[str] | None) -> tuple[argparse.Namespace, list[hardware.Slice], BoundRun]:
  """Parses the flags.

  Args:
    words: arguments, or None for those of the command line.

  Returns:
    The flags, the slices and the run.

  Raises:
    ConfigError: a flag or the config is invalid.
  """
  parser = cli.Parser("plan", __doc__)
  parser.add_argument("--config", required=True, help=cli.CONFIG)
  parser.add_argument(
    "--topology", required=True, type=cli.parse_slices, help="slices, with commas between: v3-32, v3:4x4, 2xv5e-256"
  )
  parser.add_argument(
    "--search", action="store_true", help="try meshes, rematerialisation, scan, micro-batches and fused attention"
  )
  parser.add_argument("--parameters", action="store_true", help=cli.PARAMETERS)
  parser.add_argument("--json", type=cli.parse_path, metavar="FILE", help="also write the figures to this file")
  parser.add_argument("--price", type=float, metavar="PRICE", help="price per chip-hour, in any currency")
  parser.add_argument(
    "--host-rate",
    type=float,
    metavar="IMAGES",
    help="images per second that one host prepares: images_per_second of python -m benchmarks.input_pipeline on that "
    "host, or images/s "
    "of a run that waits for data, divided by its hosts. Estimated from the host's cores by default",
  )
  args = parser.parse(words)
  if args.price is not None and not args.price > 0:
    raise ConfigError(f"--price: {args.price} is not a price. Write the price per chip-hour, such as 1.2")
  if args.host_rate is not None and not 0 < args.host_rate < math.inf:
    raise ConfigError(
      f"--host-rate: {args.host_rate} is not a rate. Write the images per second of one host, such as 5100, or "
      "leave it out for an estimate from the host's cores"
    )
  if args.json and not paths.is_in_bucket(args.json):
    if not args.json.absolute().parent.is_dir():
      raise ConfigError(f"--json: the folder {args.json.absolute().parent} does not exist. Create it first")
    if args.json.exists() and not args.json.is_file():
      raise ConfigError(f"--json: {args.json} is not a regular file. Name another file")
  overrides = args.overrides | {"init.from": "none"}  # a plan reads no weights, although the recipe may require some
  return args, args.topology, build.complete(config.resolve(flags.load_config(args.config, overrides)))


def describe_problems(plans: Sequence[estimate.Plan]) -> str:
  """Returns the error of plans with problems in one line: the problem of a single plan, or the slices of several plans.

  Args:
    plans: plans, each with a problem. The lines of several plans have been printed.

  Returns:
    The message, as in "v3-8: config.batch: 1,023 cannot be divided over 8 devices".
  """
  slices = ", ".join(dict.fromkeys(plan.rented for plan in plans))
  if len(plans) == 1:
    return f"{slices}: {str(plans[0].problem).splitlines()[0]}"
  return f"no plan is possible on {slices}. See the reasons above"


def print_model(run: BoundRun, all_parameters: bool) -> None:
  """Prints a summary of the model's parameters. Prints no output if the model cannot be built.

  Args:
    run: a completed run.
    all_parameters: whether to also print the table of all parameters.
  """
  with contextlib.suppress(ConfigError):  # every plan reports this error
    model = models.make_functional(build.describe_model(run, catalog.open_known_split(run.data, "train").classes))
    shapes = {path: shape for path, shape in model.shapes().items() if path not in model.statistics}
    if all_parameters:
      print(cli.format_parameters(shapes, ()))
    print(f"{overview.format_table(shapes)}\n{run.model.name}: {count_values(shapes):,} parameters\n", flush=True)


if __name__ == "__main__":
  cli.run_verb(main)

"""Compares plans with published hours of runs: python -m benchmarks.real_runs [--only="big deit.py:S"] [--json=FILE]

`benchmarks.published_runs` contains the runs, and their settings as runs of this package: 32 devices of a v4-64, or 8
to 128 devices of v3 slices, with all parameters on each device, float32 and unrolled layers. Evaluations are included
as often as the published codes evaluate.

Each program is compiled once, in one to fifteen minutes, and stored in --json. Runs with more epochs use the same
program. The compiler takes more than 19 GB for the 32 unrolled blocks of H. The step of H is therefore extrapolated
from 8 and 16 blocks. This is exact if all blocks take equal time. (L from 6 and 12 of its 24 blocks: 186.8 ms, compiled
186.6.)

`steps` is the time of the devices and includes the all-reduce. Plans assume that the all-reduce does not overlap with
computation. `evaluations` is additional time: forward passes, or reading by the processes of deit3-jax for evaluations.
A run is marked `input` if its hosts need more time for the images than its devices need for steps and evaluations.
Hosts continue to read while devices evaluate. The start of a run is not included. Two lengths of Mixer-B/16 are
published, which imply 0.2 to 1.8 minutes for the start.

--memory checks that ViT-g/14 fits with 32 images per core of a v3-512, as published. Needs `pip install -e '.[tpu]'`
and no TPU.
"""

import dataclasses
import json
import pathlib
import statistics
import tempfile
from typing import NamedTuple

import jax

from benchmarks import published_runs
from benchmarks.published_runs import StepProgram
from vit_jax import cli, config, models
from vit_jax.config import flags
from vit_jax.parallel import hardware
from vit_jax.planning import estimate, tables
from vit_jax.schema import format_amount
from vit_jax.storage import files
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun


class RunHours(NamedTuple):
  """The hours of a run, planned and published.

  Attributes:
    run: name of the program.
    epochs: number of epochs.
    published: published hours.
    steps: hours of the devices, including communication.
    links: hours of communication.
    evaluations: hours of evaluations.
    input: hours that the hosts need for the images.
  """

  run: str
  epochs: int
  published: float
  steps: float
  links: float
  evaluations: float
  input: float

  @property
  def planned(self) -> float:
    """Hours of the slowest part."""
    return max(self.steps + self.evaluations, self.input)

  @property
  def waits(self) -> bool:
    """True if the input limits the run."""
    return self.input > self.steps + self.evaluations


class StepTimes(NamedTuple):
  """Seconds on the devices.

  Attributes:
    step: time of a step.
    links: time of communication in a step.
    forward: time of a forward pass per image, on all devices together.
  """

  step: float
  links: float
  forward: float


def make_run(program: StepProgram, depth: int | None = None) -> BoundRun:
  """Returns the run to compile.

  Args:
    program: the program.
    depth: number of blocks. None uses the published number.
  """
  made = program.make()
  model = made.model if depth is None else made.model.replace(depth=depth)
  return dataclasses.replace(made, model=model, evals={})  # evaluations are not part of a step


def compute_times(program: StepProgram, plans: list[estimate.Plan]) -> StepTimes:
  """Returns the times of a step, as planned, or extrapolated linearly from two depths.

  Args:
    program: the program.
    plans: plans of each depth.
  """
  planned = [StepTimes(plan.step_seconds, plan.shares["links"], 1 / plan.evaluation_rate) for plan in plans]
  if program.depths is None:
    return planned[0]
  few, more = program.depths
  beyond = (models.find(make_run(program).model.name).row[0][1] - more) / (more - few)
  return StepTimes(*(b + beyond * (b - a) for a, b in zip(*planned, strict=True)))


def make_rows(program: StepProgram, batch: int, times: StepTimes) -> list[RunHours]:
  """Returns the runs of a program.

  Args:
    program: the program.
    batch: its batch size.
    times: its times.
  """
  hosts = hardware.parse_slice(program.slice).hosts
  return [
    RunHours(
      program.name,
      epochs,
      published,
      steps=epochs * program.epoch / batch * times.step / 3600,
      links=epochs * program.epoch / batch * times.links / 3600,
      evaluations=epochs * program.evaluated_images * max(times.forward, 1 / (program.evaluation_rate * hosts)) / 3600,
      input=epochs * program.epoch / (program.host_rate * hosts) / 3600,
    )
    for epochs, published in program.hours
  ]


def format_table(made: list[RunHours]) -> str:
  """Returns the table, with the median ratio of the runs that the input does not limit."""
  lines = [
    f"{'run':<28}{'epochs':>6}{'published':>11}{'planned':>9}{'ratio':>7}   steps (links) + evaluations, hosts' hours"
  ]
  for row in made:
    lines.append(
      f"{row.run:<28}{row.epochs:>6}{row.published:>11.2f}{row.planned:>9.2f}{row.planned / row.published:>7.2f}   "
      f"{row.steps:.2f} ({row.links:.2f}) + {row.evaluations:.2f}, {row.input:.2f}{'  input' if row.waits else ''}"
    )
  ratios = [row.planned / row.published for row in made if not row.waits]
  if ratios:
    worst = max(ratios, key=lambda ratio: abs(ratio - 1))
    lines.append(
      f"not limited by their input: {format_amount(len(ratios), 'run')}, median ratio {statistics.median(ratios):.2f}, "
      f"farthest from 1 {worst:.2f}"
    )
  return "\n".join(lines)


def check_memory(schedules: pathlib.Path) -> None:
  """Prints whether ViT-g/14 fits into the memory of a v3-512, with parameters divided by 8 and on each device.

  Args:
    schedules: the directory that `estimate.use_tpu_compiler` yields.
  """
  for fsdp in ("8", "1"):
    loaded = flags.load_config(str(published_runs.CONFIGS / "vit_g_jft.py"), {"mesh.fsdp": fsdp})
    run = dataclasses.replace(build.complete(config.resolve(loaded)), evals={})
    print(f"ViT-g/14: {tables.format_plan(estimate.make_plan(run, hardware.parse_slice('v3-512'), schedules))}")


def main() -> None:
  """Compiles programs that --json does not contain, and prints the table."""
  parser = cli.Parser("benchmarks.real_runs", __doc__)
  parser.add_argument(
    "--only", metavar="NAMES", help="first characters of the names of runs, separated by spaces; default: all"
  )
  parser.add_argument(
    "--json", type=cli.parse_path, metavar="FILE", help="file of finished plans, to which new plans are added"
  )
  parser.add_argument("--memory", action="store_true", help="check only the memory of ViT-g/14")
  args = parser.parse_args()
  wanted = tuple((args.only or "big deit").split())
  plans = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
  made = []
  with tempfile.TemporaryDirectory() as folder, estimate.use_tpu_compiler(kernels=False) as schedules:
    if args.memory:
      check_memory(schedules)
      return
    for program in published_runs.list_programs(pathlib.Path(folder)):
      if not program.name.startswith(wanted):
        continue
      compiled = []
      for depth in program.depths or (None,):
        key = program.name if depth is None else f"{program.name} of {depth} blocks"
        if key not in plans:
          plan = estimate.make_plan(make_run(program, depth), hardware.parse_slice(program.slice), schedules)
          plans[key] = dataclasses.asdict(plan)
          jax.clear_caches()
          if args.json:
            files.write_text(args.json, json.dumps(plans, indent=2) + "\n")
        compiled.append(estimate.Plan(**plans[key]))
        print(f"{key}: {tables.format_plan(compiled[-1])}", flush=True)
      if not any(plan.problem for plan in compiled):
        made += make_rows(program, make_run(program).batch, compute_times(program, compiled))
  print(f"\n{format_table(made)}")


if __name__ == "__main__":
  cli.run_verb(main)

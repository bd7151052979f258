"""Compares plans with published hours of runs: python -m benchmarks.real_runs [--only="deit.py:S ..."] [--json=FILE]

deit3-jax (github.com/affjljoo3581/deit3-jax at 753d01b) reports the duration of its DeiT and DeiT III runs on a v4-64.
The same runs are planned here. They use 32 devices with all parameters on each, float32 throughout, unrolled layers,
and the batches and epochs of its configs. After each epoch on ImageNet-1k, all 50,000 validation images are evaluated.
Runs on ImageNet-21k are not evaluated. The published hours are proportional to the epochs, so they do not seem to
include fine-tuning. The plans do not include it either. The GELU and the rates of stochastic depth of deit3-jax are
used too.

Each program is compiled once, in one to fifteen minutes, and stored in --json. Runs with more epochs use the same
program. The compiler takes more than 19 GB for the 32 unrolled blocks of H. The step of H is therefore extrapolated
from 8 and 16 blocks. This is exact if all blocks take equal time. (L from 6 and 12 of its 24 blocks: 186.8 ms, compiled
186.6.)

`steps` is the time of the devices, with the all-reduce, which plans do not overlap. `evaluations` is additional time:
forward passes, or reading by the 10 processes per host for evaluations. A run is marked `input` if its hosts need
longer for its images than its devices for steps and evaluations. HOST_RATE is derived from published runs that were
limited by their hosts. Hosts continue to read while devices evaluate. Needs `pip install -e '.[tpu]'` and no TPU.
"""

import dataclasses
import json
import pathlib
import statistics
from typing import NamedTuple

import jax

from vit_jax import cli, config, models
from vit_jax.config import flags
from vit_jax.parallel import hardware
from vit_jax.planning import estimate, tables
from vit_jax.schema import format_amount
from vit_jax.storage import files
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun

CONFIGS = pathlib.Path(__file__).parent.parent / "configs"
SLICE = "v4-64"
IMAGES = {"i1k": 1_281_167, "i21k": 13_151_276}  # ImageNet-21k is the version of winter 2021
VALIDATION, AT_ONCE = 50_000, 512
# Images per second of a host, by the work of its 40 processes with Pillow. "randaugment" is from DeiT Ti and S, which
# take equal time although S has four times the arithmetic. "three_augment" is from DeiT III S. "decoding" is from DeiT
# III S on ImageNet-21k, which decodes each image that it uses. The others decode one of three. A fourth of the
# processes reads for evaluations and decodes each image.
HOST_RATE = {"randaugment": 5000, "three_augment": 6800, "decoding": 5500}
EVALUATING = HOST_RATE["decoding"] / 4


class StepProgram(NamedTuple):
  """A train step, and the runs of different lengths that use it.

  Attributes:
    recipe: config file and argument.
    host_rate: a key of `HOST_RATE`.
    hours: published hours by epochs.
    dropped: rate of stochastic depth, if it differs from the recipe.
    depths: numbers of blocks to compile, if not all are compiled.
  """

  recipe: str
  host_rate: str
  hours: dict[int, float]
  dropped: float | None = None
  depths: tuple[int, int] | None = None

  @property
  def images(self) -> str:
    """A key of `IMAGES`."""
    return "i21k" if "i21k" in self.recipe else "i1k"


PROGRAMS = (  # cheapest first
  StepProgram("deit.py:Ti", "randaugment", {300: 2 + 40 / 60}, 0.0),
  StepProgram("deit.py:S", "randaugment", {300: 2 + 43 / 60}, 0.0),
  StepProgram("deit.py:B", "randaugment", {300: 4 + 40 / 60}, 0.05),
  StepProgram("deit3.py:S,i1k,800", "three_augment", {400: 2 + 38 / 60, 800: 5 + 19 / 60}),
  StepProgram("deit3.py:B,i1k,800", "three_augment", {400: 4 + 42 / 60, 800: 9 + 28 / 60}),
  StepProgram("deit3.py:S,i21k,90", "decoding", {90: 7.5, 240: 20.1}),
  StepProgram("deit3.py:B,i21k,90", "decoding", {90: 12.2, 240: 33.15}),
  StepProgram("deit3.py:L,i1k,400", "three_augment", {400: 14 + 10 / 60}),
  StepProgram("deit3.py:L,i21k,90", "decoding", {90: 37 + 13 / 60}),
  StepProgram("deit3.py:H,i1k,400", "three_augment", {400: 19 + 10 / 60}, depths=(8, 16)),
  StepProgram("deit3.py:H,i21k,90", "decoding", {90: 35 + 51 / 60}, depths=(8, 16)),
)


class RunHours(NamedTuple):
  """The hours of a run, planned and published.

  Attributes:
    run: config file and argument.
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
    depth: number of blocks. None uses the number of the recipe.
  """
  changes = {"model.dtype": "float32", "model.gelu": "tanh", "mesh.fsdp": "1"}
  changes |= {} if depth is None else {"model.depth": str(depth)}
  if program.dropped is not None:
    changes |= {"model.stochastic_depth": str(program.dropped), "model.stochastic_depth_rates": "equal"}
  made = build.complete(config.resolve(flags.load_config(str(CONFIGS / program.recipe), changes)))
  return dataclasses.replace(made, evals={})  # evaluations are not part of a step


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


def make_rows(program: StepProgram, of: StepTimes) -> list[RunHours]:
  """Returns the runs of a program.

  Args:
    program: the program.
    of: its times.
  """
  slice_ = hardware.parse_slice(SLICE)
  batch = make_run(program).batch
  result = []
  for epochs, published in program.hours.items():
    images = IMAGES[program.images] * epochs
    measured = epochs * -(-VALIDATION // AT_ONCE) * AT_ONCE if program.images == "i1k" else 0
    result.append(
      RunHours(
        program.recipe,
        epochs,
        published,
        steps=images / batch * of.step / 3600,
        links=images / batch * of.links / 3600,
        evaluations=measured * max(of.forward, 1 / (EVALUATING * slice_.hosts)) / 3600,
        input=images / (HOST_RATE[program.host_rate] * slice_.hosts) / 3600,
      )
    )
  return result


def format_table(made: list[RunHours]) -> str:
  """Returns the table, with the median ratio of the runs that the input does not limit."""
  lines = [
    f"{'run':<20}{'epochs':>6}{'published':>11}{'planned':>9}{'ratio':>7}   steps (links) + evaluations, hosts' hours"
  ]
  for row in made:
    lines.append(
      f"{row.run:<20}{row.epochs:>6}{row.published:>11.2f}{row.planned:>9.2f}{row.planned / row.published:>7.2f}   "
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


def main() -> None:
  """Compiles programs that --json does not contain, and prints the table."""
  parser = cli.Parser("benchmarks.real_runs", __doc__)
  parser.add_argument(
    "--only", metavar="RECIPES", help="first characters of the names of runs, separated by spaces; default: all"
  )
  parser.add_argument(
    "--json", type=cli.parse_path, metavar="FILE", help="file of finished plans, to which new plans are added"
  )
  args = parser.parse_args()
  wanted = tuple((args.only or "deit").split())
  plans = json.loads(args.json.read_text()) if args.json and args.json.exists() else {}
  made = []
  with estimate.use_tpu_compiler(kernels=False) as schedules:
    for program in PROGRAMS:
      if not program.recipe.startswith(wanted):
        continue
      compiled = []
      for depth in program.depths or (None,):
        key = program.recipe if depth is None else f"{program.recipe} of {depth} blocks"
        if key not in plans:
          plan = estimate.make_plan(make_run(program, depth), hardware.parse_slice(SLICE), schedules)
          plans[key] = dataclasses.asdict(plan)
          jax.clear_caches()
          if args.json:
            files.write_text(args.json, json.dumps(plans, indent=2) + "\n")
        compiled.append(estimate.Plan(**plans[key]))
        print(f"{key}: {tables.format_plan(compiled[-1])}", flush=True)
      made += [] if any(plan.problem for plan in compiled) else make_rows(program, compute_times(program, compiled))
  print(f"\n{format_table(made)}")


if __name__ == "__main__":
  cli.run_verb(main)

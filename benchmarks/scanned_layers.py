"""Compares scanned with unrolled layers: time and memory of a train step on TPUs, and time of its compilation.

    python -m benchmarks.scanned_layers [--models=B/16,L/16] [--topology=v3-32,v5e-64] [--extrapolate] [--json=FILE]

The TPU compiler compiles the runs of `benchmarks.tpu_step` with XLA's attention and 32 images per device. The step is
the compiler's estimate without collectives. The memory is that of temporary values. Compilation is measured in seconds
of CPU time, because other programs may use the same cores. `--extrapolate` compiles unrolled models with four and eight
blocks, and extrapolates their figures to all blocks. Needs `pip install -e '.[tpu]'` and no TPU. An unrolled H/14 needs
about 15 GB of memory and ten minutes on two cores.
"""

import json
import pathlib
import time
from typing import Any

import jax

from benchmarks import tpu_step
from vit_jax import cli
from vit_jax.models.published import vit
from vit_jax.parallel import hardware
from vit_jax.planning import estimate
from vit_jax.storage import files

Figures = dict[str, float]
UNITS = {"step": 1, "bytes": 2**30, "compilation": 1}
DEPTHS = (4, 8)  # blocks of the models from which `--extrapolate` extrapolates


def measure(model: str, slice_: hardware.Slice, schedules: pathlib.Path, fsdp: bool, **arguments: Any) -> Figures:
  """Returns milliseconds of a step, bytes of temporary values, and CPU seconds of compilation.

  The figures are empty if the step does not fit.

  Args:
    model: size and patch, such as "B/16".
    slice_: the slice.
    schedules: directory of the kernels' schedules.
    fsdp: whether parameters are split over all devices.
    **arguments: further arguments of the model.
  """
  images = 32 * len(estimate.make_topology_devices(slice_))
  run = tpu_step.make_run(model, "xla", images, fsdp, **arguments)
  start_time = time.process_time()
  plan = estimate.make_plan(run, slice_, schedules)
  seconds = time.process_time() - start_time
  jax.clear_caches()
  if plan.problem:
    return {}
  step = plan.step_seconds - plan.shares["links"]
  return {"step": step * 1e3, "bytes": plan.hbm_temporaries, "compilation": seconds}


def extrapolate(short: Figures, long: Figures, depth: int, depths: tuple[int, int] = DEPTHS) -> Figures:
  """Returns the figures of a model, from those of the same model with fewer blocks.

  Returns {} if the figures of a depth are missing.

  Args:
    short: figures with the smaller number of blocks.
    long: figures with the larger number of blocks.
    depth: number of blocks of the model.
    depths: numbers of blocks of the two figures.
  """
  if not short or not long:
    return {}
  factor = (depth - depths[0]) / (depths[1] - depths[0])
  return {name: value + factor * (long[name] - value) for name, value in short.items()}


def format_row(row: dict[str, Any]) -> str:
  """Formats a row of the table."""
  head, one, other = f"{row['model']:<6}{row['slice']:<8}", row["unrolled"], row["scanned"]
  if not one or not other:
    return head + ("unrolled does not fit" if not one else "scanned does not fit")
  figures = ((name, one[name] / unit, other[name] / unit) for name, unit in UNITS.items())
  return head + "  ".join(f"{a:8.2f} {b:8.2f} {b / a:6.3f}" for _, a, b in figures)


def main() -> None:
  """Prints a line for each model and slice."""
  parser = cli.Parser("benchmarks.scanned_layers", __doc__)
  parser.add_argument("--models", default="B/16,L/16,H/14", help="sizes and patches, separated by commas")
  parser.add_argument("--topology", type=cli.parse_slices, default="v3-32,v5e-64", help="slices")
  parser.add_argument("--fsdp", action="store_true", help="parameters split over all devices")
  parser.add_argument("--extrapolate", action="store_true", help="extrapolate the figures of unrolled layers")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  args = parser.parse_args()
  heads = ("ms a step", "GiB", "CPU s")
  print(" " * 14 + "  ".join(f"{head:^24}" for head in heads))
  print(f"{'model':<6}{'slice':<8}" + "  ".join([f"{'unrolled':>8} {'scanned':>8} {'ratio':>6}"] * 3), flush=True)
  rows = []
  with estimate.use_tpu_compiler(kernels=False) as schedules:
    for model in args.models.split(","):
      for slice_ in args.topology:
        if args.extrapolate:
          short, long = (measure(model, slice_, schedules, args.fsdp, depth=depth) for depth in DEPTHS)
          unrolled = extrapolate(short, long, vit.SIZES[model.split("/")[0]][1])
        else:
          unrolled = measure(model, slice_, schedules, args.fsdp)
        scanned = measure(model, slice_, schedules, args.fsdp, scan=True)
        rows.append({"model": model, "slice": slice_.rented, "unrolled": unrolled, "scanned": scanned})
        print(format_row(rows[-1]), flush=True)
        if args.json:
          files.write_text(args.json, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)

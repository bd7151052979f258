"""Estimates images/s per chip and MFU of ViTs on all TPU generations: python -m benchmarks.chips [--json=FILE]

The TPU compiler compiles the train step of `benchmarks.modern_block` for eight devices, with 32 images of 224 px per
device, XLA's attention, and parameters split over all devices. Models with 1 and 2 blocks are compiled, and their
figures are extrapolated to all blocks. The estimates assume that collectives do not overlap with computation, and that
steps never wait for input. If the activations of a model do not fit, the step recomputes them (remat="full"). Needs
`pip install -e '.[tpu]'` and no TPU.
"""

import json
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax

from benchmarks import modern_block, scanned_layers
from vit_jax import cli, schema
from vit_jax.models.published import vit
from vit_jax.parallel import hardware
from vit_jax.planning import estimate
from vit_jax.storage import files

MODELS = {  # name in the table -> name of the model, its size in `vit.SIZES`
  "S/16": ("ViT-S/16", "S"),
  "B/16": ("ViT-B/16", "B"),
  "ViT-5-B": ("vit5_base", "B"),
  "L/16": ("ViT-L/16", "L"),
  "H/14": ("ViT-H/14", "H"),
  "G/14": ("ViT-G/14", "G"),
}
SLICES = "v3-8,v4-16,v5e-8,v5p-16,v6e-8,tpu7x-8"  # eight devices each
IMAGES = 32  # per device
DEPTHS = (1, 2)
HOST_RATE = math.inf  # images/s of a host, so that no step waits for input


class Cell(NamedTuple):
  """Estimates for a model on a slice.

  Attributes:
    rate: images/s per chip.
    mfu: model FLOPs utilisation.
    gigabytes: GiB of memory per device.
    remat: rematerialisation policy, "none" or "full", or "" if the model does not fit.
  """

  rate: float
  mfu: float
  gigabytes: float
  remat: str

  def format(self) -> str:
    """Formats the cell: "1,234 (45 %)", with a star if activations are recomputed."""
    return f"{self.rate:,.0f} ({self.mfu:.0%}){'*' * (self.remat == 'full')}" if self.remat else "does not fit"


def measure(name: str, slice_: hardware.Slice, depth: int, remat: str, schedules: pathlib.Path) -> dict[str, float]:
  """Returns seconds of a step, seconds that its useful arithmetic needs at the peak rate, and bytes of memory.

  Args:
    name: name of the model.
    slice_: the slice.
    depth: number of blocks.
    remat: rematerialisation policy.
    schedules: directory of the kernels' schedules.

  Raises:
    ConfigError: the compiler refuses the step.
  """
  images = IMAGES * len(estimate.make_topology_devices(slice_))
  run = modern_block.make_run(images, fsdp=True, name=name, attention="xla", depth=depth, remat=remat)
  plan = estimate.make_plan(run, slice_, schedules, host_rate=HOST_RATE)
  jax.clear_caches()
  if plan.problem:
    raise schema.ConfigError(f"{name} with {depth} blocks on {slice_.rented}: {plan.problem}")
  return {"step": plan.step_seconds, "useful": plan.mfu * plan.step_seconds, "bytes": plan.hbm_bytes}


def estimate_cell(model: str, slice_: hardware.Slice, schedules: pathlib.Path) -> Cell:
  """Returns the estimates for a model on a slice, without recomputation if the activations fit.

  Args:
    model: key of `MODELS`.
    slice_: the slice.
    schedules: directory of the kernels' schedules.
  """
  name, size = MODELS[model]
  for remat in ("none", "full"):
    short, long = (measure(name, slice_, depth, remat, schedules) for depth in DEPTHS)
    figures = scanned_layers.extrapolate(short, long, vit.SIZES[size][1], DEPTHS)
    if figures["bytes"] <= slice_.chip.memory:
      break
  else:
    remat = ""
  devices_per_chip = hardware.GENERATIONS[slice_.generation].devices
  step = figures["step"]
  return Cell(IMAGES * devices_per_chip / step, figures["useful"] / step, figures["bytes"] / 2**30, remat)


def main() -> None:
  """Prints a line for each model and slice, and then the table."""
  parser = cli.Parser("benchmarks.chips", __doc__)
  parser.add_argument(
    "--models", type=cli.make_names_parser("model", MODELS), default=list(MODELS), help="default: all"
  )
  parser.add_argument("--topology", type=cli.parse_slices, default=SLICES, help="slices, separated by commas")
  parser.add_argument("--json", type=cli.parse_path, metavar="FILE", help="also write the figures to this file")
  args = parser.parse_args()
  cells: dict[str, dict[str, Cell]] = {}
  with estimate.use_tpu_compiler(kernels=False) as schedules:
    for model in args.models:
      for slice_ in args.topology:
        cell = estimate_cell(model, slice_, schedules)
        cells.setdefault(model, {})[slice_.rented] = cell
        print(f"{model:<8}{slice_.rented:<8}{cell.format()}, {cell.gigabytes:.1f} GiB", flush=True)
        if args.json:
          record = {name: {slice_: cell._asdict() for slice_, cell in row.items()} for name, row in cells.items()}
          files.write_text(args.json, json.dumps(record, indent=2) + "\n")
  print(format_table(cells, [slice_.rented for slice_ in args.topology]))


def format_table(cells: dict[str, dict[str, Cell]], slices: Sequence[str]) -> str:
  """Returns the table in Markdown.

  Args:
    cells: {model: {slice: estimates}}.
    slices: names of the slices, in the order of the columns.
  """
  lines = [f"| model | {' | '.join(slices)} |", f"|---|{'---:|' * len(slices)}"]
  lines += [f"| {model} | {' | '.join(row[name].format() for name in slices)} |" for model, row in cells.items()]
  return "\n".join(lines)


if __name__ == "__main__":
  cli.run_verb(main)

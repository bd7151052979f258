"""Plans a run on TPUs that are not there: python -m vit_jax.plan --config=configs/vit_i21k.py:L/16 --topology=v3-32

Compiles the very train step of the config with the TPU's own compiler (pip install -e '.[tpu]'; no TPU is needed) and
says for each slice whether it fits, how long a step takes and what limits it, and what the whole run will need. The
data may be absent: the catalog knows how many images there are. `--search` looks for the fastest mesh,
rematerialisation and micro-batches that fit. Nothing here ran on a TPU: see `METHOD` for what the figures mean.
"""

import dataclasses
import json
import math
import pathlib

from vit_jax import build, cli, config, files, flags, hardware, schema
from vit_jax.planning import estimate
from vit_jax.planning.estimate import Plan

METHOD = """\
step   the compiler's estimate of cycles of every operation, at the chip's clock, plus the time on the links.
       Where it is below what the arithmetic takes, that or the memory traffic at peak rates, whichever is longer.
links  bytes that a device sends for collectives, in rings, at the rate of all its links; none is overlapped.
MFU    the model's matrix products, forward and backward, as a share of the chip's peak; recomputation is no gain.
write  of a checkpoint, at {rate:.1f} GB/s a host."""


def main() -> None:
  """Reads flags, plans on each slice, prints the table."""
  parser = cli.Parser("plan", __doc__)
  parser.add_argument("--config", required=True, help=cli.CONFIG)
  parser.add_argument("--topology", required=True, help="slices, with commas between: v3-32, v3:4x4, 2xv5e-256")
  parser.add_argument("--search", action="store_true", help="try meshes, rematerialisation, scan and micro-batches")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures there too")
  parser.add_argument("--price", type=float, metavar="PRICE", help="of a chip for an hour, in any currency")
  given = parser.parse()
  if given.price is not None and not given.price > 0:
    raise schema.ConfigError(f"--price: {given.price} is not a price; write what a chip costs for an hour, as 1.2")
  if given.json and not given.json.absolute().parent.is_dir():
    raise schema.ConfigError(f"--json: there is no folder {given.json.absolute().parent}; make it first")
  slices = [_slice(name) for name in given.topology.split(",")]
  overrides = given.overrides | {"init.from": "none"}  # a plan reads no weights; a recipe may ask for some
  run = build.complete(config.resolve(flags.load(given.config, overrides)))

  plans = []
  with estimate.compiler(kernels=run.model.args.get("attention") == "fused") as schedules:
    for slice_ in slices:
      plans += (search if given.search else _once)(run, slice_, schedules, given.price)
      if given.json:  # after each, so that none is lost to whatever happens to the next
        files.write_text(given.json, json.dumps([dataclasses.asdict(p) for p in plans], indent=2) + "\n")
  print("\n" + table(plans))
  print("\n" + METHOD.format(rate=estimate.WRITE_RATE / 1e9))


def _slice(name):
  try:
    return hardware.topology(name)
  except ValueError as error:
    raise schema.ConfigError(f"--topology: {error}") from error


def _once(run, slice_, schedules, price):
  plan = estimate.of(run, slice_, schedules, price)
  print(line(plan), flush=True)
  return [plan]


# Search.

# Rematerialisation by what it costs: nothing, then from the cheapest that saves memory on.
_REMATS = ((False, "none"), (True, "projections"), (True, "attention"), (True, "mlp"), (True, "full"))


def search(run: config.Run, slice_: hardware.Slice, schedules: pathlib.Path, price: float | None) -> list[Plan]:
  """Plans of all meshes that suit the slice, fastest first. Each line is a compile.

  For each mesh the first rematerialisation that fits; for it, twice as many micro-batches as long as that is faster.
  """
  tried = []
  for mesh in _meshes(slice_):
    best = math.inf
    for accumulate in (1, 2, 4, 8):
      plan = None
      for scan, remat in _REMATS:
        changed = _changed(run, mesh, scan, remat, accumulate)
        if changed is None:
          continue
        plan = estimate.of(changed, slice_, schedules, price)
        words = f"{plan.mesh}; " + ("scan" if scan else "unrolled") + f", remat {remat}, micro-batches {accumulate}"
        tried.append(dataclasses.replace(plan, mesh=words))
        print(line(tried[-1]), flush=True)
        if plan.fits or not plan.hbm_bytes:  # fits, or fails for a reason that rematerialisation does not mend
          break
      better = plan.fits and plan.step_seconds < best
      if not better and (best < math.inf or not plan.hbm_bytes):
        break
      best = plan.step_seconds if better else best
  return sorted(tried, key=lambda plan: (not plan.fits, plan.step_seconds))


def _meshes(slice_):
  devices_ = slice_.chips * hardware.GENERATIONS[slice_.generation].devices // slice_.slices
  shapes = [(1, 1), (devices_, 1)] + [(n, 1) for n in (8, 32) if n < devices_] + [(devices_ // 2, 2)]
  return [
    config.Mesh(replica=slice_.slices, data=-1, fsdp=fsdp, tensor=tensor)
    for fsdp, tensor in dict.fromkeys(shapes)
    if fsdp * tensor <= devices_ and fsdp
  ]


def _changed(run, mesh, scan, remat, accumulate):
  """The run with these choices; None where its model has no such argument."""
  args = dict(run.model.args)
  if not {"scan", "remat"} <= args.keys() and remat != "none":
    return None
  if "scan" in args:
    args |= {"scan": scan, "remat": remat}
  optim = dict(run.optim.args) | {"accumulate": accumulate}
  return dataclasses.replace(
    run,
    mesh=mesh,
    model=schema.Choice(run.model.name, args),
    optim=schema.Choice(run.optim.name, optim),
  )


# Words.


def line(plan: Plan) -> str:
  """One line that is printed as soon as a plan is there."""
  head = f"{plan.rented:<16} {plan.mesh}: "
  if plan.problem:
    return head + plan.problem
  return head + (
    f"fits, {plan.hbm_bytes / 2**30:.1f} of {plan.hbm_limit / 2**30:.1f} GiB, {plan.step_seconds * 1e3:,.1f} ms a step "
    f"({plan.method}), limited by {plan.limit}; compiled in {plan.compile_seconds:.0f} s"
  )


_COLUMNS = (  # heading, what stands there
  ("slice", lambda p: p.rented),
  ("mesh", lambda p: p.mesh),
  ("args GiB", lambda p: f"{p.hbm_arguments / 2**30:.2f}"),
  ("temp GiB", lambda p: f"{p.hbm_temporaries / 2**30:.2f}"),
  ("of GiB", lambda p: f"{p.hbm_limit / 2**30:.2f}"),
  ("TFLOP", lambda p: f"{p.flops / 1e12:.2f}"),
  ("GB", lambda p: f"{p.bytes / 1e9:.1f}"),
  ("links MB", lambda p: f"{sum(c['moved'] for c in p.collectives.values()) / 1e6:,.0f}"),
  ("step ms", lambda p: f"{p.step_seconds * 1e3:,.1f}"),
  ("limit", lambda p: p.limit),
  ("images/s/chip", lambda p: f"{p.images_per_second_per_chip:,.0f}"),
  ("MFU", lambda p: f"{p.mfu:.0%}"),
  ("hours", lambda p: f"{p.hours:,.1f}"),
  ("core-days", lambda p: f"{p.core_days:,.{0 if p.core_days >= 100 else 1}f}"),
  ("checkpoint", lambda p: f"{p.checkpoint_bytes / 1e9:.1f} GB, {p.checkpoint_seconds:.1f} s"),
  ("input a host", lambda p: _input(p)),
  ("cost", lambda p: "" if p.cost is None else f"{p.cost:,.0f}"),
)


def _input(plan):
  text = f"{plan.images_per_second_per_host:,.0f}/s"
  size = plan.input_bytes_per_second_per_host
  return text if size is None else f"{text}, {size / 1e6:,.0f} MB/s"


def table(plans: list[Plan]) -> str:
  """All plans as a table; what does not run has its reason in the place of figures."""
  shown = [(heading, show) for heading, show in _COLUMNS if heading != "cost" or any(p.cost for p in plans)]
  rows = [[heading for heading, _ in shown]]
  rows += [[show(plan) for _, show in shown] for plan in plans if not plan.problem]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
  if len(rows) == 1:
    lines = []
  for plan in plans:
    kinds = [f"{kind} {c['calls']} x, {c['payload'] / 1e6:,.1f} MB" for kind, c in plan.collectives.items()]
    if kinds:
      lines.append(f"{plan.rented}, {plan.mesh}: collectives a step: {'; '.join(kinds)}")
    if plan.problem:
      lines.append(f"{plan.rented}, {plan.mesh}: {plan.problem}")
  return "\n".join(lines)


if __name__ == "__main__":
  cli.main(main)

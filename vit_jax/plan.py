"""Plans a run on TPUs that are not there: python -m vit_jax.plan --config=configs/vit_i21k.py:L/16 --topology=v3-32

Compiles the very train step of the config with the TPU's own compiler (pip install -e '.[tpu]'; no TPU is needed) and
says for each slice whether it fits, how long a step takes and what limits it, and what the whole run will need. The
data may be absent: the catalog knows how many images there are. `--search` looks for the fastest mesh,
rematerialisation and micro-batches that fit. Nothing here ran on a TPU: see `METHOD` for what the figures mean.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator

import jax
from jax.experimental import topologies

from vit_jax import build, config, flags, hardware, hlo, metrics, runtime
from vit_jax.data import catalog

METHOD = """\
step   the compiler's estimate of cycles of every operation, at the chip's clock, plus the time on the links.
       Where it is below what the arithmetic takes, that or the memory traffic at peak rates, whichever is longer.
links  bytes that a device sends for collectives, in rings, at the rate of all its links; none is overlapped.
MFU    the model's matrix products, forward and backward, as a share of the chip's peak; recomputation is no gain.
write  of a checkpoint, at {rate:.1f} GB/s a host."""
WRITE_RATE = 0.5e9  # bytes a second that a host writes to a bucket: assumed, from usual throughputs of Cloud Storage


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run would be on a slice. Per device unless said otherwise; times in seconds, sizes in bytes."""

  topology: str
  rented: str  # Cloud TPU's name
  devices: int
  hosts: int
  mesh: str
  problem: str | None = None  # why there is no figure
  fits: bool = False
  hbm_limit: int = 0
  hbm_arguments: int = 0  # state and batch
  hbm_temporaries: int = 0
  hbm_bytes: int = 0  # both, or what the compiler says is needed where it does not fit
  compile_seconds: float = 0.0
  flops: float = 0.0  # a step, recomputation included
  flops_method: str = ""
  bytes: float = 0.0  # read and written in memory, a step
  collectives: dict = dataclasses.field(default_factory=dict)  # kind -> calls, payload, moved, a step
  network_bytes: int = 0  # to other slices, a step
  kernels: dict = dataclasses.field(default_factory=dict)  # Pallas calls a step
  step_seconds: float = 0.0
  method: str = ""
  limit: str = ""  # arithmetic, memory or links
  shares: dict = dataclasses.field(default_factory=dict)  # seconds that each of them takes at its peak rate
  images_per_second_per_chip: float = 0.0
  mfu: float = 0.0
  steps: int = 0  # of the run
  hours: float = 0.0
  core_days: float = 0.0  # TensorCores, as published costs are counted
  checkpoint_bytes: int = 0  # of the whole run's state
  checkpoint_seconds: float = 0.0
  images_per_second_per_host: float = 0.0  # that its input must sustain
  input_bytes_per_second_per_host: float | None = None  # of stored images
  cost: float | None = None  # at --price


def main() -> None:
  """Reads flags, plans on each slice, prints the table."""
  parser = argparse.ArgumentParser("python -m vit_jax.plan", allow_abbrev=False, description=__doc__.splitlines()[0])
  parser.add_argument("--config", required=True, help="file, or file:argument; --config.KEY=VALUE changes a value")
  parser.add_argument("--topology", required=True, help="slices, with commas between: v3-32, v3:4x4, 2xv5e-256")
  parser.add_argument("--search", action="store_true", help="try meshes, rematerialisation, scan and micro-batches")
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures there too")
  parser.add_argument("--price", type=float, metavar="PRICE", help="of a chip for an hour, in any currency")
  given, rest = parser.parse_known_args()
  runtime.quiet()
  if given.price is not None and not given.price > 0:
    raise config.ConfigError(f"--price: {given.price} is not a price; write what a chip costs for an hour, as 1.2")
  slices = [_slice(name) for name in given.topology.split(",")]
  edited = flags.load(given.config)
  for key, value in flags.overrides(rest, ("--config", "--topology", "--search", "--json", "--price")).items():
    flags.edit(edited, key, value)
  run = build.complete(config.resolve(edited))

  plans = []
  with compiler(kernels=run.model.args.get("attention") == "fused") as schedules:
    for slice_ in slices:
      plans += (search if given.search else _once)(run, slice_, schedules, given.price)
      if given.json:  # after each, so that none is lost to whatever happens to the next
        runtime.write_text(given.json, json.dumps([dataclasses.asdict(p) for p in plans], indent=2) + "\n")
  print("\n" + table(plans))
  print("\n" + METHOD.format(rate=WRITE_RATE / 1e9))


def _slice(name):
  try:
    return hardware.topology(name)
  except ValueError as error:
    raise config.ConfigError(f"--topology: {error}") from error


def _once(run, slice_, schedules, price):
  plan = estimate(run, slice_, schedules, price)
  print(line(plan), flush=True)
  return [plan]


@contextlib.contextmanager
def compiler(kernels: bool) -> Iterator[pathlib.Path]:
  """The TPU's compiler, quiet, with JAX on the CPU, so that no device is touched; ConfigError if it is missing.

  Gives the folder to which it writes the schedules of `kernels`, if this process has not used it before. Without
  kernels it writes nothing: it writes of every operation, which takes as long as a third of compiling.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise config.ConfigError("the TPU's compiler is not installed; run: pip install -e '.[tpu]'")
  jax.config.update("jax_platforms", "cpu")
  # A kept program cannot be read without its device, and says nothing of its kernels.
  kept = jax.config.jax_enable_compilation_cache
  jax.config.update("jax_enable_compilation_cache", False)
  with tempfile.TemporaryDirectory(prefix="vit_jax_plan_") as folder:
    for name, value in (
      ("TPU_SKIP_MDS_QUERY", "1"),  # it would ask the network what machine this is
      ("TPU_WORKER_HOSTNAMES", "localhost"),
      ("TPU_ACCELERATOR_TYPE", "v3-8"),
      ("TPU_STDERR_LOG_LEVEL", "3"),
      ("TPU_MIN_LOG_LEVEL", "3"),
      ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),  # several plans at a time, or one beside a training run
    ):
      os.environ.setdefault(name, value)
    if kernels:
      dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final"
      os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {dump}".strip()
    try:
      yield pathlib.Path(folder)
    finally:
      jax.config.update("jax_enable_compilation_cache", kept)


def devices(slice_: hardware.Slice) -> list[jax.Device]:
  """The devices of a slice that is not there."""
  options = {}
  chips = math.prod(slice_.grid)
  if slice_.generation == "v4":
    options["chip_config_name"] = "megacore"  # both cores of a chip as one device, as on Cloud TPU
  if slice_.generation.endswith("e") and chips in (1, 8):
    options["chips_per_host_bounds"] = (*slice_.grid, 1)
  if slice_.slices > 1:
    options["num_slices"] = slice_.slices
  return list(topologies.get_topology_desc(platform="tpu", topology_name=slice_.name, **options).devices)


def estimate(run: config.Run, slice_: hardware.Slice, schedules: pathlib.Path, price: float | None = None) -> Plan:
  """The plan of a completed run on a slice. What does not fit, or does not divide, is a result too."""
  found = devices(slice_)
  sizes = ", ".join(f"{k}={v}" for k, v in config.plain(run.mesh).items() if v != 1)
  plan = Plan(slice_.name, slice_.rented, len(found), slice_.hosts, sizes or "data=1", hbm_limit=slice_.chip.memory)
  try:
    parts = build.build(run, found, catalog.known_split)
  except config.ConfigError as error:
    return dataclasses.replace(plan, problem=str(error))
  sizes = ", ".join(f"{axis}={size}" for axis, size in parts.mesh.shape.items() if size > 1) or "data=1"
  plan = dataclasses.replace(plan, mesh=sizes, steps=parts.total)
  began = time.perf_counter()
  try:
    compiled = parts.compile()
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    needed = _needed(str(error))
    return dataclasses.replace(
      plan,
      problem=f"does not fit: {needed / 2**30:.1f} GiB of {slice_.chip.memory / 2**30:.1f} GiB"
      if needed
      else str(error),
      hbm_bytes=needed,
      compile_seconds=time.perf_counter() - began,
    )
  seconds = time.perf_counter() - began
  cycles = hlo.kernel_cycles(schedules)
  for file in schedules.iterdir():  # hundreds of megabytes
    file.unlink()
  return _figures(plan, parts, compiled, slice_, cycles, price, seconds)


def _needed(message):
  """Bytes that the compiler says it would need, from its error; 0 if it does not say."""
  found = re.findall(r"([\d.]+)([KMG]) of [\d.]+[KMG] hbm|temporaries \(([\d.]+)([KMG])\)", message)
  units = {"K": 2**10, "M": 2**20, "G": 2**30}
  return max((int(float(a or c) * units[b or d]) for a, b, c, d in found), default=0)


def _figures(plan, parts, compiled, slice_, kernels, price, seconds):
  chip, count = slice_.chip, plan.devices
  memory, costs, program = compiled.memory_analysis(), compiled.cost_analysis(), hlo.read(compiled.as_text())

  # A step. XLA's own count takes a loop's body once.
  if program.loops:
    arithmetic = metrics.flops(parts.step, parts.state_shapes, parts.batch_shapes) / count
    flops_method, traffic = "matrix products of the program, over the devices", program.traffic
  else:
    arithmetic, traffic, flops_method = costs["flops"], costs["bytes accessed"], "compiler"
  moved = sum(kind.moved for kind in program.collectives.values())
  links = moved / chip.links + (program.network / chip.network if program.network else 0.0)
  shares = {"arithmetic": arithmetic / chip.peak, "memory": traffic / chip.bandwidth, "links": links}
  priced = sum(calls * kernels.get(name, 0) for name, calls in program.kernels.items())
  step, method = (program.cycles + priced) / chip.clock, "compiler's cycles"
  if program.kernels:
    method += " and kernels' schedules"
  if step < shares["arithmetic"] or not program.kernels.keys() <= kernels.keys():
    step, method = max(shares["arithmetic"], shares["memory"]), "roofline"
  step += links

  # The run.
  images = parts.run.batch / step
  state = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(parts.state_shapes))
  size = catalog.CATALOG[parts.run.data.name].image_bytes
  hours = parts.total * step / 3600
  return dataclasses.replace(
    plan,
    fits=True,
    hbm_arguments=memory.argument_size_in_bytes,
    hbm_temporaries=memory.temp_size_in_bytes,
    hbm_bytes=memory.argument_size_in_bytes + memory.temp_size_in_bytes,
    compile_seconds=seconds,
    flops=arithmetic,
    flops_method=flops_method,
    bytes=traffic,
    collectives={kind: found._asdict() for kind, found in program.collectives.items()},
    network_bytes=program.network,
    kernels=program.kernels,
    step_seconds=step,
    method=method,
    limit=max(shares, key=shares.get),
    shares=shares,
    images_per_second_per_chip=images / slice_.chips,
    mfu=images * parts.flops_per_image / (count * chip.peak),
    hours=hours,
    core_days=hours / 24 * slice_.cores,
    checkpoint_bytes=state,
    checkpoint_seconds=state / (plan.hosts * WRITE_RATE),
    images_per_second_per_host=images / plan.hosts,
    input_bytes_per_second_per_host=size and size * images / plan.hosts,
    cost=price and price * slice_.chips * hours,
  )


# Search.

# Rematerialisation by what it costs: nothing, then from the cheapest that saves memory on.
_REMATS = ((False, "none"), (True, "projections"), (True, "attention"), (True, "mlp"), (True, "full"))


def search(run: config.Run, slice_: hardware.Slice, schedules: pathlib.Path, price: float | None) -> list[Plan]:
  """Plans of all meshes that suit the slice, fastest first: for each, the first rematerialisation that fits.

  Micro-batches are tried where none does. Each line is a compile.
  """
  tried = []
  for mesh in _meshes(slice_):
    for accumulate in (1, 2, 4, 8):
      for scan, remat in _REMATS:
        changed = _changed(run, mesh, scan, remat, accumulate)
        if changed is None:
          continue
        plan = estimate(changed, slice_, schedules, price)
        words = f"{plan.mesh}; " + ("scan" if scan else "unrolled") + f", remat {remat}, micro-batches {accumulate}"
        tried.append(dataclasses.replace(plan, mesh=words))
        print(line(tried[-1]), flush=True)
        if plan.fits or not plan.hbm_bytes:  # fits, or fails for a reason that rematerialisation does not mend
          break
      if not tried or tried[-1].fits or not tried[-1].hbm_bytes:
        break
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
    model=config.Choice(run.model.name, args),
    optim=config.Choice(run.optim.name, optim),
  )


# Words.


def line(plan: Plan) -> str:
  """One line that is printed as soon as a plan is there."""
  head = f"{plan.rented:<12}{plan.mesh}: "
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
  ("core-days", lambda p: f"{p.core_days:,.0f}"),
  ("checkpoint", lambda p: f"{p.checkpoint_bytes / 1e9:.1f} GB, {p.checkpoint_seconds:.0f} s"),
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
  runtime.main(main)

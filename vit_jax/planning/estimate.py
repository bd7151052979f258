"""A run on TPUs that are not there: its train step compiled with the TPU's own compiler, and what follows from that.

Nothing here ran on a TPU: `plan.METHOD` says what the figures mean.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import math
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from vit_jax import build, config, flops, hardware, schema
from vit_jax.data import catalog
from vit_jax.planning import hlo

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


@functools.cache
def _schedules() -> tempfile.TemporaryDirectory:
  """One for the process, as the compiler reads its flags once; goes with the process."""
  return tempfile.TemporaryDirectory(prefix="vit_jax_plan_")


@contextlib.contextmanager
def compiler(kernels: bool) -> Iterator[pathlib.Path]:
  """The TPU's compiler, quiet, with JAX on the CPU, so that no device is touched; ConfigError if it is missing.

  Gives the folder to which it writes the schedules of `kernels`; a process's first use decides whether it does.
  Without kernels it writes nothing: it writes of every operation, which takes as long as a third of compiling.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise schema.ConfigError("the TPU's compiler is not installed; run: pip install -e '.[tpu]'")
  jax.config.update("jax_platforms", "cpu")
  for name, value in (
    ("TPU_SKIP_MDS_QUERY", "1"),  # it would ask the network what machine this is
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_ACCELERATOR_TYPE", "v3-8"),
    ("TPU_STDERR_LOG_LEVEL", "3"),
    ("TPU_MIN_LOG_LEVEL", "3"),
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),  # several plans at a time, or one beside a training run
  ):
    os.environ.setdefault(name, value)
  folder, flags = _schedules().name, os.environ.get("LIBTPU_INIT_ARGS", "")
  if kernels and folder not in flags:
    dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final"
    os.environ["LIBTPU_INIT_ARGS"] = f"{flags} {dump}".strip()
  # A kept program cannot be read without its device, and says nothing of its kernels.
  kept = jax.config.jax_enable_compilation_cache
  _keep_programs(False)
  try:
    yield pathlib.Path(folder)
  finally:
    _keep_programs(kept)


def _keep_programs(keep):
  jax.config.update("jax_enable_compilation_cache", keep)
  compilation_cache.reset_cache()  # else the first compile of the process has decided


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


def of(run: config.Run, slice_: hardware.Slice, schedules: pathlib.Path, price: float | None = None) -> Plan:
  """The plan of a completed run on a slice. What does not fit, or does not divide, is a result too."""
  found = devices(slice_)
  sizes = ", ".join(f"{k}={v}" for k, v in schema.plain(run.mesh).items() if v != 1)
  plan = Plan(slice_.name, slice_.rented, len(found), slice_.hosts, sizes or "data=1", hbm_limit=slice_.chip.memory)
  try:
    parts = build.build(run, found, catalog.known_split)
  except schema.ConfigError as error:
    return dataclasses.replace(plan, problem=str(error))
  sizes = ", ".join(f"{axis}={size}" for axis, size in parts.mesh.shape.items() if size > 1) or "data=1"
  plan = dataclasses.replace(plan, mesh=sizes, steps=parts.total)
  began = time.perf_counter()
  try:
    compiled = parts.compile()
    seconds = time.perf_counter() - began
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    needed, limit = _needed(str(error)), slice_.chip.memory
    problem = f"does not fit: {needed / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB; --search finds what does"
    return dataclasses.replace(
      plan,
      problem=problem if needed else str(error),
      hbm_bytes=needed,
      compile_seconds=time.perf_counter() - began,
    )
  finally:
    cycles = hlo.kernel_cycles(schedules)
    for file in schedules.iterdir():  # hundreds of megabytes, and not of the next program
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
    arithmetic = flops.count(parts.step, parts.state_shapes, parts.batch_shapes, parts.frozen_shapes) / count
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

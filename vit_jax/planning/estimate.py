"""A run on TPUs that are not there: its train step compiled with the TPU's own compiler, and what follows from that.

Nothing here ran on a TPU: `tables.METHOD` says what the figures mean.
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
from collections.abc import Callable, Iterator

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from vit_jax import build, config, extras, flops, hardware, schema
from vit_jax.data import catalog
from vit_jax.planning import evaluations, feed, hlo

WRITE_RATE = 0.5e9  # bytes a second that a host writes to a bucket: assumed, from usual throughputs of Cloud Storage


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a run would be on a slice. Per device unless said otherwise; times in seconds, sizes in bytes.

  Rates, hours and cost are those at which the run goes on: the devices' or, where it is input-bound, the hosts'.
  """

  topology: str
  rented: str  # Cloud TPU's name
  devices: int
  hosts: int
  mesh: str
  problem: str | None = None  # why there is no figure
  data_path: str | None = None  # where the config says that the images are
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
  step_seconds: float = 0.0  # of the devices, which may have to wait for data
  method: str = ""
  limit: str = ""  # arithmetic, memory or links
  shares: dict = dataclasses.field(default_factory=dict)  # seconds that each of them takes at its peak rate
  images_per_second_per_chip: float = 0.0
  mfu: float = 0.0
  steps: int = 0  # of the run
  hours: float = 0.0
  device_hours: float = 0.0  # if no device had to wait for data
  evaluations: dict = dataclasses.field(default_factory=dict)  # name -> times and images of each; None: not known
  evaluation_rate: float = 0.0  # images a second of all devices, by the arithmetic of a forward pass
  evaluation_hours: float = 0.0  # in none of the others, at this rate or that of the hosts
  core_days: float = 0.0  # TensorCores, as published costs are counted
  checkpoint_bytes: int = 0  # of the whole run's state
  checkpoint_seconds: float = 0.0
  images_per_second_per_host: float = 0.0  # that its input must sustain, or devices wait
  input_bytes_per_second_per_host: float | None = None  # of stored images
  host_rate: float = 0.0  # images a second that a host makes
  host_rate_method: str = ""  # where that is from
  input_step_seconds: float = 0.0  # that the hosts take for the images of a step
  input_bound: bool = False  # devices wait for data
  cost: float | None = None  # at --price

  @property
  def pace(self) -> float:
    """Seconds from one step to the next: what takes longer, devices or hosts."""
    return max(self.step_seconds, self.input_step_seconds)


@functools.cache
def _schedules() -> tempfile.TemporaryDirectory:
  """One for the process, as the compiler reads its flags once; goes with the process."""
  return tempfile.TemporaryDirectory(prefix="vit_jax_plan_")


@contextlib.contextmanager
def compiler(kernels: bool) -> Iterator[pathlib.Path]:
  """Makes the TPU's compiler usable, with JAX on the CPU, so that no device is touched; ConfigError if it is missing.

  Args:
    kernels: whether it writes the schedules of Pallas kernels, which the first use in a process decides. It then writes
      those of every operation, which takes as long as a third of compiling.

  Yields the folder to which it writes them.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise schema.ConfigError(f"the TPU's compiler needs {extras.advice('tpu')}")
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
  before = jax.config.jax_enable_compilation_cache
  _use_compilation_cache(False)
  try:
    yield pathlib.Path(folder)
  finally:
    _use_compilation_cache(before)


def _use_compilation_cache(use):
  jax.config.update("jax_enable_compilation_cache", use)
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


def make_plan(
  run: config.Run,
  slice_: hardware.Slice,
  schedules: pathlib.Path,
  price: float | None = None,
  host_rate: float | None = None,
  start: Callable[[str], None] = lambda activity: None,
) -> Plan:
  """Compiles the train step of a run for a slice and estimates what the run would need.

  Args:
    run: a completed run; its data may be absent.
    slice_: where it would be.
    schedules: the folder of `compiler`; it is emptied.
    price: of a chip for an hour.
    host_rate: images a second that one host makes, as measured; estimated from its cores if None.
    start: is called with a description of each activity that takes long, before it starts.

  Returns:
    The plan. Its `problem` is set if the run does not fit or its sizes do not divide.
  """
  label = _label(run, slice_)
  start(f"{label}: loading the TPU compiler")
  tpus = devices(slice_)
  wanted = ", ".join(f"{axis}={size}" for axis, size in schema.plain(run.mesh).items() if size != 1)
  plan = Plan(
    slice_.name, slice_.rented, len(tpus), slice_.hosts, wanted or "data=1",
    data_path=run.data.args.get("path"), hbm_limit=slice_.chip.memory,
  )  # fmt: skip
  start(f"{label}: building the train step")
  try:
    parts = build.build(run, tpus, catalog.known_split)
  except schema.ConfigError as error:
    return dataclasses.replace(plan, problem=str(error))
  sizes = ", ".join(f"{axis}={size}" for axis, size in parts.mesh.shape.items() if size > 1)
  plan = dataclasses.replace(plan, mesh=sizes or "data=1", steps=parts.total)
  start(f"{label}: compiling the train step")
  began = time.perf_counter()
  try:
    compiled = parts.compile()
    plan = dataclasses.replace(plan, compile_seconds=time.perf_counter() - began)
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    return _too_large(plan, str(error), time.perf_counter() - began)
  finally:
    start(f"{label}: reading the compiled program")
    cycles = hlo.kernel_cycles(schedules)
    for file in schedules.iterdir():  # hundreds of megabytes, and not of the next program
      file.unlink()
  plan = _step_estimate(plan, parts, compiled, slice_.chip, cycles)
  return _run_estimate(plan, parts, slice_, price, host_rate)


def _label(run, slice_):
  """The slice, the model and the choices of a search, as in "v3-32, ViT-L/16, fsdp=8, remat=full"."""
  mesh = [f"{axis}={size}" for axis, size in schema.plain(run.mesh).items() if size not in (-1, 1)]
  remat, accumulate = run.model.args.get("remat", "none"), run.optim.args["accumulate"]
  choices = [f"remat={remat}"] * (remat != "none") + [f"accumulate={accumulate}"] * (accumulate != 1)
  return ", ".join([slice_.rented, run.model.name, *mesh, *choices])


def _too_large(plan, message, seconds):
  needed, limit = _needed(message), plan.hbm_limit
  problem = f"does not fit: {needed / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB; --search finds what does"
  return dataclasses.replace(plan, problem=problem if needed else message, hbm_bytes=needed, compile_seconds=seconds)


def _needed(message: str) -> int:
  """Bytes that the compiler says it would need, from its error; 0 if it does not say."""
  sizes = re.findall(r"([\d.]+)([KMG]) of [\d.]+[KMG] hbm|temporaries \(([\d.]+)([KMG])\)", message)
  units = {"K": 2**10, "M": 2**20, "G": 2**30}
  return max((int(float(a or c) * units[b or d]) for a, b, c, d in sizes), default=0)


def _step_estimate(plan, parts, compiled, chip, kernel_cycles):
  """The plan with memory, arithmetic, traffic and seconds of a step."""
  memory, costs, program = compiled.memory_analysis(), compiled.cost_analysis(), hlo.read(compiled.as_text())
  if program.loops:  # XLA's own count takes a loop's body once
    arithmetic = flops.count(parts.step, parts.state_shapes, parts.batch_shapes, parts.frozen_shapes) / plan.devices
    flops_method, traffic = "matrix products of the program, over the devices", program.traffic
  else:
    arithmetic, traffic, flops_method = costs["flops"], costs["bytes accessed"], "compiler"
  moved = sum(kind.moved for kind in program.collectives.values())
  links = moved / chip.links + (program.network / chip.network if program.network else 0.0)
  shares = {"arithmetic": arithmetic / chip.peak, "memory": traffic / chip.bandwidth, "links": links}
  in_kernels = sum(calls * kernel_cycles.get(name, 0) for name, calls in program.kernels.items())
  seconds, method = (program.cycles + in_kernels) / chip.clock, "compiler's cycles"
  if program.kernels:
    method += " and kernels' schedules"
  if seconds < shares["arithmetic"] or not program.kernels.keys() <= kernel_cycles.keys():
    seconds, method = max(shares["arithmetic"], shares["memory"]), "roofline"
  return dataclasses.replace(
    plan,
    fits=True,
    hbm_arguments=memory.argument_size_in_bytes,
    hbm_temporaries=memory.temp_size_in_bytes,
    hbm_bytes=memory.argument_size_in_bytes + memory.temp_size_in_bytes,
    flops=arithmetic,
    flops_method=flops_method,
    bytes=traffic,
    collectives={kind: traffic._asdict() for kind, traffic in program.collectives.items()},
    network_bytes=program.network,
    kernels=program.kernels,
    step_seconds=seconds + links,
    method=method,
    limit=max(shares, key=shares.get),
    shares=shares,
  )


def _run_estimate(plan, parts, slice_, price, host_rate):
  """The plan with rates, hours and sizes of the run, which follow from the seconds of a step and the hosts' rate."""
  run, method = parts.run, "measured"
  if host_rate is None:
    each = feed.seconds_per_image(run)
    method = f"estimated: {slice_.vcpus} vCPUs, {each * 1e3:.1f} ms of one an image"
    host_rate = feed.host_rate(run, slice_)
  input_seconds = run.batch / plan.hosts / host_rate
  plan = dataclasses.replace(plan, input_step_seconds=input_seconds, input_bound=input_seconds > plan.step_seconds)
  images, wanted = run.batch / plan.pace, run.batch / plan.step_seconds / plan.hosts
  state = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(parts.state_shapes))
  image_bytes = feed.image_bytes(run.data)
  hours = parts.total * plan.pace / 3600
  measured = evaluations.of(parts)
  working = plan.step_seconds - plan.shares["links"]
  forward = run.batch / (working * evaluations.share(parts, plan.flops * plan.devices)) if parts.forward_flops else 0.0
  slowest = min(forward, host_rate * plan.hosts)
  return dataclasses.replace(
    plan,
    images_per_second_per_chip=images / slice_.chips,
    mfu=images * flops.TRAINING * parts.forward_flops / (plan.devices * slice_.chip.peak),
    hours=hours,
    device_hours=parts.total * plan.step_seconds / 3600,
    evaluations={name: each and each._asdict() for name, each in measured.items()},
    evaluation_rate=forward,
    evaluation_hours=evaluations.hours(measured, slowest) if slowest else 0.0,
    core_days=hours / 24 * slice_.cores,
    checkpoint_bytes=state,
    checkpoint_seconds=state / (plan.hosts * WRITE_RATE),
    images_per_second_per_host=wanted,
    input_bytes_per_second_per_host=image_bytes and image_bytes * wanted,
    host_rate=host_rate,
    host_rate_method=method,
    cost=price and price * slice_.chips * hours,
  )

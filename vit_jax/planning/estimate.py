"""Estimates of a run on TPUs that are not attached, from its train step compiled with the TPU compiler.

The step is never executed on a TPU. `tables.METHOD` explains the figures.
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
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.experimental import topologies
from jax.experimental.compilation_cache import compilation_cache

from vit_jax import schema
from vit_jax.data import catalog
from vit_jax.models import flops
from vit_jax.parallel import hardware
from vit_jax.planning import costs, evaluations, feed, hlo
from vit_jax.schema import extras
from vit_jax.training import build
from vit_jax.training.bound_run import BoundRun
from vit_jax.training.experiment import Experiment

WRITE_RATE = 0.5e9  # bytes/s that a host writes to a bucket, assumed from usual throughputs of Cloud Storage


@dataclasses.dataclass(frozen=True)
class Plan:
  """An estimate of a run on a slice.

  Values are per device unless stated otherwise. Times are in seconds and sizes in bytes. Rates, hours and cost describe
  the whole run. The devices determine these values, or the hosts if the run is input-bound.

  Attributes:
    topology: name of the topology.
    rented: name of the slice in Cloud TPU.
    devices: number of devices.
    hosts: number of hosts.
    mesh: axes of the mesh, such as "data=4, fsdp=8".
    problem: the reason for missing figures, otherwise None.
    data_path: location of the images in the config.
    fits: true if the step fits into the memory of the devices.
    hbm_limit: memory of a device.
    hbm_arguments: memory of the state and the batch.
    hbm_temporaries: memory of temporary values.
    hbm_bytes: sum of both. If the step does not fit, the memory that the compiler reports as needed.
    compile_seconds: time of compilation.
    flops: FLOPs of a step, including recomputation.
    flops_method: source of `flops`.
    bytes: bytes read and written in memory in a step.
    collectives: {kind: calls, payload and moved bytes of a step}.
    network_bytes: bytes sent to other slices in a step.
    kernels: {name: calls of this Pallas kernel in a step}.
    step_seconds: time of a step on the devices, without waiting for data.
    method: source of `step_seconds`.
    limit: "arithmetic", "memory" or "links".
    shares: {limit: seconds that a step would need at the peak rate of this limit}.
    parts: {name of a part of the step: its time in seconds}, see `costs.find_part`. Empty if `step_seconds` does not
      come from the compiler's cycles.
    kinds: {kind of operation: its time in seconds in a step}, see `costs.find_kind`. Empty in the same case.
    images_per_second_per_chip: throughput of the run.
    mfu: model FLOPs utilisation.
    steps: number of steps of the run.
    hours: hours of training.
    device_hours: hours of training if no device had to wait for data.
    evaluations: {name: number of measurements, and number of images of each}. None if the number of images is unknown.
    evaluation_rate: images/s of all devices in evaluation, from the arithmetic of a forward pass.
    evaluation_hours: hours of all evaluations at this rate, or at the rate of the hosts if that is lower.
    core_days: TensorCore-days, the unit of published costs.
    checkpoint_bytes: size of the state of the whole run.
    checkpoint_seconds: time to write a checkpoint. Training continues meanwhile.
    checkpoint_hours: hours in which training waits for the preceding checkpoint, see `compute_checkpoint_hours`.
    images_per_second_per_host: images/s that the input pipeline of each host must sustain to keep the devices busy.
    input_bytes_per_second_per_host: bytes/s of stored images for this rate, or None if their size is unknown.
    host_rate: images/s that a host can prepare.
    host_rate_method: source of `host_rate`.
    input_step_seconds: time in which the hosts prepare the images of a step.
    input_bound: true if the devices wait for data.
    cost: cost of the run at the given price, or None.
  """

  topology: str
  rented: str
  devices: int
  hosts: int
  mesh: str
  problem: str | None = None
  data_path: str | None = None
  fits: bool = False
  hbm_limit: int = 0
  hbm_arguments: int = 0
  hbm_temporaries: int = 0
  hbm_bytes: int = 0
  compile_seconds: float = 0.0
  flops: float = 0.0
  flops_method: str = ""
  bytes: float = 0.0
  collectives: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
  network_bytes: int = 0
  kernels: dict[str, int] = dataclasses.field(default_factory=dict)
  step_seconds: float = 0.0
  method: str = ""
  limit: str = ""
  shares: dict[str, float] = dataclasses.field(default_factory=dict)
  parts: dict[str, float] = dataclasses.field(default_factory=dict)
  kinds: dict[str, float] = dataclasses.field(default_factory=dict)
  images_per_second_per_chip: float = 0.0
  mfu: float = 0.0
  steps: int = 0
  hours: float = 0.0
  device_hours: float = 0.0
  evaluations: dict[str, dict[str, Any] | None] = dataclasses.field(default_factory=dict)
  evaluation_rate: float = 0.0
  evaluation_hours: float = 0.0
  core_days: float = 0.0
  checkpoint_bytes: int = 0
  checkpoint_seconds: float = 0.0
  checkpoint_hours: float = 0.0
  images_per_second_per_host: float = 0.0
  input_bytes_per_second_per_host: float | None = None
  host_rate: float = 0.0
  host_rate_method: str = ""
  input_step_seconds: float = 0.0
  input_bound: bool = False
  cost: float | None = None

  @property
  def pace(self) -> float:
    """Returns the seconds from one step to the next, as determined by the slower of devices and hosts."""
    return max(self.step_seconds, self.input_step_seconds)

  @property
  def total_hours(self) -> float:
    """Returns the hours of the whole run: training, evaluations, waiting for checkpoints, and one compilation."""
    return self.hours + self.evaluation_hours + self.checkpoint_hours + self.compile_seconds / 3600


@functools.cache
def _make_schedule_directory() -> tempfile.TemporaryDirectory[str]:
  """Returns the directory of kernel schedules. The process has only one, because the compiler reads its flags once."""
  return tempfile.TemporaryDirectory(prefix="vit_jax_plan_")


def delete_schedules() -> None:
  """Deletes the directory of kernel schedules. Call it before os._exit, which skips Python's own cleanup."""
  _make_schedule_directory().cleanup()


@contextlib.contextmanager
def use_tpu_compiler(kernels: bool) -> Iterator[pathlib.Path]:
  """Makes the TPU compiler usable inside a `with` block. JAX runs on the CPU, so that no device is touched.

  Args:
    kernels: write the schedules of Pallas kernels. The first use in a process decides this for the whole process. The
      compiler then writes the schedules of every operation, which adds about a third of the compile time.

  Yields:
    The directory to which the compiler writes the schedules.

  Raises:
    ConfigError: if libtpu is not installed.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise schema.ConfigError(f"the TPU's compiler needs {extras.format_advice('tpu')}")
  jax.config.update("jax_platforms", "cpu")
  for name, value in (
    ("TPU_SKIP_MDS_QUERY", "1"),  # otherwise libtpu queries the network for the type of this machine
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_ACCELERATOR_TYPE", "v3-8"),
    ("TPU_STDERR_LOG_LEVEL", "3"),
    ("TPU_MIN_LOG_LEVEL", "3"),
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),  # allows several plans, or a plan and a training run, at the same time
  ):
    os.environ.setdefault(name, value)
  folder, flags = _make_schedule_directory().name, os.environ.get("LIBTPU_INIT_ARGS", "")
  if kernels and folder not in flags:
    dump = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final"
    os.environ["LIBTPU_INIT_ARGS"] = f"{flags} {dump}".strip()
  # A cached program cannot be read without its device, and does not describe its kernels.
  before = jax.config.jax_enable_compilation_cache  # type: ignore[attr-defined]  # JAX declares few of its options
  _use_compilation_cache(False)
  try:
    yield pathlib.Path(folder)
  finally:
    _use_compilation_cache(before)


def _use_compilation_cache(use: bool) -> None:
  jax.config.update("jax_enable_compilation_cache", use)
  compilation_cache.reset_cache()  # otherwise the first compilation of the process decides


def make_topology_devices(slice_: hardware.Slice) -> list[jax.Device]:
  """Returns the devices of a slice that is not attached."""
  options: dict[str, Any] = {}
  chips = math.prod(slice_.grid)
  if slice_.generation == "v4":
    options["chip_config_name"] = "megacore"  # one device for both cores of a chip, as on Cloud TPU
  if slice_.generation.endswith("e") and chips in (1, 8):
    options["chips_per_host_bounds"] = (*slice_.grid, 1)
  if slice_.slices > 1:
    options["num_slices"] = slice_.slices
  return list(topologies.get_topology_desc(platform="tpu", topology_name=slice_.name, **options).devices)


def make_plan(
  run: BoundRun,
  slice_: hardware.Slice,
  schedules: pathlib.Path,
  price: float | None = None,
  host_rate: float | None = None,
  start: Callable[[str], None] = lambda activity: None,
) -> Plan:
  """Compiles the train step of a run for a slice and estimates the resources of the run.

  Args:
    run: a completed run. Its data may be absent.
    slice_: the slice to plan for.
    schedules: the directory that `use_tpu_compiler` yields. Its files are deleted.
    price: price per chip-hour, in any currency.
    host_rate: measured images/s that one host can prepare. None estimates the rate from the number of its cores.
    start: function that is called with the description of a long activity before the activity starts.

  Returns:
    The plan. Its `problem` is set if the run does not fit, or if its sizes are not divisible.
  """
  label = _describe_choices(run, slice_)
  start(f"{label}: loading the TPU compiler")
  tpus = make_topology_devices(slice_)
  wanted = ", ".join(f"{axis}={size}" for axis, size in schema.to_plain(run.mesh).items() if size != 1)
  plan = Plan(
    slice_.name, slice_.rented, len(tpus), slice_.hosts, wanted or "data=1",
    data_path=run.data.path, hbm_limit=slice_.chip.memory,
  )  # fmt: skip
  start(f"{label}: building the train step")
  try:
    experiment = build.build(run, tpus, catalog.open_known_split)
  except schema.ConfigError as error:
    return dataclasses.replace(plan, problem=str(error))
  sizes = ", ".join(f"{axis}={size}" for axis, size in experiment.mesh.shape.items() if size > 1)
  plan = dataclasses.replace(plan, mesh=sizes or "data=1", steps=experiment.total)
  start(f"{label}: compiling the train step")
  start_time = time.perf_counter()
  try:
    compiled = experiment.compile()
    plan = dataclasses.replace(plan, compile_seconds=time.perf_counter() - start_time)
  except jax.errors.JaxRuntimeError as error:
    if "RESOURCE_EXHAUSTED" not in str(error):
      raise
    needed = parse_needed_bytes(str(error))
    plan = dataclasses.replace(plan, hbm_bytes=needed, compile_seconds=time.perf_counter() - start_time)
    return _mark_too_large(plan) if needed else dataclasses.replace(plan, problem=str(error))
  finally:
    start(f"{label}: reading the compiled program")
    cycles = hlo.read_kernel_cycles(schedules)
    for file in schedules.iterdir():  # hundreds of megabytes that belong to this program only
      file.unlink()
  estimated = _estimate_step(plan, experiment, compiled, slice_.chip, cycles)
  if estimated.hbm_bytes > plan.hbm_limit:  # the compiler accepts some programs that need more
    return _mark_too_large(dataclasses.replace(plan, hbm_bytes=estimated.hbm_bytes))
  return estimate_run(estimated, experiment, slice_, price, host_rate)


def _describe_choices(run: BoundRun, slice_: hardware.Slice) -> str:
  """Returns the slice, the model and the choices of a search, as in "v3-32, ViT-L/16, fsdp=8, scan, remat=full"."""
  mesh = [f"{axis}={size}" for axis, size in schema.to_plain(run.mesh).items() if size not in (-1, 1)]
  remat, accumulate = run.model.args.get("remat", "none"), run.optim.accumulate
  choices = ["scan"] * bool(run.model.args.get("scan"))
  choices += [f"remat={remat}"] * (remat != "none") + [f"accumulate={accumulate}"] * (accumulate != 1)
  attention = run.model.args.get("attention")
  choices += ["fused attention"] * (isinstance(attention, schema.Choice) and attention.name == "fused")
  choices += ["int8"] * (run.model.args.get("matmul") == "int8")
  return ", ".join([slice_.rented, run.model.name, *mesh, *choices])


def _mark_too_large(plan: Plan) -> Plan:
  sizes = f"{plan.hbm_bytes / 2**30:.1f} GiB of {plan.hbm_limit / 2**30:.1f} GiB"
  problem = f"does not fit: {sizes}. Use --search to find a setting that fits"
  return dataclasses.replace(plan, problem=problem)


def parse_needed_bytes(message: str) -> int:
  """Returns the number of bytes that a program needs, read from an error of the compiler, or 0 if it states none."""
  sizes = re.findall(r"([\d.]+)([KMG]) of [\d.]+[KMG] hbm|temporaries \(([\d.]+)([KMG])\)", message)
  units = {"K": 2**10, "M": 2**20, "G": 2**30}
  return max((int(float(a or c) * units[b or d]) for a, b, c, d in sizes), default=0)


def _estimate_step(
  plan: Plan,
  experiment: Experiment,
  compiled: jax.stages.Compiled,
  chip: hardware.Chip,
  kernel_cycles: Mapping[str, float],
) -> Plan:
  """Returns the plan with memory, arithmetic, traffic and seconds of a step."""
  memory, counted, text = compiled.memory_analysis(), compiled.cost_analysis(), compiled.as_text()
  assert memory is not None and counted is not None and text is not None
  program = hlo.read_program(text)
  if program.loops:  # XLA's own count includes the body of a loop only once
    arithmetic = _count_step_flops(experiment) / plan.devices
    flops_method, traffic = "matrix products of the program, divided by the number of devices", program.traffic
  else:
    arithmetic, traffic, flops_method = counted["flops"], counted["bytes accessed"], "compiler"
  moved = sum(kind.moved for kind in program.collectives.values())
  links = moved / chip.links + (program.network / chip.network if program.network else 0.0)
  arithmetic_seconds = arithmetic / chip.peak
  if experiment.run.model.args.get("matmul") == "int8":
    integer = _count_step_flops(experiment, "int8") / plan.devices
    arithmetic_seconds += integer / chip.int8 - integer / chip.peak
  shares = {"arithmetic": arithmetic_seconds, "memory": traffic / chip.bandwidth, "links": links}
  in_kernels = sum(calls * kernel_cycles.get(name, 0) for name, calls in program.kernels.items())
  seconds, method = (program.cycles + in_kernels) / chip.clock, "compiler's cycles"
  if program.kernels:
    method += " and kernels' schedules"
  divide = functools.partial(costs.divide_step, program.operations, kernel_cycles, chip.clock, links)
  parts, kinds = divide(costs.find_part), divide(costs.find_kind)
  if seconds < shares["arithmetic"] or not program.kernels.keys() <= kernel_cycles.keys():
    seconds, method = max(shares["arithmetic"], shares["memory"]), "roofline"
    parts, kinds = {}, {}
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
    limit=max(shares, key=lambda name: shares[name]),
    shares=shares,
    parts=parts,
    kinds=kinds,
  )


def _count_step_flops(experiment: Experiment, dtype: str | None = None) -> int:
  """Returns the FLOPs of a step on all devices, of products with operands of any type or of one type."""
  shapes = experiment.state_shapes, experiment.batch_shapes, experiment.frozen_weight_shapes
  return flops.count_flops(experiment.step, *shapes, dtype=dtype)


def estimate_run(
  plan: Plan, experiment: Experiment, slice_: hardware.Slice, price: float | None, host_rate: float | None
) -> Plan:
  """Computes rates, hours and sizes of a run, which follow from the step time and the host rate.

  Args:
    plan: a plan with the figures of the compiled step.
    experiment: the run, built for the devices of the slice.
    slice_: the slice of TPUs.
    price: price per chip-hour, in any currency.
    host_rate: images per second that a host prepares, or None to estimate the rate from its number of cores.

  Returns:
    The plan with all figures of the run.
  """
  run, method = experiment.run, "measured"
  if host_rate is None:
    each = feed.estimate_seconds_per_image(run, experiment.task.fields.views)
    method = f"estimated: {slice_.vcpus} vCPUs, {each * 1e3:.1f} ms of CPU time per image"
    host_rate = feed.estimate_host_rate(run, slice_, experiment.task.fields.views)
  input_seconds = run.batch / plan.hosts / host_rate
  plan = dataclasses.replace(plan, input_step_seconds=input_seconds, input_bound=input_seconds > plan.step_seconds)
  images, wanted = run.batch / plan.pace, run.batch / plan.step_seconds / plan.hosts
  state = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(experiment.state_shapes))
  image_bytes = feed.get_image_bytes(run.data)
  hours = experiment.total * plan.pace / 3600
  measured = evaluations.list_evaluations(experiment)
  writing = state / (plan.hosts * WRITE_RATE)
  working = plan.step_seconds - plan.shares["links"]
  forward = (
    run.batch / (working * evaluations.compute_step_share(experiment, plan.flops * plan.devices))
    if experiment.forward_flops
    else 0.0
  )
  slowest = min(forward, host_rate * plan.hosts)
  return dataclasses.replace(
    plan,
    images_per_second_per_chip=images / slice_.chips,
    mfu=images * experiment.training_flops / (plan.devices * slice_.chip.peak),
    hours=hours,
    device_hours=experiment.total * plan.step_seconds / 3600,
    evaluations={name: each and each._asdict() for name, each in measured.items()},
    evaluation_rate=forward,
    evaluation_hours=evaluations.sum_hours(measured, slowest) if slowest else 0.0,
    core_days=hours / 24 * slice_.cores,
    checkpoint_bytes=state,
    checkpoint_seconds=writing,
    checkpoint_hours=compute_checkpoint_hours(writing, plan.pace, experiment.save_every, experiment.total),
    images_per_second_per_host=wanted,
    input_bytes_per_second_per_host=image_bytes and image_bytes * wanted,
    host_rate=host_rate,
    host_rate_method=method,
    cost=price and price * slice_.chips * hours,
  )


def compute_checkpoint_hours(writing: float, pace: float, every: int, total: int) -> float:
  """Returns the hours in which training waits for checkpoints.

  A checkpoint is written while training continues. The next save waits until the preceding checkpoint is complete.
  After the last step, training waits for the last checkpoint.

  Args:
    writing: seconds to write a checkpoint.
    pace: seconds of a step.
    every: steps between two checkpoints.
    total: steps of the whole run.
  """
  intervals = -(-total // every)  # the last one may be shorter
  return ((intervals - 1) * max(0.0, writing - every * pace) + writing) / 3600

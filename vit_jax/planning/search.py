"""A search for the fastest settings that fit a slice, and for settings that need less memory.

The settings are the mesh, scanned layers with rematerialisation, the number of micro-batches, fused attention, and
products of int8 numbers.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from vit_jax import config, schema
from vit_jax.models import int8, vit_choices
from vit_jax.parallel import hardware
from vit_jax.planning.estimate import Plan
from vit_jax.schema.signatures import read_keywords
from vit_jax.training.bound_run import BoundRun

# (scan, remat) in the order of their cost: first without savings, then from the cheapest method that saves memory.
SAVINGS = ((False, "none"), (True, "projections"), (True, "attention"), (True, "mlp"), (True, "full"))
MICRO_BATCHES = (1, 2, 4, 8)


class SearchedSettings(NamedTuple):
  """The settings that the search varies.

  Attributes:
    mesh: the mesh.
    scan: whether the layers are scanned.
    remat: policy of rematerialisation.
    micro_batches: number of micro-batches of a step.
    fused: whether attention is one fused kernel.
    matmul: products of the dense layers, see `models.int8`.
  """

  mesh: config.Mesh
  scan: bool
  remat: str
  micro_batches: int
  fused: bool
  matmul: int8.Matmul


def generate_plans(
  run: BoundRun, slice_: hardware.Slice, make_plan: Callable[[BoundRun, hardware.Slice], Plan]
) -> Iterator[Plan]:
  """Yields plans of a run for all suitable meshes of a slice, each as soon as it is made.

  For each mesh, the first rematerialisation that fits is used. The number of micro-batches is then doubled as long as
  this is faster. With the mesh and the micro-batches of the fastest plan, all pairs in `SAVINGS` are then tried,
  with and without fused attention. The fastest of all plans is finally made with the other choice of int8 products, if
  the chip has units for them.

  Args:
    run: a completed run.
    slice_: the slice to plan for.
    make_plan: function that plans a modified run on the slice. It usually compiles the run.
  """
  plans: dict[SearchedSettings, Plan] = {}
  fused, matmul = is_fused(run), run.model.args.get("matmul", "default")
  for mesh in list_meshes(slice_):
    fastest = math.inf
    for micro_batches in MICRO_BATCHES:
      plan = None
      for scan, remat in SAVINGS:
        settings = SearchedSettings(mesh, scan, remat, micro_batches, fused, matmul)
        changed = apply_settings(run, settings)
        if changed is None:
          continue
        plan = plans[settings] = make_plan(changed, slice_)
        yield _describe(plan, settings)
        if plan.fits or not plan.hbm_bytes:  # rematerialisation cannot change a problem without `hbm_bytes`
          break
      if plan is None:
        break
      faster = plan.fits and plan.pace < fastest
      if not faster and (fastest < math.inf or not plan.hbm_bytes):
        break
      fastest = plan.pace if faster else fastest
  fitting = [settings for settings, plan in plans.items() if plan.fits]
  if fitting:
    best = min(fitting, key=lambda settings: plans[settings].pace)
    for use in (False, True):
      for scan, remat in SAVINGS:
        settings = best._replace(scan=scan, remat=remat, fused=use)
        changed = None if settings in plans else apply_settings(run, settings)
        if changed is not None:
          plan = plans[settings] = make_plan(changed, slice_)
          yield _describe(plan, settings)
    best = min((each for each, plan in plans.items() if plan.fits), key=lambda settings: plans[settings].pace)
    settings = best._replace(matmul="default" if matmul == "int8" else "int8")
    if not math.isnan(slice_.chip.int8) and (changed := apply_settings(run, settings)) is not None:
      yield _describe(make_plan(changed, slice_), settings)


def _describe(plan: Plan, settings: SearchedSettings) -> Plan:
  """Returns the plan with a description of all settings in its `mesh`."""
  choices = [plan.mesh, "scan" if settings.scan else "unrolled", f"remat {settings.remat}"]
  choices += [f"micro-batches {settings.micro_batches}", *(["fused attention"] if settings.fused else [])]
  choices += ["int8"] if settings.matmul == "int8" else []
  return dataclasses.replace(plan, mesh=f"{choices[0]}; {', '.join(choices[1:])}")


def rank_plans(plans: Sequence[Plan]) -> list[Plan]:
  """Returns the plans that fit, fastest first, followed by the other plans.

  Plans that are input-bound at the same rate are ordered by the time of their steps.
  """
  return sorted(plans, key=lambda plan: (not plan.fits, plan.pace, plan.step_seconds))


def find_pareto_front(plans: Sequence[Plan]) -> list[Plan]:
  """Returns the Pareto-optimal plans in time and memory, the fastest first.

  Args:
    plans: plans of one slice.
  """
  front: list[Plan] = []
  for plan in sorted(plans, key=lambda plan: (plan.pace, plan.hbm_bytes)):
    if plan.fits and (not front or plan.hbm_bytes < front[-1].hbm_bytes):
      front.append(plan)
  return front


def list_meshes(slice_: hardware.Slice) -> list[config.Mesh]:
  """Returns the meshes that are worth trying on a slice. The replica axis spans the slices.

  The parameters are replicated, or split over all devices, over 8 or over 32 devices. The last mesh has a tensor axis
  of size 2.

  Example:
    from vit_jax.parallel import hardware
    from vit_jax.planning import search

    for mesh in search.list_meshes(hardware.parse_slice("v3-32")):
      print(mesh)
  """
  devices = slice_.chips * hardware.GENERATIONS[slice_.generation].devices // slice_.slices
  shapes = [(1, 1), (devices, 1), *((n, 1) for n in (8, 32) if n < devices), (devices // 2, 2)]
  return [
    config.Mesh(replica=slice_.slices, data=-1, fsdp=fsdp, tensor=tensor)
    for fsdp, tensor in dict.fromkeys(shapes)
    if 0 < fsdp * tensor <= devices
  ]


def supports_fused(run: BoundRun) -> bool:
  """Returns true if the run has attention of XLA that the fused kernel can replace."""
  attention = run.model.args.get("attention")
  if not isinstance(attention, schema.Choice) or attention.name != "xla" or attention.args["dropout"]:
    return False
  return run.model.args["position"].name != "relative"


def is_fused(run: BoundRun) -> bool:
  """Returns true if the attention of a run is one fused kernel."""
  attention = run.model.args.get("attention")
  return isinstance(attention, schema.Choice) and attention.name == "fused"


def apply_settings(run: BoundRun, settings: SearchedSettings) -> BoundRun | None:
  """Returns the run with these settings, or None if its model does not support them.

  Args:
    run: a completed run.
    settings: the settings.
  """
  keys, model = run.model.args.keys(), run.model
  if not {"scan", "remat"} <= keys and settings.remat != "none":
    return None
  if "scan" in keys:
    model = model.replace(scan=settings.scan, remat=settings.remat)
  if settings.matmul != model.args.get("matmul", "default"):
    if "matmul" not in keys:
      return None
    model = model.replace(matmul=settings.matmul)
  if settings.fused != is_fused(run):
    if settings.fused and not supports_fused(run):
      return None
    name = "fused" if settings.fused else "xla"
    kind = vit_choices.ATTENTION[name]
    args = {key: value for key, value in model.args["attention"].args.items() if key in read_keywords(kind)}
    model = model.replace(attention=schema.bind(schema.Choice(name, args), (kind,)))
  optim = run.optim.replace(accumulate=settings.micro_batches)
  return dataclasses.replace(run, mesh=settings.mesh, model=model, optim=optim)

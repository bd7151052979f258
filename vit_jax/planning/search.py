"""A search for the fastest mesh, rematerialisation and number of micro-batches that fit a slice."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from vit_jax import config
from vit_jax.parallel import hardware
from vit_jax.planning.estimate import Plan
from vit_jax.training.bound_run import BoundRun

# (scan, remat) in the order of their cost: first without savings, then from the cheapest method that saves memory.
SAVINGS = ((False, "none"), (True, "projections"), (True, "attention"), (True, "mlp"), (True, "full"))
MICRO_BATCHES = (1, 2, 4, 8)


def generate_plans(
  run: BoundRun, slice_: hardware.Slice, make_plan: Callable[[BoundRun, hardware.Slice], Plan]
) -> Iterator[Plan]:
  """Yields plans of a run for all suitable meshes of a slice, each as soon as it is made.

  For each mesh, the first rematerialisation that fits is used. The number of micro-batches is then doubled as long as
  this is faster.

  Args:
    run: a completed run.
    slice_: the slice to plan for.
    make_plan: function that plans a modified run on the slice. It usually compiles the run.
  """
  for mesh in list_meshes(slice_):
    fastest = math.inf
    for micro_batches in MICRO_BATCHES:
      plan = None
      for scan, remat in SAVINGS:
        changed = _replace_choices(run, mesh, scan, remat, micro_batches)
        if changed is None:
          continue
        plan = make_plan(changed, slice_)
        layers = "scan" if scan else "unrolled"
        choices = f"{plan.mesh}; {layers}, remat {remat}, micro-batches {micro_batches}"
        yield dataclasses.replace(plan, mesh=choices)
        if plan.fits or not plan.hbm_bytes:  # rematerialisation cannot change a problem without `hbm_bytes`
          break
      if plan is None:
        break
      faster = plan.fits and plan.pace < fastest
      if not faster and (fastest < math.inf or not plan.hbm_bytes):
        break
      fastest = plan.pace if faster else fastest


def rank_plans(plans: Sequence[Plan]) -> list[Plan]:
  """Returns the plans that fit, fastest first, followed by the other plans.

  Plans that are input-bound at the same rate are ordered by the time of their steps.
  """
  return sorted(plans, key=lambda plan: (not plan.fits, plan.pace, plan.step_seconds))


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


def _replace_choices(run: BoundRun, mesh: config.Mesh, scan: bool, remat: str, micro_batches: int) -> BoundRun | None:
  """Returns the run with these choices, or None if its model does not support them."""
  keys = run.model.args.keys()
  if not {"scan", "remat"} <= keys and remat != "none":
    return None
  model = run.model.replace(scan=scan, remat=remat) if "scan" in keys else run.model
  return dataclasses.replace(run, mesh=mesh, model=model, optim=run.optim.replace(accumulate=micro_batches))

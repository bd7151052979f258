"""The search for the fastest mesh, rematerialisation and micro-batches that fit a slice."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

from vit_jax import config, hardware, schema
from vit_jax.planning.estimate import Plan

# Scan and rematerialisation by what they cost: nothing, then from the cheapest that saves memory on.
SAVINGS = ((False, "none"), (True, "projections"), (True, "attention"), (True, "mlp"), (True, "full"))
MICRO_BATCHES = (1, 2, 4, 8)


def candidates(
  run: config.Run, slice_: hardware.Slice, make_plan: Callable[[config.Run, hardware.Slice], Plan]
) -> Iterator[Plan]:
  """Plans of the run on all meshes that suit a slice, each as soon as it is made.

  For each mesh the first rematerialisation that fits; for it, twice as many micro-batches as long as that is faster.

  Args:
    run: a completed run.
    slice_: where it would be.
    make_plan: of a changed run on the slice, which usually compiles it.
  """
  for mesh in meshes(slice_):
    fastest = math.inf
    for micro_batches in MICRO_BATCHES:
      plan = None
      for scan, remat in SAVINGS:
        changed = _changed(run, mesh, scan, remat, micro_batches)
        if changed is None:
          continue
        plan = make_plan(changed, slice_)
        layers = "scan" if scan else "unrolled"
        choices = f"{plan.mesh}; {layers}, remat {remat}, micro-batches {micro_batches}"
        yield dataclasses.replace(plan, mesh=choices)
        if plan.fits or not plan.hbm_bytes:  # fits, or fails for a reason that rematerialisation does not mend
          break
      faster = plan.fits and plan.pace < fastest
      if not faster and (fastest < math.inf or not plan.hbm_bytes):
        break
      fastest = plan.pace if faster else fastest


def ranked(plans: Sequence[Plan]) -> list[Plan]:
  """The plans that fit, fastest first, then the others. Of those that wait for data, the fastest step."""
  return sorted(plans, key=lambda plan: (not plan.fits, plan.pace, plan.step_seconds))


def meshes(slice_: hardware.Slice) -> list[config.Mesh]:
  """Meshes worth trying: parameters whole, split over all devices, over 8 or 32 of them, and a tensor axis of 2.

  The replicas are the slices.
  """
  devices = slice_.chips * hardware.GENERATIONS[slice_.generation].devices // slice_.slices
  shapes = [(1, 1), (devices, 1), *((n, 1) for n in (8, 32) if n < devices), (devices // 2, 2)]
  return [
    config.Mesh(replica=slice_.slices, data=-1, fsdp=fsdp, tensor=tensor)
    for fsdp, tensor in dict.fromkeys(shapes)
    if 0 < fsdp * tensor <= devices
  ]


def _changed(run, mesh, scan, remat, micro_batches):
  """The run with these choices; None where its model has no such argument."""
  args = dict(run.model.args)
  if not {"scan", "remat"} <= args.keys() and remat != "none":
    return None
  if "scan" in args:
    args |= {"scan": scan, "remat": remat}
  optim = dict(run.optim.args) | {"accumulate": micro_batches}
  return dataclasses.replace(
    run,
    mesh=mesh,
    model=schema.Choice(run.model.name, args),
    optim=schema.Choice(run.optim.name, optim),
  )

"""Tests of the search of meshes, rematerialisation and micro-batches: candidates, order and stopping."""

import dataclasses

import numpy as np
import pytest

from tests import runs
from vit_jax import schema
from vit_jax.parallel import hardware
from vit_jax.planning import search
from vit_jax.planning.estimate import Plan

V3 = hardware.parse_slice("v3-8")


def plan(seconds, needed=1):
  """Returns a plan with `seconds` per step, or a plan that does not fit and needs so many bytes.

  With 0 bytes, the plan is impossible.
  """
  base = Plan("v3:2x2", "v3-8", 8, 1, "data=8", hbm_bytes=needed)
  if seconds is None:
    return dataclasses.replace(base, problem="does not fit")
  return dataclasses.replace(base, fits=True, step_seconds=seconds)


def searched(answer):
  """Returns the plans of a search, and the requested candidates.

  `answer(fsdp, remat, micro-batches)` is the plan of a candidate. With fused attention, micro-batches are negative.
  """
  asked = []

  def make_plan(run, slice_):
    assert slice_ == V3
    args = run.model.args
    assert args["scan"] == (args["remat"] != "none")
    fused, micro_batches = args["attention"].name == "fused", run.optim.args["accumulate"]
    asked.append((run.mesh.fsdp, args["remat"], -micro_batches if fused else micro_batches))
    return answer(*asked[-1])

  return list(search.generate_plans(runs.imagenet(), V3, make_plan)), asked


def test_micro_batches_are_doubled_while_steps_get_faster():
  seconds = {(1, 1): 3.0, (1, 2): 2.0, (1, 4): 2.5, (8, 1): 1.0, (8, 2): 1.5, (4, 1): 5.0, (4, 2): 5.0}
  plans, asked = searched(lambda fsdp, remat, micro_batches: plan(seconds.get((fsdp, micro_batches))))
  plans, asked, refined = plans[:7], asked[:7], asked[7:]
  assert asked == [(fsdp, "none", micro_batches) for fsdp, micro_batches in seconds]
  assert [p.step_seconds for p in plans] == list(seconds.values())
  assert [p.step_seconds for p in search.rank_plans(plans)] == sorted(seconds.values())
  # The fastest plan has fsdp=8 and one micro-batch.
  saving = ["none", "projections", "attention", "mlp", "full"]
  assert refined == [(8, remat, 1) for remat in saving[1:]] + [(8, remat, -1) for remat in saving]
  assert plans[0].mesh == "data=8; unrolled, remat none, micro-batches 1"


def test_input_bound_plans_are_ranked_by_their_total_time():
  quick, slow = dataclasses.replace(plan(1.0), input_step_seconds=4.0, input_bound=True), plan(3.0)
  even = dataclasses.replace(plan(2.0), input_step_seconds=4.0, input_bound=True)
  assert search.rank_plans([even, quick, plan(None), slow])[:3] == [slow, quick, even]


def test_micro_batches_stop_if_the_input_is_the_bottleneck():
  _, asked = searched(lambda *choice: dataclasses.replace(plan(1 / choice[2]), input_step_seconds=2.0))
  assert [micro_batches for fsdp, _, micro_batches in asked if fsdp == 1][:2] == [1, 2]
  assert asked[2][0] == 8


def test_memory_is_saved_step_by_step_until_a_run_fits():
  plans, asked = searched(lambda *choice: plan(1.0 if choice == (1, "mlp", 2) else None))
  first, *others = search.rank_plans(plans)
  assert first.fits and not any(p.fits for p in others)
  assert first.mesh == "data=8; scan, remat mlp, micro-batches 2"
  saving = ["none", "projections", "attention", "mlp", "full"]
  assert [remat for _, remat, _ in asked[:14]] == saving + saving[:4] + saving
  assert asked[-6:] == [(1, "full", 2), *((1, remat, -2) for remat in saving)]
  assert search.find_pareto_front(plans) == [first]


def test_fused_attention_is_described_and_keeps_the_other_choices():
  made = []

  def make_plan(run, slice_):
    made.append(run.model.args["attention"])
    return plan(1.0)

  run = runs.imagenet(model__attention__qk_norm="rms")
  plans = list(search.generate_plans(run, V3, make_plan))
  assert plans[-1].mesh == "data=8; scan, remat full, micro-batches 1, fused attention"
  assert (made[0].name, made[-1].name, made[-1].args["qk_norm"]) == ("xla", "fused", "rms")
  resolved = runs.imagenet(model__attention__name="fused", model__attention__qk_norm="rms").model.args["attention"]
  assert made[-1] == resolved and made[-1].args == resolved.args


def test_attention_of_xla_is_tried_for_a_run_with_fused_attention():
  run = runs.imagenet(model__attention__name="fused", model__attention__qk_norm="rms")
  made = []

  def make_plan(run, slice_):
    made.append(run.model.args["attention"])
    return plan(1.0)

  plans = list(search.generate_plans(run, V3, make_plan))
  other = [attention for attention in made if attention.name == "xla"]
  assert len(other) == len(search.SAVINGS) and len([p for p in plans if "fused" not in p.mesh]) == len(other)
  resolved = runs.imagenet(model__attention__qk_norm="rms").model.args["attention"]
  assert other[0] == resolved


@pytest.mark.parametrize(
  "changes",
  [
    dict(model__position__name="relative"),
    dict(model__attention__dropout=0.1),
    dict(model__attention__name="differential"),
  ],
)
def test_fused_attention_is_not_tried_if_the_kernel_does_not_support_the_model(changes):
  run = runs.imagenet(**changes)
  assert not search.supports_fused(run)
  plans = list(search.generate_plans(run, V3, lambda run, slice_: plan(1.0)))
  assert plans and not any("fused" in p.mesh for p in plans)


@pytest.mark.parametrize(("topology", "own"), [("v5e-8", "default"), ("v6e-8", "int8"), ("v3-8", "default")])
def test_other_products_are_tried_with_the_fastest_plan(topology, own):
  made = []

  def make_plan(run, slice_):
    args = run.model.args
    made.append((args["matmul"], args["attention"].name, args["remat"]))
    return plan(1.0 if made[-1][1:] == ("fused", "mlp") else 2.0)

  slice_ = hardware.parse_slice(topology)
  plans = list(search.generate_plans(runs.imagenet(model__matmul=own), slice_, make_plan))
  others = [each for each in made if each[0] != own]
  assert others == ([] if topology == "v3-8" else [("int8" if own == "default" else "default", "fused", "mlp")])
  assert [p.mesh.endswith(", int8") for p in plans] == [each[0] == "int8" for each in made]


def test_products_are_not_tried_for_models_without_them():
  run = runs.imagenet()
  args = {key: value for key, value in run.model.args.items() if key != "matmul"}
  run = dataclasses.replace(run, model=schema.Choice(run.model.name, args))
  plans = list(search.generate_plans(run, hardware.parse_slice("v5e-8"), lambda run, slice_: plan(1.0)))
  assert plans and not any("int8" in p.mesh for p in plans)


def test_pareto_front_has_the_plans_that_no_other_plan_surpasses():
  rng = np.random.default_rng(0)
  plans = [plan(float(s), int(b)) for s, b in rng.integers(1, 30, (60, 2))] + [plan(None, 1)]
  front = search.find_pareto_front(plans)
  fitting = {(p.step_seconds, p.hbm_bytes) for p in plans if p.fits}
  best = {(s, b) for s, b in fitting if not any(t <= s and c <= b and (t, c) != (s, b) for t, c in fitting)}
  assert [(p.step_seconds, p.hbm_bytes) for p in front] == sorted(best)


def test_next_mesh_is_tried_if_saving_memory_does_not_help():
  plans, asked = searched(lambda *_: plan(None, needed=0))
  assert asked == [(1, "none", 1), (8, "none", 1), (4, "none", 1)] and len(plans) == 3


@pytest.mark.parametrize(
  ("slice_", "shapes"),
  [
    ("v3-8", [(1, 1, 1), (1, 8, 1), (1, 4, 2)]),
    ("v5e-1", [(1, 1, 1)]),
    ("2xv5e-64", [(2, 1, 1), (2, 64, 1), (2, 8, 1), (2, 32, 1), (2, 32, 2)]),
  ],
)
def test_meshes_match_the_slice(slice_, shapes):
  meshes = search.list_meshes(hardware.parse_slice(slice_))
  assert [(mesh.replica, mesh.fsdp, mesh.tensor) for mesh in meshes] == shapes
  assert {mesh.data for mesh in meshes} == {-1}

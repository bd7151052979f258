"""Tests of plans of small runs with the TPU compiler, and of the messages for invalid runs."""

import dataclasses
import json
import math
import warnings

import jax
import pytest

from tests import runs
from vit_jax import schema
from vit_jax.data import catalog
from vit_jax.models import flops
from vit_jax.parallel import hardware, sharding
from vit_jax.planning import estimate, feed, hlo
from vit_jax.training import build

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def schedules():
  jax.jit(lambda x: x + 1)(1.0)  # lets the process decide whether it uses the compilation cache
  with estimate.use_tpu_compiler(kernels=True) as folder:
    yield folder


V3 = hardware.parse_slice("v3-8")


ACTIVITIES = []


@pytest.fixture(scope="module")
def planned(schedules):
  rates = {"price": 2.0, "host_rate": 1e9}  # fast enough that no device waits
  return estimate.make_plan(runs.imagenet(), V3, schedules, **rates, start=ACTIVITIES.append)


@pytest.mark.long
def test_each_long_activity_is_named_before_it_starts(planned):
  names = ["loading the TPU compiler", "building the train step", "compiling the train step"]
  assert [f"v3-8, ViT-S/16: {name}" for name in [*names, "reading the compiled program"]] == ACTIVITIES


class FirstActivity(Exception):
  """Ends a plan at its first activity, before any compilation."""


def test_name_of_an_activity_contains_the_choices_of_a_search(tmp_path):
  def start(activity):
    raise FirstActivity(activity)

  run = runs.imagenet(mesh__fsdp=8, model__scan=True, model__remat="full", optim__accumulate=2)
  with pytest.raises(FirstActivity, match=r"^v3-8, ViT-S/16, fsdp=8, scan, remat=full, accumulate=2: "):
    estimate.make_plan(run, V3, tmp_path, start=start)


def test_plan_matches_a_compilation_of_the_same_step(planned):
  parts = build.build(runs.imagenet(), estimate.make_topology_devices(V3), catalog.open_known_split)
  with warnings.catch_warnings(action="error"):  # fails if a cached program cannot be read
    compiled = parts.step.lower(parts.state_shapes, parts.batch_shapes, parts.frozen_weight_shapes).compile()
  memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
  assert planned.fits and planned.problem is None
  assert planned.hbm_bytes == memory.argument_size_in_bytes + memory.temp_size_in_bytes < planned.hbm_limit
  assert (planned.flops, planned.bytes) == (costs["flops"], costs["bytes accessed"])
  assert planned.collectives == {k: v._asdict() for k, v in hlo.read_program(compiled.as_text()).collectives.items()}
  shapes = parts.state_shapes
  assert planned.hbm_arguments >= sharding.count_bytes_per_device(shapes)
  assert planned.checkpoint_bytes == sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(shapes))


def test_parts_of_a_step_add_up(planned):
  assert planned.parts.keys() == {
    "augmentation", "forward and backward", "optimizer and average", "other", "collectives",
  }  # fmt: skip
  assert sum(planned.parts.values()) == pytest.approx(planned.step_seconds)
  assert planned.parts["forward and backward"] > planned.parts["optimizer and average"] > 0
  assert planned.kinds.keys() == {
    "matrix products", "attention", "normalisation", "optimizer and average", "collectives", "copies", "other",
  }  # fmt: skip
  assert sum(planned.kinds.values()) == pytest.approx(planned.step_seconds)
  for name in ("collectives", "optimizer and average"):
    assert planned.kinds[name] == planned.parts[name]


def test_figures_of_a_run_follow_from_those_of_a_step(planned):
  examples = 1_268_355  # train[:99%] of ImageNet
  assert planned.steps == round(90 * examples / 64)
  assert not planned.input_bound and planned.host_rate_method == "measured"
  assert planned.hours == planned.device_hours == pytest.approx(planned.steps * planned.step_seconds / 3600)
  assert planned.core_days == pytest.approx(planned.hours / 24 * 8)
  assert planned.cost == pytest.approx(2.0 * 4 * planned.hours)  # the price is per chip, and there are four chips
  assert planned.images_per_second_per_chip == pytest.approx(64 / planned.step_seconds / 4)
  assert planned.images_per_second_per_host == pytest.approx(64 / planned.step_seconds)
  assert planned.input_bytes_per_second_per_host == pytest.approx(115_000 * 64 / planned.step_seconds)
  assert 0 < planned.mfu < 1
  assert planned.shares["links"] < planned.step_seconds
  assert planned.limit == max(planned.shares, key=planned.shares.get)
  json.dumps(dataclasses.asdict(planned))


@pytest.mark.parametrize("host_rate", [1000.0, None])
def test_devices_wait_for_hosts_that_prepare_too_few_images(planned, host_rate):
  """Uses hosts with a measured rate and with an estimated rate.

  Their cores cannot feed so small a model.
  """
  parts = build.build(runs.imagenet(), estimate.make_topology_devices(V3), catalog.open_known_split)
  slow = estimate.estimate_run(planned, parts, V3, 2.0, host_rate)
  made = host_rate or feed.estimate_host_rate(runs.imagenet(), V3)
  assert slow.input_bound and made < slow.images_per_second_per_host == planned.images_per_second_per_host
  assert slow.host_rate == made and ("96 vCPUs" in slow.host_rate_method) == (host_rate is None)
  # 90 epochs of images through one host, up to the rounding of the steps.
  assert slow.hours == pytest.approx(90 * 1_268_355 / made / 3600, rel=1e-4)
  assert slow.device_hours == planned.hours < slow.hours
  assert slow.cost == pytest.approx(2.0 * 4 * slow.hours) and slow.core_days == pytest.approx(slow.hours / 24 * 8)
  assert slow.images_per_second_per_chip == pytest.approx(made / 4)
  assert slow.mfu / planned.mfu == pytest.approx(planned.step_seconds / slow.pace)
  # Evaluations wait too, and are included only in the hours of the whole run.
  images = sum(each["times"] * each["images"] for each in slow.evaluations.values())
  assert slow.evaluation_hours == pytest.approx(images / made / 3600)
  assert slow.evaluation_hours > planned.evaluation_hours > 0
  assert slow.total_hours > slow.hours + slow.evaluation_hours


@pytest.mark.parametrize(("writing", "expected"), [(60.0, 60.0), (100.0, 100.0), (150.0, 3 * 50.0 + 150.0)])
def test_training_waits_for_checkpoints_that_take_longer_than_their_interval(writing, expected):
  """Four checkpoints at 100, 200, 300 and 390 seconds of training are compared with a simulation."""
  now = done = 0.0
  for interval in (100.0, 100.0, 100.0, 90.0):
    now = max(now + interval, done)
    done = now + writing
  hours = estimate.compute_checkpoint_hours(writing, 10.0, 10, 39)
  assert hours == pytest.approx(expected / 3600)
  assert hours * 3600 == pytest.approx(done - 390.0, abs=10.0)  # the last interval is counted as a whole one


@pytest.mark.long
def test_scanned_step_counts_every_layer(schedules, planned):
  choices = {"model__scan": True, "model__remat": "dots", "model__depth": 6}  # this policy recomputes no products
  scanned = estimate.make_plan(runs.imagenet(**choices), V3, schedules)
  assert scanned.flops_method != planned.flops_method == "compiler"
  unrolled = build.build(runs.imagenet(model__depth=6), estimate.make_topology_devices(V3), catalog.open_known_split)
  products = flops.count_flops(
    unrolled.step, unrolled.state_shapes, unrolled.batch_shapes, unrolled.frozen_weight_shapes
  )
  assert scanned.flops == pytest.approx(products / 8, rel=0.01)
  # A step of two layers is faster, and so many times as many layers are slower. Parts outside the layers count once.
  assert planned.step_seconds < scanned.step_seconds < 6 * planned.step_seconds


@pytest.mark.long
def test_cycles_of_a_kernel_are_in_the_estimate(schedules):
  fused = estimate.make_plan(runs.imagenet(model__attention="fused"), V3, schedules)
  assert fused.kernels == {"fused_attention_forward": 2, "fused_attention_backward": 2}
  assert fused.method == "compiler's cycles and kernels' schedules"
  assert not list(schedules.iterdir())


@pytest.mark.long
def test_run_that_does_not_fit_gives_a_plan_with_the_problem(schedules):
  whole = dict.fromkeys(("model__depth", "model__width", "model__hidden", "model__heads"), "default")
  big = estimate.make_plan(runs.imagenet(model__name="ViT-G/14", data__image_size=28, **whole), V3, schedules)
  assert not big.fits
  assert "ViT-G/14 needs" in big.problem and "config.mesh.fsdp" in big.problem
  large = dict(batch=2**16, data__image_size=224, model__width=512, model__hidden=2048, optim__warmup="1%")
  wide = estimate.make_plan(runs.imagenet(**large), V3, schedules)
  assert not wide.fits and "does not fit" in wide.problem
  assert wide.hbm_bytes > wide.hbm_limit
  odd = estimate.make_plan(runs.imagenet(batch=1023), V3, schedules)
  assert "cannot be divided over 8 devices" in odd.problem


@pytest.mark.long
def test_program_that_needs_more_than_the_memory_does_not_fit(planned, schedules, monkeypatch):
  memory = planned.hbm_bytes - 1
  kind = hardware.GENERATIONS[V3.generation].kind
  monkeypatch.setitem(hardware.CHIPS, kind, V3.chip._replace(memory=memory))
  plan = estimate.make_plan(runs.imagenet(), V3, schedules)
  assert (plan.fits, plan.hbm_bytes) == (False, memory + 1)
  assert plan.problem.startswith("does not fit:")


def test_needed_memory_is_parsed_from_compiler_messages():
  for text in (
    "Ran out of memory on HBM, the total memory required for HLO temporaries (149.06G) exceeds available HBM (15.48G).",
    "Ran out of memory in memory space hbm. Used 149.06G of 15.48G hbm. Exceeded hbm capacity by 133.58G.",
  ):
    assert estimate.parse_needed_bytes(text) == int(149.06 * 2**30)
  assert estimate.parse_needed_bytes("something else") == 0


def test_error_without_the_compiler_names_the_extra(monkeypatch):
  monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
  with (
    pytest.raises(schema.ConfigError, match=r"needs the extra tpu: pip install -e '.\[tpu\]'"),
    estimate.use_tpu_compiler(False),
  ):
    pass

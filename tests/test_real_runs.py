"""Tests of the comparison of plans with published runs: numbers of evaluations, settings, and the table."""

import math

import pytest

from benchmarks import published_runs, real_runs
from vit_jax.training.bound_run import BoundRun


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
  folder = tmp_path_factory.mktemp("teacher")
  return {program.name: program for program in published_runs.list_programs(folder)}


def test_evaluations_are_counted_as_in_the_loop_of_the_published_code():
  images, padded, steps = 1_268_355, 13 * 1024 + 2 * 49 * 1024 + 10 * 1024, 90 * 1_268_355 // 1024
  counted = 90 * published_runs.count_evaluated(published_runs.BIG_VISION, 1024, 1000 * 1024 / images)
  measured = sum(padded for step in range(1, steps + 1) if step % 1000 == 0)
  assert counted == pytest.approx(measured, rel=0.01)
  assert published_runs.count_evaluated({"a": 5, "b": 8}, 4, 0.5) == 2 * (8 + 8)


@pytest.mark.parametrize("name", ["big_vision ViT-S/16", "big_vision Mixer-B/16", "big_vision R50x1", "deit.py:B"])
def test_runs_have_the_published_settings(programs, name):
  run = real_runs.make_run(programs[name])
  assert isinstance(run, BoundRun) and not run.evals
  assert run.model.args["dtype"] == "float32" and run.mesh.fsdp == 1
  assert run.batch == {"big_vision ViT-S/16": 1024, "deit.py:B": 1024}.get(name, 4096)


def test_number_of_blocks_can_be_reduced(programs):
  assert real_runs.make_run(programs["deit3.py:H,i1k,400"], 8).model.args["depth"] == 8


@pytest.mark.long
def test_distillation_has_the_published_teacher(programs):
  run = real_runs.make_run(programs["big_vision R152x2 to R50x1"])
  assert run.task.args["teacher"].endswith("r152x2.npz") and run.task.args["weight"] == 1.0


def test_hours_follow_from_the_times_of_a_step(programs):
  program = programs["big_vision ViT-S/16"]
  of = real_runs.StepTimes(step=0.2, links=0.001, forward=1 / 16_000)
  official, independent = real_runs.make_rows(program, 1024, of)
  steps = 90 * 1_268_355 / 1024
  assert official.steps == independent.steps == pytest.approx(steps * 0.2 / 3600)
  assert official.evaluations == pytest.approx(steps / 1000 * 123_904 / 16_000 / 3600)
  assert not official.waits and official.planned == official.steps + official.evaluations
  assert independent.published == pytest.approx(7.3667, abs=1e-4)


def test_table_has_the_median_of_the_runs_that_do_not_wait_for_input():
  rows = [real_runs.RunHours("a", 90, 10.0, planned, 0.0, 0.0, 0.0) for planned in (9.0, 9.5, 12.0)]
  waiting = real_runs.RunHours("b", 90, 10.0, 1.0, 0.0, 0.0, 5.0)
  assert waiting.waits and waiting.planned == 5.0
  text = real_runs.format_table([*rows, waiting]).splitlines()
  assert text[-2].endswith("input")
  assert text[-1].endswith("not limited by their input: 3 runs, median ratio 0.95, farthest from 1 1.20")


def test_extrapolation_is_linear_in_the_number_of_blocks(programs):
  few, more = ({"step_seconds": 0.1 * n, "shares": {"links": 0.01 * n}, "evaluation_rate": 1000 / n} for n in (1, 2))
  plans = [real_runs.estimate.Plan("", "", 1, 1, "", **each) for each in (few, more)]
  times = real_runs.compute_times(programs["deit3.py:H,i1k,400"], plans)  # from 8 and 16 to 32 blocks
  assert times == pytest.approx((0.4, 0.04, 0.004)) and math.isfinite(times.step)

"""Tests of the text of plans."""

import dataclasses

import pytest

from vit_jax.planning import tables
from vit_jax.planning.estimate import Plan

GOOD = Plan("v3:2x2", "v3-8", 8, 1, "data=8", fits=True, step_seconds=0.0125, core_days=0.37)
BAD = Plan("v3:4x4", "v3-32", 32, 4, "data=32", problem="does not fit")


def test_failed_plans_are_counted_below_the_table():
  heading, row, count = tables.format_plans([GOOD, BAD]).splitlines()
  assert heading.split()[:2] == ["slice", "mesh"] and "cost" not in heading
  assert row.startswith("v3-8 ") and " 12.5 " in row and " 0.37 " in row
  assert count == "1 plan is not possible. The lines above the table contain the reasons" == tables.format_plans([BAD])
  assert tables.format_plans([GOOD, BAD, BAD]).splitlines()[2].startswith("2 plans are not possible")


def test_short_runs_have_significant_digits():
  short = dataclasses.replace(GOOD, hours=0.00634, core_days=1234.5)
  heading, row, whole = tables.format_plans([short]).splitlines()
  cells = dict(zip(heading.split(), row.split(), strict=False))
  assert "0.0063" in row.split() and "1,234" in row.split() and "hours" in cells
  assert "whole run: 0.38 minutes: training 0.38, " in whole


def test_cost_and_collectives_are_printed_if_known():
  kinds = {"all-reduce": {"calls": 3, "payload": 2e6, "moved": 4e6}}
  heading, row, collectives = tables.format_plans(
    [dataclasses.replace(GOOD, cost=1234.5, collectives=kinds)]
  ).splitlines()
  assert heading.endswith(" cost") and row.endswith(" 1,234")
  assert collectives.endswith("all-reduce 3 x, 2.0 MB")


def test_pareto_front_lists_hours_and_memory():
  fast, small = (dataclasses.replace(GOOD, hours=h, hbm_bytes=b * 2**30, mesh=f"data={h}") for h, b in ((2, 9), (3, 4)))
  heading, *lines = tables.format_front([fast, small]).splitlines()
  assert heading == "v3-8: best trade-offs between hours and memory, fastest first:"
  assert [line.split(" of ")[0] for line in lines] == ["  2.0 hours, 9.00", "  3.0 hours, 4.00"]
  assert lines[1].endswith("GiB: data=3")


def test_parts_and_kinds_of_a_step_are_lines_with_their_shares():
  divided = {"parts": {"student": 0.01, "collectives": 0.0025}, "kinds": {"attention": 0.00125}}
  _, _, parts, kinds = tables.format_plans([dataclasses.replace(GOOD, **divided)]).splitlines()
  assert parts == "v3-8, data=8: parts of a step: student 10.0 ms (80%); collectives 2.5 ms (20%)"
  assert kinds == "v3-8, data=8: kinds of operations: attention 1.2 ms (10%)"


def test_evaluations_are_on_a_separate_line():
  known = {"validation": {"times": 20, "images": 50_176}, "probes": None}
  _, _, line = tables.format_plans([dataclasses.replace(GOOD, evaluations=known, evaluation_hours=1.25)]).splitlines()
  assert line == "v3-8, data=8: evaluations: additional 1.2 hours: validation 20 x 50,176 images, probes not counted"


def test_evaluations_of_seconds_are_in_minutes():
  short = dataclasses.replace(GOOD, evaluations={"probes": None}, evaluation_hours=0.002)
  assert tables.format_plans([short]).endswith("evaluations: additional 0.12 minutes: probes not counted")


def test_whole_run_contains_evaluations_checkpoints_and_compilation():
  plan = dataclasses.replace(GOOD, hours=6.2, evaluation_hours=0.25, checkpoint_hours=0.5, compile_seconds=36.0)
  assert plan.total_hours == pytest.approx(6.96)
  assert tables.format_plans([plan]).splitlines()[-1] == (
    "v3-8, data=8: whole run: 6.96 hours: training 6.20, evaluations 0.25, waiting for checkpoints 0.50, "
    "compilation 0.01"
  )


def test_line_contains_whether_a_plan_fits():
  limited = dataclasses.replace(GOOD, hbm_bytes=2**31, hbm_limit=2**34, limit="memory", method="roofline")
  assert tables.format_plan(limited).startswith("v3-8             data=8: fits, 2.0 of 16.0 GiB, 12.5 ms")
  assert "memory" in tables.format_plan(limited) and "roofline" in tables.format_plan(limited)
  assert tables.format_plan(BAD) == "v3-32            data=32: does not fit"


def test_input_bound_run_is_named_with_both_times():
  slow = dataclasses.replace(
    GOOD, input_bound=True, input_step_seconds=0.05, images_per_second_per_host=20_480, host_rate=5120,
    host_rate_method="measured", hours=40.0, device_hours=10.0, limit="memory",
  )  # fmt: skip
  assert tables.format_plan(slow).endswith("; input-bound, 50.0 ms between the starts of two steps")
  assert "input-bound" not in tables.format_plan(GOOD) + tables.format_plans([GOOD])
  _, row, _, reason = tables.format_plans([slow]).splitlines()
  assert "20,480 of 5,120/s" in row and " input " in row and " memory " not in row
  assert reason.startswith(
    "v3-8, data=8: input-bound: the chips need 20,480 images/s from each host, which prepares 5,120"
  )
  for word in (
    "(measured)",
    "takes 40.0 hours",
    "work for 10.0",
    "data.workers",
    "data.policy",
    "a slice with more hosts",
  ):
    assert word in reason
  guess = tables.format_plans(
    [dataclasses.replace(slow, host_rate_method="estimated: 96 vCPUs, 5.5 ms of CPU time per image")]
  )
  assert "(estimated: 96 vCPUs" in guess and "--host-rate" in guess and "data.workers" not in guess

"""vit_jax/certificates/verdicts.py: milestones, verdicts and their texts."""

import itertools

import pytest

from tests.certificates.test_curves import make_curve
from vit_jax import certificates
from vit_jax.certificates import Match

CURVE = make_curve([[0.0, value, value] for value in (0.5, 0.51, 0.52, 0.5, 0.51, 0.52)], (0.0, 0.1, 1.0))


def make(verdicts=(), evaluation="test", refused=(), total=1000):
  return certificates.Certificate(Match(CURVE, evaluation, [], refused), total, certificates.parse_verdicts(verdicts))


def test_each_milestone_is_compared_once_at_the_first_evaluation_that_is_not_earlier():
  certificate = make()
  steps = [step for step in range(0, 1001, 15) if certificate.add(step, {"top1": 0.5})]
  assert steps == [30, 60, 105, 255, 510, 750, 900]
  assert certificate.add(1000, {"top1": 0.5}).fraction == 1.0
  late = make()
  assert [step for step in (400, 450, 600) if late.add(step, {"top1": 0.5})] == [400, 600]


def test_verdicts_are_those_of_the_band():
  band = CURVE.compute_band(0.5)
  assert band.mean == pytest.approx(0.51)
  for value, verdict in ((0.51, "on track"), (band.low - 1e-6, "below"), (band.high + 1e-6, "above"), (0.0, "below")):
    assert make().add(500, {"top1": value}).verdict == verdict


def test_other_evaluations_and_steps_without_figures_are_ignored():
  certificate = make(evaluation="val")
  assert certificate.add(100, {"top1": 0.5}) is None and certificate.add(100, {"val/top1": 0.5})
  assert make(refused=["optim.lr: 1 -> 2"]).add(100, {"top1": 0.5}) is None


@pytest.mark.parametrize(
  ("values", "off"),
  [((0.0, 0.0), True), ((0.0, 0.51), False), ((0.51, 0.0), False), ((0.0, 0.51, 0.0, 0.0), True), ((1.0, 1.0), False)],
)
def test_run_is_off_track_after_two_verdicts_below(values, off):
  certificate = make()
  for step, value in zip((100, 250, 500, 750), values, strict=False):
    certificate.add(step, {"top1": value})
  assert certificate.is_off_track == off


def test_comparison_continues_from_its_record():
  whole = make()
  steps = (20, 50, 100, 250, 500)
  for step in steps:
    whole.add(step, {"top1": step / 1000})
  for kept in range(len(steps)):
    some = make()
    for step in steps[:kept]:
      some.add(step, {"top1": step / 1000})
    continued = make(some.to_json()["verdicts"])
    for step in steps[kept:]:
      continued.add(step, {"top1": step / 1000})
    assert continued.to_json() == whole.to_json()


def test_texts():
  certificate = make()
  line = certificate.format_verdict(certificate.add(100, {"top1": 0.5}))
  band = CURVE.compute_band(0.1)
  expected = f"{100 * band.low:.1f} to {100 * band.high:.1f}"
  assert line == f"10 %: top-1 50.0 %, published 51.0 % (6 seeds), expected {expected} %: on track"
  assert make().format_summary() == ""
  for step, value in ((250, 0.0), (500, 1.0), (750, 0.5)):
    certificate.add(step, {"top1": value})
  assert certificate.format_summary() == (
    "Compared with the published curve of a: on track at 10, 75 %; below at 25 %; above at 50 % of the schedule."
  )
  assert certificate.to_json()["summary"] == certificate.format_summary()
  assert certificate.format_start() == "compared with a: c (b)"


def test_milestones_are_ascending_shares():
  assert all(a < b for a, b in itertools.pairwise(certificates.MILESTONES)) and certificates.MILESTONES[-1] == 1.0

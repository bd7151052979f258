"""Verdicts: whether the evaluations of a run are inside the band of a published curve."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.certificates.curves import WIDENING, Band
from vit_jax.certificates.matching import Match

# Fractions of the schedule at which a run is compared: at the first evaluation that is not earlier.
MILESTONES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
VERDICTS = ON_TRACK, BELOW, ABOVE = "on track", "below", "above"


class CurveCheck(NamedTuple):
  """The comparison of an evaluation with a curve.

  Attributes:
    step: number of completed steps.
    fraction: fraction of the schedule.
    value: top-1 of the run.
    mean: published mean.
    half_width: half of the width of the expected range.
    verdict: "on track", "below" or "above".
  """

  step: int
  fraction: float
  value: float
  mean: float
  half_width: float
  verdict: str


def judge(value: float, band: Band) -> str:
  """Returns "on track" if a value is inside a band, or else "below" or "above"."""
  if value < band.low:
    return BELOW
  return ABOVE if value > band.high else ON_TRACK


@dataclasses.dataclass(frozen=True)
class Certificate:
  """The comparison of a run with a published curve.

  Attributes:
    match: the curve and the differences of the config.
    total: number of steps of the run.
    verdicts: verdicts so far. `add` appends to them.
  """

  match: Match
  total: int
  verdicts: list[CurveCheck] = dataclasses.field(default_factory=list)

  @property
  def reason(self) -> str:
    """Reason why the run cannot be compared with the curve, or ""."""
    return self.match.explain_refusal()

  @property
  def figure(self) -> str:
    """Name of the compared figure in result.json."""
    return "top1" if self.match.evaluation == "test" else f"{self.match.evaluation}/top1"

  @property
  def is_off_track(self) -> bool:
    """True if the last two verdicts are "below"."""
    return [each.verdict for each in self.verdicts[-2:]] == [BELOW, BELOW]

  def describe_off_track(self) -> str:
    """Returns the reason for the stop of a run that is off track."""
    shares = " and ".join(format_percent(each.fraction) for each in self.verdicts[-2:])
    return (
      f"top-1 was below the expected range of {self.match.curve.name} at two consecutive verdicts, after {shares} % of "
      "the schedule"
    )

  def add(self, step: int, figures: Mapping[str, float]) -> CurveCheck | None:
    """Compares the figures of a step, if this step is the first evaluation at or after a milestone.

    Args:
      step: number of completed steps.
      figures: values under their names in result.json.

    Returns:
      The verdict, or None if this evaluation is not compared.
    """
    if self.reason or self.figure not in figures:
      return None
    fraction = step / self.total
    last = self.verdicts[-1].fraction if self.verdicts else 0.0
    if not any(last < milestone <= fraction for milestone in MILESTONES):
      return None
    band = self.match.curve.compute_band(fraction, bool(self.match.widened))
    if band is None:
      return None
    value = figures[self.figure]
    verdict = CurveCheck(step, fraction, value, band.mean, band.half_width, judge(value, band))
    self.verdicts.append(verdict)
    return verdict

  def format_start(self) -> str:
    """Returns a line that names the curve, or explains why the run is not compared."""
    curve = self.match.curve
    if self.reason:
      return f"not compared with the published curve of {curve.name}: {self.reason}"
    line = f"compared with {curve.name}: {curve.published} ({curve.source})"
    line += f"; spread: {curve.note}" if curve.note else ""
    return line + (
      f"; range times {WIDENING:g}, because of {'; '.join(self.match.widened)}" if self.match.widened else ""
    )

  def format_verdict(self, check: CurveCheck) -> str:
    """Returns a comparison as a line.

    The form is "10 %: top-1 52.7 %, published 52.9 % (4 seeds), expected 51.7 to 54.1 %: on track".

    Args:
      check: the comparison.
    """
    count = len(self.match.curve.seeds)
    return (
      f"{format_percent(check.fraction)} %: top-1 {100 * check.value:.1f} %, "
      f"published {100 * check.mean:.1f} % ({count} seed{'s' * (count > 1)}), "
      f"expected {format_range(check)} %: {check.verdict}"
    )

  def format_summary(self) -> str:
    """Returns the verdicts of the whole run as a sentence, or "" before the first verdict."""
    found: dict[str, list[str]] = {}
    for each in self.verdicts:
      found.setdefault(each.verdict, []).append(format_percent(each.fraction))
    parts = [f"{verdict} at {', '.join(shares)} %" for verdict, shares in found.items()]
    name = self.match.curve.name
    return f"Compared with the published curve of {name}: {'; '.join(parts)} of the schedule." if parts else ""

  def to_json(self) -> dict[str, Any]:
    """Returns the record for result.json."""
    curve = self.match.curve
    return {
      "curve": curve.name,
      "source": curve.source,
      "seeds": len(curve.seeds),
      "widened": list(self.match.widened),
      "refused": list(self.match.refused),
      "reason": self.reason or None,
      "summary": self.format_summary(),
      "verdicts": self.list_verdicts(),
    }

  def list_verdicts(self) -> list[dict[str, Any]]:
    """Returns the verdicts as JSON values, for a checkpoint."""
    return [each._asdict() for each in self.verdicts]


def parse_verdicts(values: Sequence[Mapping[str, Any]]) -> list[CurveCheck]:
  """Returns the verdicts of `Certificate.list_verdicts`."""
  return [CurveCheck(*(each[name] for name in CurveCheck._fields)) for each in values]


def format_range(check: CurveCheck) -> str:
  """Returns the expected range of a comparison in per cent, such as "51.7 to 54.1"."""
  band = Band(check.mean, check.half_width)
  return f"{100 * band.low:.1f} to {100 * band.high:.1f}"


def format_percent(share: float) -> str:
  """Returns a share as a number of per cent with three significant digits."""
  return f"{100 * share:.3g}"

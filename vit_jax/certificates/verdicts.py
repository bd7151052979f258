"""Verdicts: whether the evaluations of a run are inside the band of a published curve."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vit_jax.certificates.curves import Band
from vit_jax.certificates.matching import Match

# Fractions of the schedule at which a run is compared: at the first evaluation that is not earlier.
MILESTONES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
ON_TRACK, BELOW, ABOVE = "on track", "below", "above"


class Verdict(NamedTuple):
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


@dataclasses.dataclass
class Certificate:
  """The comparison of a run with a published curve.

  Args:
    match: the curve and the differences of the config.
    total: number of steps of the run.
    verdicts: verdicts so far, as dicts of their fields.
  """

  match: Match
  total: int
  verdicts: list[Verdict]

  def __init__(self, match: Match, total: int, verdicts: Sequence[Mapping[str, Any]] = ()) -> None:
    self.match, self.total = match, total
    self.verdicts = [Verdict(*(each[name] for name in Verdict._fields)) for each in verdicts]

  @property
  def reason(self) -> str:
    """Why the run cannot be compared with the curve, or ""."""
    return self.match.explain_refusal()

  @property
  def figure(self) -> str:
    """Name of the compared figure in result.json."""
    return "top1" if self.match.evaluation == "test" else f"{self.match.evaluation}/top1"

  @property
  def is_off_track(self) -> bool:
    """True if the last two verdicts are "below"."""
    return [each.verdict for each in self.verdicts[-2:]] == [BELOW, BELOW]

  def add(self, step: int, figures: Mapping[str, float]) -> Verdict | None:
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
    verdict = Verdict(step, fraction, value, band.mean, band.half_width, judge(value, band))
    self.verdicts.append(verdict)
    return verdict

  def format_start(self) -> str:
    """Returns a line that names the curve, or explains why the run is not compared."""
    curve = self.match.curve
    if self.reason:
      return f"not compared with the published curve of {curve.name}: {self.reason}"
    line = f"compared with {curve.name}: {curve.published} ({curve.source})"
    line += f"; spread: {curve.note}" if curve.note else ""
    return line + (f"; range doubled, because of {'; '.join(self.match.widened)}" if self.match.widened else "")

  def format_verdict(self, verdict: Verdict) -> str:
    """Returns a verdict as a line, for example "10 %: top-1 52.7 %, published 52.9 ± 1.2 % (4 seeds): on track"."""
    count = len(self.match.curve.seeds)
    return (
      f"{format_percent(verdict.fraction)} %: top-1 {100 * verdict.value:.1f} %, "
      f"published {100 * verdict.mean:.1f} ± {100 * verdict.half_width:.1f} % "
      f"({count} seed{'s' * (count > 1)}): {verdict.verdict}"
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
      "verdicts": [each._asdict() for each in self.verdicts],
    }


def format_percent(share: float) -> str:
  """Returns a share as a number of per cent with three significant digits."""
  return f"{100 * share:.3g}"

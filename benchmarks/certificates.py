"""Measures how often the check of training curves is wrong: python -m benchmarks.certificates

False alarms: each published seed is compared with the band of the other seeds of its setting, at the milestones.
Misses: the seeds of each setting are compared with the bands of the other settings. A miss is a run with other
settings that has no other verdict than "on track" up to 10 % of its steps.

Trials 1 and 3 of AlgoPerf differ only in the label smoothing, which changes the accuracy later.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from vit_jax import certificates, cli
from vit_jax.certificates import Curve

LISTED = 10  # maximum number of missed pairs that are listed
STEPS = 100_000  # steps of a run; only fractions of them matter
EARLY = 0.1  # fraction of the schedule by which a wrong run must be found


def judge_seed(curve: Curve, fractions: np.ndarray, values: np.ndarray, until: float = 1.0) -> list[str]:
  """Returns the verdicts of a run, as `train` gives them.

  Args:
    curve: the curve.
    fractions: fractions of the schedule at which the run was evaluated (F,), ascending.
    values: top-1 of the run as shares (F,).
    until: last fraction.
  """
  certificate = certificates.Certificate(certificates.Match(curve, "test", [], []), STEPS)
  for fraction, value in zip(fractions, values, strict=True):
    if fraction <= until:
      certificate.add(round(fraction * STEPS), {"top1": float(value)})
  return [each.verdict for each in certificate.verdicts]


def remove_seed(curve: Curve, index: int) -> Curve:
  """Returns a curve and its spread without one seed.

  Args:
    curve: a curve with several seeds.
    index: index of the seed.

  Raises:
    ValueError: the spread is borrowed.
  """
  if curve.setting is None:
    raise ValueError(f"{curve.name} has a single seed")
  others = np.delete(curve.seeds, index, axis=0)
  variances, degrees = curve.spread.variances.copy(), curve.spread.degrees.copy()
  variances[curve.setting], degrees[curve.setting] = others.var(0, ddof=1), len(others) - 1
  return dataclasses.replace(
    curve, seeds=others, spread=certificates.Spread(curve.spread.fractions, variances, degrees)
  )


def measure_false_alarms(curves: Sequence[Curve]) -> tuple[int, int, int]:
  """Compares each seed with the band of the other seeds.

  Args:
    curves: curves with several seeds.

  Returns:
    (verdicts that are not "on track", all verdicts, seeds that are "below" twice in a row).
  """
  wrong = count = stopped = 0
  for curve in curves:
    for index, seed in enumerate(curve.seeds):
      verdicts = judge_seed(remove_seed(curve, index), curve.fractions, seed)
      wrong += sum(verdict != certificates.ON_TRACK for verdict in verdicts)
      count += len(verdicts)
      stopped += (certificates.BELOW, certificates.BELOW) in itertools.pairwise(verdicts)
  return wrong, count, stopped


def measure_misses(curves: Sequence[Curve], until: float = EARLY) -> dict[tuple[str, str], tuple[int, int]]:
  """Compares the seeds of each curve with the band of each other curve.

  Args:
    curves: curves of the same source.
    until: last fraction of the schedule.

  Returns:
    Maps (name of the band's curve, name of the other curve) to (missed seeds, seeds with an evaluation).
  """
  missed = {}
  for band, other in itertools.permutations(curves, 2):
    found = [verdicts for seed in other.seeds if (verdicts := judge_seed(band, other.fractions, seed, until))]
    missed[band.name, other.name] = (
      sum(all(verdict == certificates.ON_TRACK for verdict in each) for each in found),
      len(found),
    )
  return missed


def main() -> None:
  """Prints the rates of false alarms and misses."""
  cli.Parser("benchmarks.certificates", __doc__).parse_args()
  curves = certificates.list_curves()
  for source in dict.fromkeys(curve.source for curve in curves):
    own = [curve for curve in curves if curve.source == source]
    print(source)
    repeated = [curve for curve in own if len(curve.seeds) > 1]
    if repeated:
      wrong, count, stopped = measure_false_alarms(repeated)
      seeds = sum(len(curve.seeds) for curve in repeated)
      print(f"  false alarms  {wrong} of {count} verdicts; {stopped} of {seeds} runs below twice in a row")
    for until in (EARLY, 1.0):
      counts = measure_misses(own, until)
      missed = {pair: each for pair, each in counts.items() if each[0]}
      if of := sum(seeds for _, seeds in counts.values()):
        some = sum(each for each, _ in missed.values())
        print(f"  not found up to {until:4.0%}  {some} of {of} runs with other settings")
      for (band, other), (some, seeds) in missed.items() if len(missed) <= LISTED else ():
        print(f"    {other} compared with {band}: {some} of {seeds}")


if __name__ == "__main__":
  cli.run_verb(main)

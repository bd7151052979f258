"""Published training curves, and the check whether a run follows one of them.

The JSON files contain published values with their sources: curves, accuracies of weights, and the first step of a run.
`benchmarks/published_curves.py` writes the curves and the accuracies.
"""

from vit_jax.certificates.curves import LEVEL, Band, Curve, Spread, list_curves
from vit_jax.certificates.matching import Match, find_match
from vit_jax.certificates.verdicts import (
  BELOW,
  MILESTONES,
  ON_TRACK,
  VERDICTS,
  Certificate,
  CurveCheck,
  format_percent,
  format_range,
  judge,
  parse_verdicts,
)

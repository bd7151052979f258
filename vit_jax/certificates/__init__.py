"""Published training curves, and the check whether a run follows one of them.

The JSON files contain the curves with their sources. `benchmarks/published_curves.py` writes them.
"""

from vit_jax.certificates.curves import Band, Curve, list_curves
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

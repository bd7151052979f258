"""One comparison of arrays, and what came of it."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Result:
  """One comparison: its name, the largest relative error, and what is wrong ("" if nothing is)."""

  name: str
  error: float
  wrong: str


def compare(name: str, ours, theirs, tolerance: float) -> Result:
  """A result for arrays that may differ by `tolerance` in each value."""
  ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
  if ours.shape != theirs.shape:
    return Result(name, float("inf"), f"shape {ours.shape} instead of {theirs.shape}")
  difference = float(np.abs(ours - theirs).max())
  relative = difference / max(float(np.abs(theirs).max()), 1e-30)
  within = difference <= tolerance  # false for NaN too
  return Result(name, relative, "" if within else f"difference {difference:.3g}, tolerance {tolerance:.3g}")

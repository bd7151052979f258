"""Comparison of two arrays, and its result."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Result:
  """The result of a comparison: its name, the largest relative error, and the problem ("" for a pass)."""

  name: str
  error: float
  wrong: str


def compare(name: str, ours, theirs, tolerance: float) -> Result:
  """Compares arrays that may differ by `tolerance` in each value."""
  ours, theirs = (np.asarray(x, np.float64) for x in (ours, theirs))
  if ours.shape != theirs.shape:
    return Result(name, float("inf"), f"shape {ours.shape} instead of {theirs.shape}")
  difference = float(np.abs(ours - theirs).max())
  relative = difference / max(float(np.abs(theirs).max()), 1e-30)
  within = difference <= tolerance  # also false for NaN
  return Result(name, relative, "" if within else f"difference {difference:.3g}, tolerance {tolerance:.3g}")

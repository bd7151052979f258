"""Calibration of predicted probabilities: a reliability diagram, its bins, and statistical tests."""

from typing import NamedTuple

import numpy as np
from scipy import signal

from vit_jax.evals.metrics import BINS, Bins
from vit_jax.reports import drawing, page
from vit_jax.schema import format_amount

ALPHA = 0.05  # significance level of both tests
SIMULATIONS = 1000
VISIBLE = 0.004  # smallest bar with an entry in the legend, as a share of the axis


class CalibrationFindings(NamedTuple):
  """Results of tests of the hypothesis that a model is calibrated.

  A calibrated model is right on each image with the predicted probability.

  Attributes:
    leaning: p-value of the difference of the means, two-sided.
    error: p-value of the calibration error.
    usual: 95 % quantile of the calibration error of calibrated models with these probabilities.
  """

  leaning: float
  error: float
  usual: float


def examine_calibration(confidence: np.ndarray, right: np.ndarray, seed: int = 0) -> CalibrationFindings:
  """Tests whether predictions contradict calibration.

  The number of right images of a calibrated model has a Poisson binomial distribution, which is computed exactly. In
  the tail probability, the observed value has half weight (mid-p), so that the false alarm rate for few images is near
  the nominal rate. The calibration error is compared with those of simulated calibrated models (consistency resampling,
  Broecker and Smith 2007, doi:10.1175/WAF993.1). The simulation is necessary because the error is above 0 for any
  finite number of images.

  Args:
    confidence: probability of the best class, finite (N,).
    right: whether the best class is right (N,).
    seed: seed of the simulations.

  Returns:
    The p-values and the usual calibration error. Without images these are 1, 1 and 0.
  """
  if not len(confidence):
    return CalibrationFindings(1.0, 1.0, 0.0)
  probability = np.clip(np.asarray(confidence, np.float64), 0, 1)
  mass, count = compute_count_distribution(probability), int(np.sum(right))
  below, above = mass[:count].sum() + mass[count] / 2, mass[count + 1 :].sum() + mass[count] / 2
  bins = np.clip(np.searchsorted(np.arange(BINS + 1) / BINS, probability) - 1, 0, BINS - 1)
  draw, expected = np.random.default_rng(seed), np.bincount(bins, probability, BINS)

  def error(hits: np.ndarray) -> float:
    return float(np.abs(np.bincount(bins, hits, BINS) - expected).sum() / len(probability))

  simulated = np.array([error(draw.uniform(size=len(probability)) < probability) for _ in range(SIMULATIONS)])
  reached = np.sum(simulated >= error(np.asarray(right, np.float64)) - 1e-12)
  return CalibrationFindings(
    min(1.0, 2 * min(below, above)), (1 + reached) / (1 + SIMULATIONS), float(np.quantile(simulated, 0.95))
  )


def compute_count_distribution(probability: np.ndarray) -> np.ndarray:
  """Computes the Poisson binomial distribution: the number of N independent events that occur.

  Args:
    probability: probability of each event (N,).

  Returns:
    Probability of each number of events, float64 (N + 1,).
  """
  size = 1 << max(0, (len(probability) - 1).bit_length())
  padded = np.pad(probability, (0, size - len(probability)))  # events that never occur
  mass = np.stack([1 - padded, padded], axis=1)
  while len(mass) > 1:  # distributions of sums of two halves
    mass = signal.fftconvolve(mass[0::2], mass[1::2], axes=1)
  return np.clip(mass[0, : len(probability) + 1], 0, 1)


def make_parts(bins: Bins, confidence: np.ndarray, right: np.ndarray) -> list[page.Part]:
  """Returns the diagram (Guo et al. 2017, figure 1) with the number of images below, and a table of the bins.

  Args:
    bins: result of `metrics.bin_by_confidence`.
    confidence: probability of the best class of each image (N,).
    right: whether the best class of each image is right (N,).
  """
  finite = np.isfinite(confidence)
  about = _describe_calibration(bins, examine_calibration(confidence[finite], right[finite]))
  filled = np.flatnonzero(bins.images)
  rows = [
    [
      f"{100 * i / BINS:.1f} to {100 * (i + 1) / BINS:.1f} %",
      f"{bins.images[i]:,}",
      f"{100 * bins.confidence[i] / bins.images[i]:.2f} %",
      f"{100 * bins.right[i] / bins.images[i]:.2f} %",
    ]
    for i in filled
  ]
  table = page.Table("Bins of confidence", ["probability", "images", "mean", "right"], rows, open=False)
  return [page.Chart("Calibration", _draw_diagram(bins, filled), about), table]


def _describe_calibration(bins: Bins, tests: CalibrationFindings) -> str:
  """Returns text on the calibration error and the means, with the conclusion of each test."""
  total = max(int(bins.images.sum()), 1)
  error = float(np.abs(bins.right - bins.confidence).sum() / total)
  share, mean = bins.right.sum() / total, bins.confidence.sum() / total
  images = format_amount(int(bins.images.sum()), "image")
  usual = f"Calibrated models with these probabilities have errors up to {100 * tests.usual:.2f} % on {images} "
  usual += f"(95 % of {SIMULATIONS:,} simulations): "
  usual += (
    f"the model is miscalibrated ({_format_p_value(tests.error)})."
    if tests.error < ALPHA
    else f"not enough images to decide whether the model is miscalibrated ({_format_p_value(tests.error)})."
  )
  if tests.leaning < ALPHA:
    leaning = f"{'over' if mean > share else 'under'}-confident on average"
  else:
    leaning = "not enough images to decide whether it is over- or under-confident"
  return (
    f"The expected calibration error is {100 * error:.2f} %. It is the mean difference "
    "between the share of right images and the probability of the best class, over bins of confidence. "
    f"{usual} The mean probability is {100 * mean:.2f} %, and "
    f"{100 * share:.2f} % of the images are right: {leaning} (exact test of the means, "
    f"{_format_p_value(tests.leaning)})."
  )


def _format_p_value(value: float) -> str:
  return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def _draw_diagram(bins: Bins, filled: np.ndarray) -> str:
  middle, width = (filled + 0.5) / BINS, 0.94 / BINS
  share = bins.right[filled] / bins.images[filled]
  confidence = bins.confidence[filled] / bins.images[filled]
  with drawing.use_style():
    figure, (upper, lower) = drawing.make_figure(4.4, 4.4, 2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot([0, 1], [0, 1], color=drawing.FAINT, linestyle="--", linewidth=1)
    both = np.minimum(share, confidence)
    upper.bar(middle, both, width, color=drawing.SERIES[0], alpha=0.8)
    for more, colour, label in (
      (confidence - share, drawing.SERIES[1], "probability above the share"),
      (share - confidence, drawing.SERIES[2], "probability below the share"),
    ):
      if np.any(more > VISIBLE):
        upper.bar(middle, np.maximum(more, 0), width, bottom=both, color=colour, alpha=0.6, label=label)
        upper.legend(loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0, fontsize=8)
    upper.set(ylim=(0, 1), ylabel="share of images that are right")
    lower.bar(middle, bins.images[filled], width, color=drawing.SERIES[7])
    lower.set(xlim=(0, 1), xlabel="probability of the best class", ylabel="images")
    if len(filled) and bins.images.max() > 50 * np.median(bins.images[filled]):
      lower.set_yscale("log")
      drawing.number_log_axis(lower.yaxis)
    return drawing.render_svg(figure, "calibration")

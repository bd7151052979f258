"""How far probabilities can be believed: a reliability diagram, and the bins that it is drawn of."""

import numpy as np

from vit_jax.metrics import BINS, Bins
from vit_jax.reports import drawing, page


def parts(bins: Bins) -> list[page.Part]:
  """The diagram (Guo et al. 2017, figure 1) with the number of images below, and the bins as a table."""
  total = max(int(bins.images.sum()), 1)
  error = float(np.abs(bins.right - bins.confidence).sum() / total)
  right, confidence = bins.right.sum() / total, bins.confidence.sum() / total
  leaning = "too sure" if confidence > right else "too unsure"
  about = (
    f"Expected calibration error {100 * error:.2f} %: by so much the share of right images differs from the "
    f"probability that the model gives its best class. On average it says {100 * confidence:.2f} % and is right in "
    f"{100 * right:.2f} %: {leaning}."
  )
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
  return [page.Chart("Calibration", _drawn(bins, filled), about), table]


def _drawn(bins, filled):
  middle, width = (filled + 0.5) / BINS, 0.94 / BINS
  share = bins.right[filled] / bins.images[filled]
  confidence = bins.confidence[filled] / bins.images[filled]
  with drawing.style():
    figure, (upper, lower) = drawing.figure(4.4, 4.4, 2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot([0, 1], [0, 1], color=drawing.FAINT, linestyle="--", linewidth=1)
    both = np.minimum(share, confidence)
    upper.bar(middle, both, width, color=drawing.SERIES[0], alpha=0.8)
    for more, colour, label in (
      (confidence - share, drawing.SERIES[1], "too sure"),
      (share - confidence, drawing.SERIES[2], "too unsure"),
    ):
      if np.any(more > 0):
        upper.bar(middle, np.maximum(more, 0), width, bottom=both, color=colour, alpha=0.6, label=label)
        upper.legend(loc="upper left")
    upper.set(ylim=(0, 1), ylabel="share of images that are right")
    lower.bar(middle, bins.images[filled], width, color=drawing.SERIES[7])
    lower.set(xlim=(0, 1), xlabel="probability of the best class", ylabel="images")
    if len(filled) and bins.images.max() > 50 * np.median(bins.images[filled]):
      lower.set_yscale("log")
      drawing.numbered(lower.yaxis)
    return drawing.svg(figure, "calibration")

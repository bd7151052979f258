"""Classification figures over a split: every image once, on any number of devices and processes."""

import contextlib
from collections.abc import Callable

import jax

from vit_jax.config import Count, Duration
from vit_jax.metrics import Counts


def accuracy(
  predict: Callable,
  batches: Callable,
  classes: int,
  size: int,
  *,
  split: str = "test",
  every: Duration = Duration("10%"),
  batch: Count | None = None,
) -> Callable:
  """(params, poll) -> figures of `metrics.Counts`, over the images of a split.

  Args:
    predict: (params, batch) -> label [B] or [B, K], mask, best, loss of the whole batch, on every process.
    batches: (split, size) -> iterator, with a close, over batches that cover the split, the last padded with mask 0.
    classes: number of classes.
    size: batch size where `batch` is None.
    split: "train" or "test" as the run's data names them, or a split of the dataset.
    every: how often it runs; it always runs at the end.
    batch: images at a time.
  """
  del every  # the training loop keeps time

  def measure(params: dict[str, jax.Array], poll: Callable[[], None]) -> dict[str, float]:
    counts = Counts(classes)

    def count(rows):
      rows = jax.device_get(rows)
      real = rows["mask"] > 0
      counts.add(rows["label"][real], rows["best"][real], rows["loss"][real])

    running = None  # counting one batch while the devices work on the next
    with contextlib.closing(batches(split, batch or size)) as feed:
      for images in feed:
        poll()
        started = predict(params, images)
        if running is not None:
          count(running)
        running = started
    if running is not None:
      count(running)
    return counts.result()

  return measure

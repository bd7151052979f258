"""Compares the order by blocks with a true permutation, for a source sorted by class and for a shuffled source.

    python -m benchmarks.shuffle [--json=FILE]

There are 1,281,167 images in 1,000 classes, as in ImageNet. The benchmark examines sections of an epoch in the default
order for buckets, and in an order with a longer window. It counts the classes in a batch and in 16 consecutive batches.
It prints the variance of the counts divided by their variance in a true permutation. A ratio of 1 is as good as random.
A ratio of 2 would occur if every second image had the class of its predecessor.

For neighbours in the stream, it prints the median distance in the source, as a share of its length. A true permutation
has 0.293. It also prints the share of neighbours that are at most 32 records apart.
"""

import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax import cli
from vit_jax.data import order
from vit_jax.schema import format_amount
from vit_jax.storage import files

RECORDS, CLASSES = 1_281_167, 1000
STRETCHES, STEPS, TOGETHER = 4, 64, 16  # batches
NEAR = 32  # records


def find_sections(record: Callable[[int], int], batch: int) -> np.ndarray:
  """Returns records (section, step, row) of sections that are distributed over the first epoch.

  Args:
    record: returns the record at a position.
    batch: batch size.
  """
  starts = np.linspace(0, RECORDS // batch - STEPS, STRETCHES).astype(int) * batch
  return np.array([[record(start + i) for i in range(STEPS * batch)] for start in starts]).reshape(-1, STEPS, batch)


def compute_class_variance(labels: np.ndarray) -> float:
  """Returns the variance of class counts in groups of images, divided by the expected count.

  Args:
    labels: classes (group, image).
  """
  counts = np.array([np.bincount(group, minlength=CLASSES) for group in labels])
  expected = labels.shape[1] / CLASSES
  return float(((counts - expected) ** 2).mean() / expected)


def measure_stream(records: np.ndarray, labels: np.ndarray) -> dict[str, float]:
  """Computes the figures for sections of a stream.

  Args:
    records: result of `find_sections`.
    labels: class of each record.
  """
  batch = records.shape[-1]
  distance = np.abs(np.diff(records.reshape(len(records), -1)))
  return {
    "batch": compute_class_variance(labels[records].reshape(-1, batch)),
    "batches": compute_class_variance(labels[records].reshape(-1, TOGETHER * batch)),
    "distance": float(np.median(distance) / RECORDS),
    "near": float((distance <= NEAR).mean()),
  }


def main() -> None:
  """Prints the comparison."""
  parser = cli.Parser("benchmarks.shuffle", __doc__)
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  args = parser.parse_args()
  draw = np.random.default_rng(0)
  ordered = np.arange(RECORDS) * CLASSES // RECORDS
  sources, permutation, rows = {"sorted": ordered, "shuffled": draw.permutation(ordered)}, draw.permutation(RECORDS), []
  for batch in (1024, 4096):
    truth = find_sections(permutation.__getitem__, batch)
    for window in (16, 64):
      blocks = order.blocks(RECORDS, batch, 0, True, window=window)
      found = find_sections(blocks.record, batch)
      for source, labels in sources.items():
        mine, true = measure_stream(found, labels), measure_stream(truth, labels)
        row: dict[str, Any] = {
          "batch_size": batch,
          "groups": blocks.groups,
          "window": window,
          "block": blocks.size,
          "source": source,
        }
        row |= {"images_waiting": blocks.groups * window * blocks.size * 5 // 4}
        row |= {"class_variance_ratio": mine["batch"] / true["batch"]}
        row |= {"class_variance_ratio_of_16_batches": mine["batches"] / true["batches"]}
        row |= {"distance": mine["distance"], "distance_of_permutation": true["distance"]}
        row |= {"near": mine["near"], "near_of_permutation": true["near"]}
        rows.append(row)
        print(
          f"batch {batch:,}, {format_amount(blocks.groups, 'group')}, windows of {window} x {blocks.size} "
          f"({row['images_waiting']:,} images wait), {source} source. Variance of class counts, relative to a "
          "permutation: "
          f"{row['class_variance_ratio']:.2f} (batches), {row['class_variance_ratio_of_16_batches']:.2f} (groups of "
          f"{TOGETHER} batches). Distance of neighbours, as a share of the source: {mine['distance']:.3f} (permutation "
          f"{true['distance']:.3f}). Near neighbours: {mine['near']:.2%} (permutation {true['near']:.3%})"
        )
  if args.json:
    files.write_text(args.json, json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)

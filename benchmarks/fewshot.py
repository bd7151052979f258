"""Compares the few-shot probe with scikit-learn's RidgeClassifier on a problem of the size of ImageNet.

    python -m benchmarks.fewshot [--json=FILE]

The problem has 10 images of each of 1,000 classes and 1,024 features, with l2 1024. The peer gets the standardised
features and has an intercept without penalty. Both use double precision. Times are medians of alternating rounds.
Memory is that of a whole process.
"""

import json
import multiprocessing
import pathlib
import resource
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeClassifier

from vit_jax import cli
from vit_jax.evals import probes
from vit_jax.storage import files

CLASSES, SHOTS, WIDTH, TEST = 1000, 10, 1024, 20_000


def make_problem() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Generates features with labels for training, and features for tests.

  The classes are about as separable as with the features of a good model.

  Returns:
    Training features (N, D), training labels (N,), and test features (M, D).
  """
  rng = np.random.default_rng(0)
  centres = rng.standard_normal((CLASSES, WIDTH), dtype=np.float32)
  labels = rng.permutation(np.repeat(np.arange(CLASSES), SHOTS))
  features, test = (
    0.25 * centres[of] + rng.standard_normal((len(of), WIDTH), dtype=np.float32)
    for of in (labels, rng.integers(CLASSES, size=TEST))
  )
  return features, labels, test


def predict_with_ours(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
  """Returns the classes that our probe predicts.

  Args:
    features: training features (N, D).
    labels: training labels (N,).
    test: test features (M, D).
  """
  (probe,) = probes.fit_ridge(features, labels, CLASSES)
  return probes.compute_scores(probe, test).argmax(1)


def predict_with_theirs(features: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
  """Returns the classes that scikit-learn predicts.

  Args:
    features: training features (N, D).
    labels: training labels (N,).
    test: test features (M, D).
  """
  mean, deviation = features.mean(0, dtype=np.float64), features.std(0, dtype=np.float64) + 1e-5
  fitted = RidgeClassifier(alpha=1024.0).fit((features - mean) / deviation, labels)
  return fitted.predict((test - mean) / deviation)


def measure_memory(function: Callable[..., object], answer: Any) -> None:
  """Computes a prediction and puts the peak memory of this process in bytes, including the arrays, into a queue.

  Args:
    function: the probe to measure.
    answer: the queue.
  """
  signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this process without a traceback
  function(*make_problem())
  answer.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def measure_peak(function: Callable[..., object]) -> int:
  """Returns the peak memory of a prediction in a separate process, in bytes."""
  context = multiprocessing.get_context("spawn")
  answer = context.Queue()
  process = context.Process(target=measure_memory, args=(function, answer))
  process.start()
  bytes_used = answer.get()
  process.join()
  return bytes_used


def main() -> None:
  """Prints the comparison."""
  parser = cli.Parser("benchmarks.fewshot", __doc__)
  parser.add_argument("--rounds", type=int, default=5)
  parser.add_argument("--json", type=pathlib.Path, metavar="FILE")
  args = parser.parse_args()
  arrays, seconds, predicted = make_problem(), {predict_with_ours: [], predict_with_theirs: []}, {}
  for _ in range(args.rounds):
    for function, taken in seconds.items():
      start_time = time.perf_counter()
      predicted[function] = function(*arrays)
      taken.append(time.perf_counter() - start_time)
  mine, peer = (statistics.median(taken) for taken in seconds.values())
  row = {
    "seconds": mine,
    "ratio_to_sklearn": mine / peer,
    "agreement": float((predicted[predict_with_ours] == predicted[predict_with_theirs]).mean()),
    "bytes": measure_peak(predict_with_ours),
  }
  print(
    f"{len(arrays[0]):,} x {WIDTH:,} features, {CLASSES:,} classes, {TEST:,} images classified: {mine:.2f} s and "
    f"{row['bytes'] / 2**30:.2f} GiB, scikit-learn {peer:.2f} s; ratio {row['ratio_to_sklearn']:.2f}; "
    f"{row['agreement']:.4%} of the predictions are the same"
  )
  if args.json:
    files.write_text(args.json, json.dumps(row, indent=2) + "\n")


if __name__ == "__main__":
  cli.run_verb(main)

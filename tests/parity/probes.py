"""Parity checks of the few-shot linear probe: drawn rows, weights, predictions and accuracies."""

import itertools
import pathlib
from collections.abc import Iterator

import numpy as np

from tests.parity.compare import Result, compare
from vit_jax.evals import probes


def check(file: pathlib.Path) -> Iterator[Result]:
  """Checks drawn rows, weights, predictions and accuracies for every seed and number of shots."""
  with np.load(file, allow_pickle=False) as archive:
    stored = {name: archive[name] for name in archive.files}
  labels, classes = stored["labels_train"], int(stored["num_classes"])
  if stored["bias_constant"] != probes.BIAS:
    raise ValueError(f"{file}: bias_constant {stored['bias_constant']} is not {probes.BIAS}")
  ours, theirs = {}, {}
  for seed, shots in itertools.product(stored["seeds"], stored["shots"]):
    rows = probes.draw_shots(labels, classes, int(shots), int(seed))
    (probe,) = probes.fit_ridge(stored["features_train"][rows], labels[rows], classes, (float(stored["l2"]),))
    predicted = probes.compute_scores(probe, stored["features_test"]).argmax(1)
    accuracy = (predicted == stored["labels_test"]).mean()
    weights = {"weights": probe.weights, "weights_float64": probe.weights}
    for name, value in {"index": rows, **weights, "predicted": predicted, "accuracy": accuracy}.items():
      ours.setdefault(name, []).append(np.ravel(value))
      theirs.setdefault(name, []).append(np.ravel(stored[f"seed{seed}_shots{shots}_{name}"]))
  tolerances = {"index": 0, "weights": 1e-4, "weights_float64": 1e-4, "predicted": 0, "accuracy": 1e-6}
  for name, tolerance in tolerances.items():
    yield compare(f"{file.stem}_{name}", *map(np.concatenate, (ours[name], theirs[name])), tolerance)

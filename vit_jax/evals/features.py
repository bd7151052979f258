"""Frozen features of a dataset's images: each image once for given weights, kept on disk where that is asked for."""

import hashlib
import importlib.metadata
import json
import logging
import pathlib
from collections.abc import Callable

import jax
import numpy as np

from vit_jax import archives, files, models, runtime
from vit_jax.data import augment, sources, stream, versions
from vit_jax.evals.subject import Subject, rows
from vit_jax.schema import Choice, arguments


def extract(
  subject: Subject,
  data: Choice | None,
  source: sources.Source,
  wanted: np.ndarray,
  params: dict[str, jax.Array],
  poll: Callable[[], None],
  size: int,
  file: pathlib.Path | None,
  kind: models.Features = "head",
) -> tuple[np.ndarray, np.ndarray]:
  """(record numbers [N], features [N, D]) of the `wanted` records, without those that cannot be decoded.

  What is in the cache `file` is not computed again; the rest is, by all processes, and added to it. Only the first
  process returns all of them: the others need not see its file.
  """
  first = jax.process_index() == 0
  known, kept = _read(file) if file and first else (np.zeros(0, np.int64), None)
  missing = wanted[~runtime.from_first(np.isin(wanted, known))]
  if len(missing):
    lacking, compute = sources.subset(source, missing), subject.features(data, kind)
    with subject.counting(lacking, size, poll) as counted:
      of_images = rows(
        lambda batch: compute(params, batch), subject.batches(data, lacking, size), counted, size, lacking.called
      )
    position, features = missing[of_images["position"]], of_images["features"]
    if kept is not None:
      position, features = np.concatenate([known, position]), np.concatenate([kept, features])
    order = np.argsort(position)
    known, kept = position[order], features[order]
    if file and first:
      _write(file, known, kept)
  if kept is None:  # nothing to compute, and another process has the file
    return np.zeros(0, np.int64), np.zeros((0, 0), np.float32)
  use = np.isin(known, wanted)
  return known[use], kept[use]


def cache_file(identity: str, data: Choice, source: sources.Source, kind: models.Features = "head") -> pathlib.Path:
  """Returns the file in which features are kept. You can remove such files at any time.

  Its name follows from the version of this code, the model, its weights, the preparation and the version of the images
  (`versions.of`), and the kind of features.

  Args:
    identity: of the model and its weights, see `Subject.identity`.
    data: how images are prepared, bound.
    source: the images.
    kind: of the features.
  """
  origin = {
    "code": importlib.metadata.version("vit_jax"),
    "model": identity,
    "prepared": arguments(data, stream.eval_examples, augment.normalise) | {"exif": data.args["exif"]},
    "split": source.split,
    "data": versions.of(source),
    "features": kind,
  }
  name = hashlib.sha256(json.dumps(origin, sort_keys=True, default=repr).encode()).hexdigest()
  return files.cache("features") / f"{name}.npz"


def _read(file):
  """Record numbers and features in the cache; none where there is no file, or none that can be read."""
  try:
    with file.open("rb") as opened:
      position, features = archives.load(opened, "position", "features")
    if features.ndim == 2 and position.shape == features.shape[:1] and np.isfinite(features).all():
      return position, features
    reason = "its arrays do not fit together"
  except FileNotFoundError:
    return np.zeros(0, np.int64), None
  except (OSError, *files.DAMAGE) as error:
    reason = str(error)
  logging.warning("features in %s cannot be read (%s); they are computed again", file, reason)
  return np.zeros(0, np.int64), None


def _write(file, position, features):
  """Replaces the file at once, so that a kill leaves the old one; a full disk costs the cache, not the figures."""
  try:
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing(file) as partial, partial.open("wb") as opened:
      np.savez(opened, position=position, features=features)
  except OSError as error:
    logging.warning("features are not kept in %s: %s", file, error)

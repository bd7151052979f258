"""Extraction of frozen features: each image is computed once per set of weights, with an optional cache on disk."""

import hashlib
import json
import logging
import pathlib

import jax
import numpy as np

from vit_jax import models, runtime
from vit_jax.data import sources, versions
from vit_jax.data.bound_data import EvalData
from vit_jax.evals.subject import EvalContext, Poll, Weights, compute_rows
from vit_jax.schema import extras
from vit_jax.storage import archives, files


def extract(
  subject: EvalContext,
  data: EvalData | None,
  source: sources.Source,
  wanted: np.ndarray,
  params: Weights,
  poll: Poll,
  size: int,
  file: pathlib.Path | None,
  kind: models.Features = "head",
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the features of selected records, except those that cannot be decoded.

  Features in the cache file are not computed again. All processes compute the remaining features, which are then added
  to the file. Only the first process returns all features, because other processes may not have access to the file.

  Args:
    subject: the model.
    data: the data choice of the images, or None for the run's own.
    source: the images.
    wanted: numbers of the records, `(N,)`.
    params: {path: parameter}.
    poll: called between batches. Raises an exception to stop.
    size: images per batch.
    file: the cache file, or None.
    kind: type of the features.

  Returns:
    (record numbers `(N,)`, features `(N, D)`).

  Raises:
    NotFiniteError: a feature is NaN or infinite.
  """
  first = jax.process_index() == 0
  known, kept = _read_cache(file) if file and first else (np.zeros(0, np.int64), None)
  missing = wanted[~runtime.copy_from_first(np.isin(wanted, known))]
  if len(missing):
    lacking, compute = sources.select_subset(source, missing), subject.compile_features(data, kind)
    with subject.show_progress(lacking, size, poll) as counted:
      of_images = compute_rows(
        lambda batch: compute(params, batch),
        subject.open_batches(data, lacking, size),
        counted,
        size,
        lacking.display_name,
      )
    position, features = missing[of_images["position"]], of_images["features"]
    if kept is not None:
      position, features = np.concatenate([known, position]), np.concatenate([kept, features])
    order = np.argsort(position)
    known, kept = position[order], features[order]
    if file and first:
      _write_cache(file, known, kept)
  if kept is None:  # all features are cached, and another process has the file
    return np.zeros(0, np.int64), np.zeros((0, 0), np.float32)
  use = np.isin(known, wanted)
  return known[use], kept[use]


def find_cache_file(
  identity: str, data: EvalData, source: sources.Source, kind: models.Features = "head"
) -> pathlib.Path:
  """Returns the path of the cache file of features. These files may be removed at any time.

  The name depends on the version of this code, the model, its weights, the preparation, the version of the images
  (`versions.digest_versions`), and the type of features.

  Args:
    identity: identifies the model and its weights, see `EvalContext.compute_identity`.
    data: the bound data choice, which defines the preparation of images.
    source: the images.
    kind: type of the features.
  """
  origin = {
    "code": extras.VERSION,
    "model": identity,
    "prepared": data.seen | {"exif": data.exif},
    "split": source.split,
    "data": versions.digest_versions(source),
    "features": kind,
  }
  name = hashlib.sha256(json.dumps(origin, sort_keys=True, default=repr).encode()).hexdigest()
  return files.get_cache_directory("features") / f"{name}.npz"


def _read_cache(file: pathlib.Path) -> tuple[np.ndarray, np.ndarray | None]:
  """Returns record numbers and features of the cache, or an empty array and None if the file is missing or damaged."""
  try:
    with file.open("rb") as opened:
      position, features = archives.load(opened, "position", "features")
    if features.ndim == 2 and position.shape == features.shape[:1] and np.isfinite(features).all():
      return position, features
    reason = "its arrays have inconsistent shapes"
  except FileNotFoundError:
    return np.zeros(0, np.int64), None
  except (OSError, *files.DAMAGE) as error:
    reason = str(error)
  logging.warning("features in %s cannot be read (%s) and are computed again", file, reason)
  return np.zeros(0, np.int64), None


def _write_cache(file: pathlib.Path, position: np.ndarray, features: np.ndarray) -> None:
  """Replaces the file atomically, so that a kill keeps the old file. If the disk is full, features are not cached."""
  try:
    file.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_write(file) as partial, partial.open("wb") as opened:
      np.savez(opened, position=position, features=features)
  except OSError as error:
    logging.warning("features cannot be stored in %s: %s", file, error)

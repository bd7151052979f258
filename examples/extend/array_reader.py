"""A reader: images and labels as arrays in one .npz file.

For each split, the file contains `<split>_images`, uint8 (N, H, W, 3) in RGB, and `<split>_labels`, integers (N,). It
also contains `classes`, the V names of the classes.
"""

import functools
import pathlib

import cv2
import numpy as np

from vit_jax import register
from vit_jax.data import sources
from vit_jax.schema import ConfigError


@register.reader("arrays")
def arrays(
  name: str,
  row: sources.DatasetRow,
  split: str,
  *,
  path: str,
  train: str = "train",
  val: str | None = None,
  test: str = "test",
) -> sources.Source:
  """Opens a split of an .npz file.

  Args:
    name: registered name of the reader.
    row: row of the catalog.
    split: "train", "val", "test", or a split string.
    path: the .npz file.
    train: split string for training, such as "train[:90%]".
    val: split string for validation.
    test: split string for testing.
  """
  file = pathlib.Path(path).expanduser()
  if not file.is_file():
    raise ConfigError(f"no file {path!r}. Name an .npz file", "path")
  stored = loaded(file)
  splits = sources.Splits(train, val, test)
  lengths = {key.removesuffix("_labels"): len(stored[key]) for key in stored if key.endswith("_labels")}
  parts = splits.select(split, lengths)

  def label(part, i):
    return int(stored[f"{part}_labels"][i])

  def read(part, i):
    # A reader returns image files. PNG is lossless. OpenCV expects channels in the order BGR.
    encoded = cv2.imencode(".png", np.ascontiguousarray(stored[f"{part}_images"][i][..., ::-1]))[1]
    return encoded.tobytes(), label(part, i)

  def fingerprint():
    status = file.stat()
    labels = [(part, label(part, i)) for part, numbers in parts for i in numbers]
    return sources.Fingerprint(
      names=sources.digest(labels), sizes=sources.digest([status.st_size]), times=sources.digest([status.st_mtime_ns])
    )

  return sources.assemble(
    name,
    splits.spec(split),
    [str(each) for each in stored["classes"]],
    parts,
    read,
    lambda part, i: f" (file {path!r})",
    lambda part, i: f"{part}/{i}",
    fingerprint,
    read_label=label,
  )


@functools.lru_cache(maxsize=4)
def loaded(file: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns all arrays of a file, which are kept in memory."""
  with np.load(file, allow_pickle=False) as stored:
    return dict(stored)

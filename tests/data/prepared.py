"""Datasets of the catalog as TFDS would store them.

Their records are generated, with the features of the dataset's own builder.
"""

import dataclasses
import functools
import io

import cv2
import numpy as np

from vit_jax.data import catalog, dataset_row

RECORDS = 6  # in each split


def small(name: str) -> dataset_row.DatasetRow:
  """Returns the row of a dataset with `RECORDS` records in each split.

  The row does not have slices, because they need more records.
  """
  row = catalog.CATALOG[name]
  splits = dict.fromkeys(row.splits, RECORDS)
  train, test = (spec.partition("[")[0] for spec in (row.train, row.test))
  return dataclasses.replace(row, splits=splits, train=train, test=test, slices={})


@functools.cache
def features(builder: str):
  """Returns the features of a TFDS builder, without any of its files."""
  import tensorflow_datasets as tfds

  return tfds.builder(builder, data_dir="/nowhere", try_gcs=False).info.features


def write(name: str, root, split: str = "train", form: str = "array_record") -> list[dict]:
  """Stores `RECORDS` records in each split of the row, under the name and version of its builder.

  Returns:
    The records of one split.
  """
  import tensorflow_datasets as tfds

  row = catalog.CATALOG[name]
  title, _, version = row.builder.partition(":")
  title, _, kind = title.partition("/")
  structure, examples = features(row.builder), {}
  for i, part in enumerate(row.splits):
    draw = np.random.default_rng(i)
    examples[part] = [{key: value(feature, draw) for key, feature in structure.items()} for _ in range(RECORDS)]
  tfds.dataset_builders.store_as_tfds_dataset(
    name=title,
    config=kind or None,
    version=version,
    features=structure,
    split_datasets={part: enumerate(map(encodable, some)) for part, some in examples.items()},
    data_dir=root,
    file_format=form,
    disable_shuffling=True,
  )
  return examples[row.train.partition("[")[0] if split == "train" else row.test.partition("[")[0]]


def value(feature, draw):
  """Returns a random value of a feature."""
  import tensorflow_datasets as tfds

  match feature:
    case tfds.features.Image():
      height, width, channels = (side or other for side, other in zip(feature.shape, (40, 50, 3), strict=True))
      high = 2 if (height, channels) == (64, 1) else 256  # dSprites: ink or background
      return draw.integers(0, high, (height, width, channels), np.uint8)
    case tfds.features.ClassLabel():
      return int(draw.integers(feature.num_classes))
    case tfds.features.BBoxFeature():
      return tfds.features.BBox(0.1, 0.2, 0.5, 0.6)
    case tfds.features.Text():
      return f"text {draw.integers(1000)}"
    case tfds.features.Sequence():
      return [value(feature.feature, draw) for _ in range(draw.integers(3, 8))]
    case tfds.features.FeaturesDict():
      return {key: value(one, draw) for key, one in feature.items()}
    case _:
      return (draw.random(feature.shape) * 30).astype(feature.np_dtype)


def encodable(record: dict) -> dict:
  """Returns a record with images encoded as PNG files, which keep every pixel."""
  return {key: io.BytesIO(png(one)) if _is_image(one) else one for key, one in record.items()}


def png(pixels: np.ndarray) -> bytes:
  """Encodes [H, W, 1 or 3] as a PNG file."""
  return cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()


def _is_image(one):
  return isinstance(one, np.ndarray) and one.dtype == np.uint8 and one.ndim == 3

"""A generated TFDS dataset of images with the size of ImageNet's: 500 x 375 pixels and about 90 kB."""

import io
import pathlib

import cv2
import numpy as np

HEIGHT, WIDTH, CLASSES = 375, 500, 10


def make_picture(seed: int) -> bytes:
  """Returns a JPEG file with random colours at all scales, as in photographs."""
  rng = np.random.default_rng(seed)
  image = np.zeros((HEIGHT, WIDTH, 3), np.float32)
  for side in (2, 4, 8, 16, 32, 64, 128, 256):
    coarse = rng.normal(size=(side, side, 3)).astype(np.float32) + rng.normal(size=(side, side, 1))
    smooth = cv2.resize(coarse.astype(np.float32), (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    image += smooth.astype(np.float32) / side**0.25
  image = np.clip(128 + 25 * image, 0, 255).astype(np.uint8)
  return cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 95])[1].tobytes()


def write_dataset(data_dir: pathlib.Path, count: int, copies: int = 1) -> list[bytes]:
  """Writes the dataset `photographs` 1.0.0.

  Args:
    data_dir: TFDS data directory.
    count: number of different images.
    copies: number of copies of each image.

  Returns:
    The different JPEG files.
  """
  import tensorflow_datasets as tfds

  tfds.disable_progress_bar()
  files = [make_picture(seed) for seed in range(count)]
  label = tfds.features.ClassLabel(num_classes=CLASSES)
  tfds.dataset_builders.store_as_tfds_dataset(
    name="photographs",
    version="1.0.0",
    features=tfds.features.FeaturesDict({"image": tfds.features.Image(encoding_format="jpeg"), "label": label}),
    split_datasets={
      "train": list(
        enumerate({"image": io.BytesIO(file), "label": i % CLASSES} for i, file in enumerate(files * copies))
      )
    },
    data_dir=data_dir,
    file_format="array_record",
    disable_shuffling=True,
  )
  return files

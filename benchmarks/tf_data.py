"""big_vision's image input in tf.data, written from its description: the peer of `benchmarks.input_pipeline`."""

import math
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

SIZE, GRAY = 224, 128


def write_records(file: pathlib.Path, images: list[bytes], labels: list[int]) -> None:
  """Writes examples, in the form of TFDS, to a TFRecord file.

  Args:
    file: the file.
    images: JPEG files.
    labels: their labels.
  """
  with tf.io.TFRecordWriter(str(file)) as writer:
    for image, label in zip(images, labels, strict=True):
      feature = {
        "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
      }
      writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())


def make_batches(
  file: pathlib.Path, batch: int, threads: int, layers: int = 0, magnitude: float = 10.0
) -> Iterator[Any]:
  """Returns endless batches of a file, shuffled in a buffer of 512.

  Images are uint8 (batch, 224, 224, 3), with an inception crop, bilinear, and random flips.

  Args:
    file: the TFRecord file.
    batch: batch size.
    threads: number of threads.
    layers: operations of RandAugment per image.
    magnitude: magnitude of RandAugment.
  """
  features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}

  def example(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    stored = tf.io.parse_single_example(record, features)
    image = decode_crop(stored["image"])
    return (apply_randaugment(image, layers, magnitude) if layers else image), stored["label"]

  records = tf.data.TFRecordDataset(str(file)).shuffle(512, seed=0)
  return _repeat_records(records, example, threads).batch(batch, drop_remainder=True).prefetch(2).as_numpy_iterator()


def decode_crops(images: list[bytes], threads: int) -> Iterator[Any]:
  """Decodes a random crop of each image, endlessly. Yields the number of rows, so that pixels are not copied.

  Args:
    images: JPEG files.
    threads: number of threads.
  """
  stored = tf.constant(images)
  numbers = tf.data.Dataset.range(len(images)).shuffle(len(images), seed=0)
  return _repeat_records(numbers, lambda i: tf.shape(_decode_box(stored[i]))[0], threads).batch(64).as_numpy_iterator()


def _repeat_records(records: Any, example: Callable[[tf.Tensor], Any], threads: int) -> tf.data.Dataset:
  images = records.repeat().map(example, num_parallel_calls=threads)
  options = tf.data.Options()
  options.threading.private_threadpool_size = threads
  options.threading.max_intra_op_parallelism = 1
  options.deterministic = False
  # Otherwise buffers grow, and are filled while another pipeline is timed.
  options.autotune.enabled = False
  options.experimental_optimization.inject_prefetch = False
  return images.with_options(options)


def _decode_box(file: tf.Tensor) -> tf.Tensor:
  """Decodes a random box of a JPEG file, and no other pixels."""
  begin, size, _ = tf.image.sample_distorted_bounding_box(
    tf.io.extract_jpeg_shape(file),
    tf.zeros([0, 0, 4], tf.float32),
    area_range=(0.05, 1),
    min_object_covered=0,
    use_image_if_no_bounding_boxes=True,
  )
  window = tf.stack([begin[0], begin[1], size[0], size[1]])
  return tf.io.decode_and_crop_jpeg(file, window, channels=3)


def decode_crop(file: tf.Tensor) -> tf.Tensor:
  """Returns a random crop of a JPEG file, uint8 (224, 224, 3)."""
  image = tf.cast(tf.image.resize(_decode_box(file), (SIZE, SIZE)), tf.uint8)
  return tf.ensure_shape(tf.image.random_flip_left_right(image), (SIZE, SIZE, 3))


def apply_randaugment(image: tf.Tensor, layers: int, magnitude: float) -> tf.Tensor:
  """Applies random operations out of 16, as in big_vision's `randaug(layers, magnitude)`, from EfficientNet's code.

  Args:
    image: uint8 (224, 224, 3).
    layers: number of operations to apply.
    magnitude: magnitude of the operations.
  """
  part = magnitude / 10

  def sign(value: float) -> tf.Tensor:
    return tf.where(tf.random.uniform([]) < 0.5, -value, value)

  operations = (
    _autocontrast,
    _equalize,
    lambda x: 255 - x,
    lambda x: _rotate_image(x, sign(part * math.radians(30))),
    lambda x: _shift_colours(x, 8 - int(part * 4)),
    lambda x: tf.where(x < min(int(part * 256), 255), x, 255 - x),
    lambda x: _blend(_make_gray(x), x, part * 1.8 + 0.1),
    lambda x: _blend(tf.fill(tf.shape(x), np.uint8(SIZE * SIZE // 256)), x, part * 1.8 + 0.1),
    lambda x: _blend(tf.zeros_like(x), x, part * 1.8 + 0.1),
    lambda x: _sharpness(x, part * 1.8 + 0.1),
    lambda x: _warp_image(x, [1.0, sign(part * 0.3), 0.0, 0.0, 1.0, 0.0]),
    lambda x: _warp_image(x, [1.0, 0.0, 0.0, sign(part * 0.3), 1.0, 0.0]),
    lambda x: _warp_image(x, [1.0, 0.0, sign(part * 100), 0.0, 1.0, 0.0]),
    lambda x: _warp_image(x, [1.0, 0.0, 0.0, 0.0, 1.0, sign(part * 100)]),
    lambda x: _cutout(x, int(part * 40)),
    lambda x: tf.where(x < 128, tf.cast(tf.minimum(tf.cast(x, tf.int32) + int(part * 110), 255), tf.uint8), x),
  )
  for _ in range(layers):
    which = tf.random.uniform([], maxval=len(operations), dtype=tf.int32)
    branches = [lambda operation=operation, x=image: operation(x) for operation in operations]
    image = tf.ensure_shape(tf.switch_case(which, branches), (SIZE, SIZE, 3))
  return image


def _autocontrast(image: tf.Tensor) -> tf.Tensor:
  values = tf.cast(image, tf.float32)
  low, high = tf.reduce_min(values, (0, 1)), tf.reduce_max(values, (0, 1))
  slope = 255 / tf.maximum(high - low, 1)
  stretched = tf.clip_by_value(values * slope - low * slope, 0, 255)
  return tf.where(high > low, tf.cast(stretched, tf.uint8), image)


def _equalize(image: tf.Tensor) -> tf.Tensor:
  def channel(c: int) -> tf.Tensor:
    values = tf.cast(image[:, :, c], tf.int32)
    counts = tf.histogram_fixed_width(values, [0, 255], nbins=256)
    present = tf.boolean_mask(counts, counts > 0)
    step = (tf.reduce_sum(present) - present[-1]) // 255
    table = tf.clip_by_value((tf.cumsum(counts, exclusive=True) + step // 2) // tf.maximum(step, 1), 0, 255)
    return tf.cast(tf.where(step == 0, values, tf.gather(table, values)), tf.uint8)

  return tf.stack([channel(c) for c in range(3)], -1)


def _shift_colours(image: tf.Tensor, bits: int) -> tf.Tensor:
  return tf.bitwise.left_shift(tf.bitwise.right_shift(image, np.uint8(bits)), np.uint8(bits))


def _make_gray(image: tf.Tensor) -> tf.Tensor:
  return tf.image.grayscale_to_rgb(tf.image.rgb_to_grayscale(image))


def _blend(start: tf.Tensor, end: tf.Tensor, factor: float) -> tf.Tensor:
  start = tf.cast(start, tf.float32)
  return tf.cast(tf.clip_by_value(start + factor * (tf.cast(end, tf.float32) - start), 0, 255), tf.uint8)


def _sharpness(image: tf.Tensor, factor: float) -> tf.Tensor:
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32)[:, :, None, None] / 13
  smooth = tf.nn.depthwise_conv2d(
    tf.cast(image, tf.float32)[None], np.tile(kernel, (1, 1, 3, 1)), [1, 1, 1, 1], padding="VALID"
  )[0]
  smooth = tf.pad(tf.cast(tf.clip_by_value(smooth, 0, 255), tf.uint8), [[1, 1], [1, 1], [0, 0]])
  inside = np.pad(np.ones((SIZE - 2, SIZE - 2, 1), bool), ((1, 1), (1, 1), (0, 0)))
  return _blend(tf.where(inside, smooth, image), image, factor)


def _rotate_image(image: tf.Tensor, angle: float) -> tf.Tensor:
  cos, sin, middle = tf.cos(angle), tf.sin(angle), (SIZE - 1) / 2
  return _warp_image(
    image, [cos, -sin, middle - cos * middle + sin * middle, sin, cos, middle - sin * middle - cos * middle]
  )


def _warp_image(image: tf.Tensor, matrix: Any) -> tf.Tensor:
  """Applies a projective transform with nearest neighbours. Pixels from outside become grey."""
  marked = tf.concat([image, tf.fill([SIZE, SIZE, 1], np.uint8(255))], -1)[None]
  moved = tf.raw_ops.ImageProjectiveTransformV3(
    images=marked,
    transforms=tf.stack([tf.cast(x, tf.float32) for x in (*matrix, 0, 0)])[None],
    output_shape=[SIZE, SIZE],
    fill_value=0.0,
    interpolation="NEAREST",
  )[0]
  return tf.where(moved[:, :, 3:] > 0, moved[:, :, :3], np.uint8(GRAY))


def _cutout(image: tf.Tensor, reach: int) -> tf.Tensor:
  row, column = (tf.random.uniform([], maxval=SIZE, dtype=tf.int32) for _ in range(2))
  places = tf.range(SIZE)
  inside = (tf.abs(places - row) < reach)[:, None] & (tf.abs(places - column) < reach)[None]
  return tf.where(inside[:, :, None], np.uint8(GRAY), image)

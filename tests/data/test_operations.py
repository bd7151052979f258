"""Tests of image operations against Pillow, and against TensorFlow's arithmetic written out pixel by pixel."""

import math

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from tests import modules
from vit_jax.data import operations, randaugment

GRAY = (128, 128, 128)
SHAPES = [(40, 40), (37, 61), (50, 24)]
GEOMETRIC = {"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel", "TranslateX", "TranslateY"}


def noise(height=40, width=40, seed=0):
  return modules.pictures(1, height, width, seed)[0]


def picture(height=40, width=40, seed=0):
  """Returns smooth colours in a range narrower than 0..255."""
  return cv2.resize(noise(5, 5, seed) // 2 + 40, (width, height), interpolation=cv2.INTER_CUBIC)


def transform(matrix):
  def apply(image, argument, fill, resample):
    return image.transform(image.size, Image.Transform.AFFINE, matrix(argument, *image.size), resample, fillcolor=fill)

  return apply


def enhance(kind):
  return lambda image, argument, fill, resample: kind(image).enhance(argument)


PILLOW = {
  "AutoContrast": lambda image, argument, fill, resample: ImageOps.autocontrast(image),
  "Equalize": lambda image, argument, fill, resample: ImageOps.equalize(image),
  "Invert": lambda image, argument, fill, resample: ImageOps.invert(image),
  "Rotate": lambda image, argument, fill, resample: image.rotate(argument, resample, fillcolor=fill),
  # Pillow 13 refuses 0 bits. Earlier versions make the image black.
  "PosterizeIncreasing": lambda image, argument, fill, resample: (
    ImageOps.posterize(image, argument) if argument else Image.new("RGB", image.size)
  ),
  "SolarizeIncreasing": lambda image, argument, fill, resample: ImageOps.solarize(image, argument),
  "SolarizeAdd": lambda image, argument, fill, resample: image.point(
    [min(255, v + argument) if v < 128 else v for v in range(256)] * 3
  ),
  "ColorIncreasing": enhance(ImageEnhance.Color),
  "ContrastIncreasing": enhance(ImageEnhance.Contrast),
  "BrightnessIncreasing": enhance(ImageEnhance.Brightness),
  "SharpnessIncreasing": enhance(ImageEnhance.Sharpness),
  "ShearX": transform(lambda amount, width, height: (1, amount, 0, 0, 1, 0)),
  "ShearY": transform(lambda amount, width, height: (1, 0, 0, amount, 1, 0)),
  "TranslateXRel": transform(lambda share, width, height: (1, 0, share * width, 0, 1, 0)),
  "TranslateYRel": transform(lambda share, width, height: (1, 0, 0, 0, 1, share * height)),
}


def test_both_tables_have_the_published_operations():
  assert list(randaugment.INCREASING) == list(PILLOW)
  assert len(randaugment.INCREASING) == 15 and len(randaugment.PUBLISHED) == len(TENSORFLOW) == 16
  assert set(randaugment.PUBLISHED) == set(TENSORFLOW)


@pytest.mark.parametrize("name", randaugment.INCREASING)
@pytest.mark.parametrize("shape", SHAPES)
def test_increasing_operations_match_pillow(name, shape):
  op = randaugment.INCREASING[name]
  for image in (noise(*shape), picture(*shape)):
    for magnitude, sign in ((0.0, 1), (4.7123, -1), (8.8317, 1), (9.4269, -1), (10.0, 1)):
      argument = op.argument(magnitude, sign)
      for interpolation in ("bilinear", "bicubic"):
        result = op.apply(image, argument, (1, 130, 250), interpolation)
        expected = PILLOW[name](
          Image.fromarray(image), argument, (1, 130, 250), Image.Resampling[interpolation.upper()]
        )
        difference = np.abs(result.astype(int) - np.asarray(expected))
        assert result.dtype == np.uint8
        # Interpolated values are truncated to integers, and float32 and float64 may be on different sides of one. This
        # is rare, except for round shifts such as 10.8 px, where every fifth value is an integer.
        assert difference.max() <= (name in GEOMETRIC)
        assert (difference > 0).mean() < (0.1 if magnitude == 10 else 0.03)


@pytest.mark.parametrize("name", sorted(GEOMETRIC & set(randaugment.INCREASING)))
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_warping_keeps_flat_images(name, interpolation):
  op = randaugment.INCREASING[name]
  for level in (1, 77, 128, 255):
    image = np.full((50, 41, 3), level, np.uint8)
    for magnitude in np.linspace(0, 10, 9):
      np.testing.assert_array_equal(op.apply(image, op.argument(magnitude, 1), (level,) * 3, interpolation), image)


@pytest.mark.parametrize(("width", "height"), [(1, 5), (5000, 3), (3, 5000)])
def test_images_narrower_or_wider_than_a_band_are_warped(width, height):
  image = noise(height, width)
  for interpolation in ("bilinear", "bicubic"):
    ours = randaugment.INCREASING["Rotate"].apply(image, 12.0, GRAY, interpolation)
    theirs = Image.fromarray(image).rotate(12.0, Image.Resampling[interpolation.upper()], fillcolor=GRAY)
    assert np.abs(ours.astype(int) - np.asarray(theirs)).max() <= 1


# The TensorFlow code again, with every value in its type there.


def merged(start, end, factor):
  start, end = start.astype(np.float32), end.astype(np.float32)
  mixed = start + np.float32(factor) * (end - start)
  return np.trunc(np.minimum(np.maximum(mixed, 0), 255)).astype(np.uint8)


def gray(image):
  share = image.astype(np.float32) * np.float32(1 / 255)
  total = np.float32(0)
  for channel, weight in enumerate((0.2989, 0.587, 0.114)):
    total = total + share[..., channel] * np.float32(weight)
  return np.repeat((total * np.float32(255.5)).astype(np.uint8)[..., None], 3, axis=-1)


def stretched(channel):
  low, high = np.float32(channel.min()), np.float32(channel.max())
  if low == high:
    return channel
  slope = np.float32(255) / (high - low)
  return np.clip(channel.astype(np.float32) * slope + -low * slope, 0, 255).astype(np.uint8)


def equalized(channel):
  counts = [int((channel == v).sum()) for v in range(256)]
  step = (channel.size - [c for c in counts if c][-1]) // 255
  if step == 0:
    return channel
  table = [0] + [min((sum(counts[: v + 1]) + step // 2) // step, 255) for v in range(255)]
  return np.array(table, np.uint8)[channel]


def by_channel(function):
  return lambda image, *_: np.stack([function(image[..., c]) for c in range(3)], axis=-1)


def smoothed(image):
  kernel = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]])
  result = image.copy()
  for y in range(1, image.shape[0] - 1):
    for x in range(1, image.shape[1] - 1):
      window = image[y - 1 : y + 2, x - 1 : x + 2].astype(int)
      result[y, x] = [(window[..., c] * kernel).sum() // 13 for c in range(3)]
  return result


def shifted(image, bits):
  # uint8 cannot represent a negative shift. Shifts by 8 or more act like shifts by 7.
  shift = np.uint8(min((8 - bits) % 256, 7))
  return np.left_shift(np.right_shift(image, shift), shift)


def projected(matrix):
  """Applies a projective transform of eight numbers. A fourth channel marks pixels without a source."""

  def apply(image, argument, place):
    height, width = image.shape[:2]
    wrapped = np.concatenate([image, np.ones_like(image[..., :1])], axis=-1)
    numbers = [np.float32(n) for n in matrix(np.float32(argument), np.float32(height - 1), np.float32(width - 1))]
    result = np.zeros_like(wrapped)
    for y in range(height):
      for x in range(width):
        a, b, c, d, e, f = numbers
        at_x = a * np.float32(x) + b * np.float32(y) + c
        at_y = d * np.float32(x) + e * np.float32(y) + f
        # C's round: halves away from zero.
        column, row = (int(math.copysign(math.floor(abs(float(v)) + 0.5), v)) for v in (at_x, at_y))
        if 0 <= row < height and 0 <= column < width:
          result[y, x] = wrapped[row, column]
    return np.where(result[..., 3:] == 0, np.uint8(128), result[..., :3])

  return apply


def turned(degrees, height, width):
  radians = degrees * np.float32(math.pi / 180)
  cos, sin = np.cos(radians), np.sin(radians)
  x = (width - (cos * width - sin * height)) / 2
  y = (height - (sin * width + cos * height)) / 2
  return cos, -sin, x, sin, cos, y


def cut(image, reach, place):
  height, width = image.shape[:2]
  row, column = int(place[0] * height), int(place[1] * width)
  inside = np.zeros((height, width), bool)
  inside[max(0, row - reach) : height - max(0, height - row - reach)] = True
  inside[:, : max(0, column - reach)] = False
  inside[:, width - max(0, width - column - reach) :] = False
  return np.where(inside[..., None], np.uint8(128), image)


TENSORFLOW = {  # name -> (image, argument, place) -> image
  "AutoContrast": by_channel(stretched),
  "Equalize": by_channel(equalized),
  "Invert": lambda image, *_: 255 - image,
  "Rotate": projected(turned),
  "Posterize": lambda image, bits, _: shifted(image, bits),
  "Solarize": lambda image, threshold, _: np.where(image < np.uint8(threshold % 256), image, 255 - image),
  "Color": lambda image, factor, _: merged(gray(image), image, factor),
  "Contrast": lambda image, factor, _: merged(
    np.full_like(image, min(image.shape[0] * image.shape[1] / 256, 255)), image, factor
  ),
  "Brightness": lambda image, factor, _: merged(np.zeros_like(image), image, factor),
  "Sharpness": lambda image, factor, _: merged(smoothed(image), image, factor),
  "ShearX": projected(lambda amount, height, width: (1, amount, 0, 0, 1, 0)),
  "ShearY": projected(lambda amount, height, width: (1, 0, 0, amount, 1, 0)),
  "TranslateX": projected(lambda pixels, height, width: (1, 0, pixels, 0, 1, 0)),
  "TranslateY": projected(lambda pixels, height, width: (1, 0, 0, 0, 1, pixels)),
  "Cutout": cut,
  "SolarizeAdd": lambda image, addition, _: np.where(
    image < 128, np.clip(image.astype(np.int64) + addition, 0, 255).astype(np.uint8), image
  ),
}


@pytest.mark.sample(8)
@pytest.mark.heavy
@pytest.mark.parametrize("name", randaugment.PUBLISHED)
@pytest.mark.parametrize("shape", SHAPES)
def test_published_operations_match_the_tensorflow_code_in_numpy(name, shape):
  op = randaugment.PUBLISHED[name]
  for image in (noise(*shape), picture(*shape)):
    for level, sign, place in (
      (0.0, 1, (0.0, 0.99)),
      (2.0, -1, (0.5, 0.3)),
      (10.0, 1, (0.99, 0.1)),
      (15.0, -1, (0, 0)),
    ):
      argument = op.argument(level, sign)
      result, expected = op.apply(image, argument, GRAY, place), TENSORFLOW[name](image, argument, place)
      assert result.dtype == expected.dtype == np.uint8
      # A rotated point may be half-way between two pixels, where the rounding of a cosine decides.
      assert (result != expected).any(-1).mean() <= (0.002 if name == "Rotate" else 0)


@pytest.mark.parametrize("level", [0.0, 5.0, 20.0, 24.0, 27.0, 30.0])
@pytest.mark.parametrize("name", ["Posterize", "Solarize", "SolarizeAdd", "Color", "Contrast", "Brightness", "Cutout"])
def test_all_magnitudes_wrap_and_clip_as_uint8(name, level):
  op, image = randaugment.PUBLISHED[name], noise()
  argument = op.argument(level, 1)
  expected = TENSORFLOW[name](image, argument, (0.2, 0.6))
  np.testing.assert_array_equal(op.apply(image, argument, GRAY, (0.2, 0.6)), expected)


def test_contrast_pivots_on_the_published_value_or_on_the_mean():
  # Figures of issue 109 of big_vision: colours 192 and 64 at 224 px and magnitude 10 become 188 and 0.
  image = np.empty((224, 224, 3), np.uint8)
  image[:], image[:, ::2] = (192, 64, 64), (64, 192, 192)
  argument = randaugment.PUBLISHED["Contrast"].argument(10.0, 1)
  published = randaugment.PUBLISHED["Contrast"].apply(image, argument, GRAY, None)
  assert set(map(tuple, published.reshape(-1, 3))) == {(188, 0, 0), (0, 188, 188)}
  mended = randaugment.MENDED["Contrast"].apply(image, argument, GRAY, None)
  assert set(map(tuple, mended.reshape(-1, 3))) == {(249, 6, 6), (6, 249, 249)}
  np.testing.assert_array_equal(operations.contrast_published(image, 1e-9), np.full_like(image, 196))


def test_gray_matches_pillow_for_all_colours():
  image = noise(256, 256)
  np.testing.assert_array_equal(operations.gray_pillow(image), np.asarray(Image.fromarray(image).convert("L")))
  np.testing.assert_array_equal(operations.gray_tensorflow(image), gray(image)[..., 0])


def test_smoothing_rounds_like_pillow_and_truncates_like_tensorflow():
  image = noise(30, 31)
  pillow = np.asarray(Image.fromarray(image).filter(ImageFilter.SMOOTH))
  np.testing.assert_array_equal(operations.sharpness(image, 0.0), pillow)
  np.testing.assert_array_equal(operations.sharpness_tensorflow(image, 0.0), smoothed(image))


TABLES = {"increasing": (randaugment.INCREASING, "bicubic"), "published": (randaugment.PUBLISHED, (0.3, 0.7))}
ALL = [(table, name) for table, (ops, _) in TABLES.items() for name in ops]


@pytest.mark.parametrize(("table", "name"), ALL)
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (1, 7), (9, 1)])
def test_operations_accept_any_image_and_do_not_modify_it(table, name, shape):
  ops, choice = TABLES[table]
  op = ops[name]
  argument = op.argument(9.0, 1)
  for image in (np.full((*shape, 3), 90, np.uint8), noise(*shape), noise(*shape)[::-1, ::-1]):
    before = image.copy()
    result = op.apply(image, argument, GRAY, choice)
    assert result.shape == image.shape and result.dtype == np.uint8
    np.testing.assert_array_equal(image, before)
    np.testing.assert_array_equal(result, op.apply(before, argument, GRAY, choice))


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("name", ["AutoContrast", "Equalize"])
def test_constant_channels_are_neither_stretched_nor_equalized(table, name):
  ops, choice = TABLES[table]
  image = picture()
  image[..., 1] = 33
  result = ops[name].apply(image, None, GRAY, choice)
  np.testing.assert_array_equal(result[..., 1], 33)
  assert result[..., 0].min() == 0 and result[..., 0].max() == 255
  flat = np.full_like(image, 200)
  np.testing.assert_array_equal(ops[name].apply(flat, None, GRAY, choice), flat)

"""Operations on uint8 images (H, W, 3), on colours and on positions, in the arithmetic of Pillow and of TensorFlow.

All operations return a uint8 image (H, W, 3). They match the original implementations exactly, including rounding,
unless their docstring states a difference.
"""

import functools
import random
from collections.abc import Callable, Mapping

import cv2
import numpy as np

Matrix = tuple[float, ...]  # of a projective transform, row by row
MatrixOf = Callable[[float, int, int], Matrix]  # (argument, height, width) -> matrix
Policy = Callable[[np.ndarray, random.Random], np.ndarray]

# One thread per image, because the stream processes many images in parallel.
cv2.setNumThreads(1)

LEVELS = np.arange(256)
# Pixels that are warped together; their float32 colours, 48 KiB, fit into the cache and need no new memory pages.
BAND = 2**12


# Operations on colours. They use a lookup table if the new value depends only on the old one.


def autocontrast(image: np.ndarray, argument: object = None, precision: type[np.floating] = np.float64) -> np.ndarray:
  """Stretches each channel linearly from its lowest and highest value to 0 and 255. Constant channels do not change.

  Args:
    image: the image.
    argument: not used.
    precision: type of the computation. Pillow uses float64, TensorFlow float32.
  """
  present = [np.flatnonzero(counts) for counts in compute_histograms(image)]
  low, high = (np.array([levels[end] for levels in present], precision) for end in (0, -1))
  slope = precision(255) / np.where(high > low, high - low, 1)
  table = LEVELS[:, None].astype(precision) * slope + -low * slope
  return look_up(image, np.where(high > low, table, LEVELS[:, None]))


def equalize(image: np.ndarray, argument: object = None) -> np.ndarray:
  """Makes the values of each channel equally frequent.

  Pixels with the highest value are not counted. A step is 1/255 of the counted pixels. A channel does not change if it
  is constant or has less than 255 counted pixels.

  Args:
    image: the image.
    argument: not used.
  """
  tables = []
  for counts in compute_histograms(image):
    step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    before = np.cumsum(counts) - counts
    tables.append((before + step // 2) // step if step else LEVELS)
  return look_up(image, np.stack(tables, axis=-1))


def invert(image: np.ndarray, argument: object = None) -> np.ndarray:
  """Returns 255 - value.

  Args:
    image: the image.
    argument: not used.
  """
  return cv2.bitwise_not(image)


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
  """Keeps the highest bits of each value.

  Args:
    image: the image.
    bits: number of bits to keep. With 0 bits the image is black.
  """
  return look_up(image, LEVELS >> (8 - bits) << (8 - bits))


def posterize_wrapped(image: np.ndarray, bits: int) -> np.ndarray:
  """Posterizes like TensorFlow, which shifts uint8 by at most 7, modulo 256.

  Args:
    image: the image.
    bits: number of bits to keep. 0 bits and 9 or more bits keep one bit.
  """
  return posterize(image, 8 - min((8 - bits) % 256, 7))


def solarize(image: np.ndarray, threshold: float) -> np.ndarray:
  """Inverts values equal to or above a threshold.

  Args:
    image: the image.
    threshold: smallest inverted value.
  """
  return look_up(image, np.where(threshold <= LEVELS, 255 - LEVELS, LEVELS))


def solarize_wrapped(image: np.ndarray, threshold: int) -> np.ndarray:
  """Solarizes like TensorFlow, which uses the threshold modulo 256.

  Args:
    image: the image.
    threshold: smallest inverted value, modulo 256. A threshold of 256 inverts all values (big_vision issue 110).
  """
  return solarize(image, threshold % 256)


def solarize_add(image: np.ndarray, addition: int) -> np.ndarray:
  """Adds a number to values below 128.

  Args:
    image: the image.
    addition: the number.
  """
  return look_up(image, np.where(LEVELS < 128, LEVELS + addition, LEVELS))


def color(image: np.ndarray, factor: float) -> np.ndarray:
  """Changes saturation: blends the gray image of Pillow with the image.

  Args:
    image: the image.
    factor: 0 for the gray image, 1 for the image, more to increase the saturation.
  """
  return blend(cv2.merge([gray_pillow(image)] * 3), image, factor)


def color_tensorflow(image: np.ndarray, factor: float) -> np.ndarray:
  """Changes saturation: blends the gray image of TensorFlow with the image.

  Args:
    image: the image.
    factor: 0 for the gray image, 1 for the image, more to increase the saturation.
  """
  return blend(cv2.merge([gray_tensorflow(image)] * 3), image, factor)


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
  """Changes contrast: blends the rounded mean of Pillow's gray image with the image.

  Args:
    image: the image.
    factor: 0 for the mean, 1 for the image, more to increase the contrast.
  """
  return look_up(image, blend(int(gray_pillow(image).mean() + 0.5), LEVELS, factor))


def contrast_published(image: np.ndarray, factor: float) -> np.ndarray:
  """Changes contrast: blends the value H W / 256 with the image.

  The value is 196 for 224 pixels and 255 from 256 pixels on. The original code sums counts instead of values. The
  published models were trained this way (big_vision issue 109).

  Args:
    image: the image.
    factor: 0 for the value, 1 for the image, more to increase the contrast.
  """
  height, width = image.shape[:2]
  return look_up(image, blend(min(height * width // 256, 255), LEVELS, factor))


def contrast_corrected(image: np.ndarray, factor: float) -> np.ndarray:
  """Changes contrast: blends the mean of TensorFlow's gray image, rounded down, with the image.

  Source: tensorflow/models 11219.

  Args:
    image: the image.
    factor: 0 for the mean, 1 for the image, more to increase the contrast.
  """
  return look_up(image, blend(int(gray_tensorflow(image).mean()), LEVELS, factor))


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
  """Changes brightness: blends black with the image.

  Args:
    image: the image.
    factor: 0 for black, 1 for the image, more to increase the brightness.
  """
  return look_up(image, blend(0, LEVELS, factor))


def sharpness(image: np.ndarray, factor: float, rounding: int = 6) -> np.ndarray:
  """Changes sharpness: blends a smoothed image with the image.

  The smoothed image is a weighted sum with the weight 5 in the middle and 1 around it. The sum is divided by 13 and
  rounded like in Pillow. Pixels at the border do not change.

  Args:
    image: the image.
    factor: 0 for the smoothed image, 1 for the image, more to sharpen.
    rounding: added before the division. 6 rounds to the nearest number, 0 rounds down.
  """
  height, width = image.shape[:2]
  smooth = image.copy()
  if height > 2 and width > 2:
    total = cv2.filter2D(image, cv2.CV_16S, np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32))
    smooth[1:-1, 1:-1] = (total[1:-1, 1:-1] + rounding) // 13
  return blend(smooth, image, factor)


def sharpness_tensorflow(image: np.ndarray, factor: float) -> np.ndarray:
  """Changes sharpness like `sharpness`, but rounds quotients down.

  This differs slightly from TensorFlow, which sums float32 quotients. The sum may be just below a whole number, so the
  smoothed image is lower by one for 0.4% of the pixels of noise. In flat regions, this affects a sixth of all gray
  levels (measured with TensorFlow 2.21).

  Args:
    image: the image.
    factor: 0 for the smoothed image, 1 for the image, more to sharpen.
  """
  return sharpness(image, factor, rounding=0)


def compute_histograms(image: np.ndarray) -> list[np.ndarray]:
  """Returns the number of pixels with each value: three int64 arrays (256,), one per channel."""
  return [cv2.calcHist([image], [c], None, [256], [0, 256]).ravel().astype(np.int64) for c in range(3)]


def look_up(image: np.ndarray, table: np.ndarray) -> np.ndarray:
  """Replaces each value v by table[v], clipped to 0 to 255.

  Args:
    image: the image.
    table: new values, (256,), or (256, 3) with one column per channel.
  """
  table = np.clip(table, 0, 255).astype(np.uint8)
  return cv2.LUT(image, table if table.ndim == 1 else table[None])


def blend(start: np.ndarray | int, end: np.ndarray, factor: float) -> np.ndarray:
  """Returns start + factor (end - start), computed in float32, clipped, and rounded down to uint8.

  Args:
    start: result for factor 0.
    end: result for factor 1.
    factor: weight of `end`. Factors above 1 extrapolate.
  """
  start = np.asarray(start, np.float32)
  mixed = np.subtract(end, start, dtype=np.float32)
  mixed *= np.float32(factor)
  mixed += start
  return np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)


def gray_pillow(image: np.ndarray) -> np.ndarray:
  """Returns the gray image (H, W) of Pillow: (19595 R + 38470 G + 7471 B) / 2^16, rounded.

  All intermediate values are below 2^24 and therefore exact in float32.
  """
  weights = np.array([[19595, 38470, 7471, 2**15]], np.float32)
  return (cv2.transform(image.astype(np.float32), weights) * np.float32(2**-16)).astype(np.uint8)


def gray_tensorflow(image: np.ndarray) -> np.ndarray:
  """Returns the gray image (H, W) of TensorFlow: 0.2989 R + 0.587 G + 0.114 B in float32.

  R, G and B are divided by 255. The sum is multiplied by 255.5 and rounded down.
  """
  red, green, blue = (channel * np.float32(1 / 255) for channel in cv2.split(image))
  gray = red * np.float32(0.2989) + green * np.float32(0.587) + blue * np.float32(0.114)
  return (gray * np.float32(255.5)).astype(np.uint8)


# Operations on positions. A matrix (a, b, c, d, e, f) maps an output pixel (x, y) to its origin (a x + b y + c, d x +
# e y + f). Functions of matrices take the argument, and the height and width of the image in the same coordinates.


def rotation(degrees: float, height: int, width: int) -> Matrix:
  """Returns the matrix of a rotation about the centre.

  Args:
    degrees: angle. Positive degrees rotate counter-clockwise.
    height: height of the image.
    width: width of the image.
  """
  cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
  x, y = width / 2, height / 2
  return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def shear_x(amount: float, height: int, width: int) -> Matrix:
  """Returns the matrix that moves rows to the left in proportion to their y. The upper left corner is fixed.

  Args:
    amount: shift per unit of y.
    height: height of the image. Not used.
    width: width of the image. Not used.
  """
  return 1, amount, 0, 0, 1, 0


def shear_y(amount: float, height: int, width: int) -> Matrix:
  """Returns the matrix that moves columns up in proportion to their x. The upper left corner is fixed.

  Args:
    amount: shift per unit of x.
    height: height of the image. Not used.
    width: width of the image. Not used.
  """
  return 1, 0, 0, amount, 1, 0


def translation_x(pixels: float, height: int, width: int) -> Matrix:
  """Returns the matrix of a translation to the left.

  Args:
    pixels: distance in pixels.
    height: height of the image. Not used.
    width: width of the image. Not used.
  """
  return 1, 0, pixels, 0, 1, 0


def translation_y(pixels: float, height: int, width: int) -> Matrix:
  """Returns the matrix of an upward translation.

  Args:
    pixels: distance in pixels.
    height: height of the image. Not used.
    width: width of the image. Not used.
  """
  return 1, 0, 0, 0, 1, pixels


def translation_x_relative(share: float, height: int, width: int) -> Matrix:
  """Returns the matrix of a translation to the left.

  Args:
    share: distance as a share of the width.
    height: height of the image. Not used.
    width: width of the image.
  """
  return translation_x(share * width, height, width)


def translation_y_relative(share: float, height: int, width: int) -> Matrix:
  """Returns the matrix of an upward translation.

  Args:
    share: distance as a share of the height.
    height: height of the image.
    width: width of the image. Not used.
  """
  return translation_y(share * height, height, width)


def warp_nearest(matrix: MatrixOf, image: np.ndarray, argument: float, fill: tuple[int, int, int]) -> np.ndarray:
  """Warps an image with the nearest pixel, like the projective transform of TensorFlow.

  Centres of pixels have whole coordinates. Rotations differ from TensorFlow in up to 1 of 50,000 pixels, where the
  last bit of a cosine decides between two pixels. Other operations are exact.

  Args:
    matrix: function of (argument, height, width) that returns a matrix, such as `rotation`.
    image: the image.
    argument: argument of `matrix`.
    fill: colour outside of the image.
  """
  origins = _nearest_map(matrix, argument, *image.shape[:2])
  return cv2.remap(  # type: ignore[call-overload]  # OpenCV declares the second map as required
    image, origins, None, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=fill
  )


@functools.lru_cache(maxsize=32)  # 6 MiB for images of 224 pixels; a policy with one magnitude needs ten entries
def _nearest_map(matrix: MatrixOf, argument: float, height: int, width: int) -> np.ndarray:
  """Returns the origin of each pixel in the format of OpenCV's remap."""
  x, y = _compute_origins(matrix(argument, height - 1, width - 1), range(height), width, 0, np.float32)
  # Halves are rounded away from zero, so that half a pixel before the first pixel is outside.
  x, y = (np.trunc(v + np.copysign(np.float32(0.5), v)) for v in (x, y))
  return _convert_map(x.clip(-1, width), y.clip(-1, height))


def warp_interpolated(
  matrix: MatrixOf, image: np.ndarray, argument: float, fill: tuple[int, int, int], interpolation: str
) -> np.ndarray:
  """Warps an image with interpolation, like the transform of Pillow.

  Centres of pixels have coordinates that end in .5. Points outside of the image are filled. Inside, pixels beyond the
  border equal those on it. Values are rounded down. The computation uses float32 instead of Pillow's float64, so a few
  pixels differ by one gray level.

  Args:
    matrix: function of (argument, height, width) that returns a matrix, such as `rotation`.
    image: the image.
    argument: argument of `matrix`.
    fill: colour outside of the image.
    interpolation: "bilinear", or "bicubic" with a = -1.
  """
  height, width = image.shape[:2]
  inverse, sample = (
    matrix(argument, height, width),
    {"bilinear": _sample_bilinear, "bicubic": _sample_bicubic}[interpolation],
  )
  # Two pixels on each side, for the neighbours of points on the border.
  padded = cv2.copyMakeBorder(image, 2, 2, 2, 2, cv2.BORDER_REPLICATE).astype(np.float32)
  result = np.full(image.shape, fill, np.uint8)
  band = max(BAND // width, 1)
  for first in range(0, height, band):
    rows = result[first : first + band]
    x, y = _compute_origins(inverse, range(first, first + len(rows)), width, 0.5, np.float64)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    values = sample(padded, x.clip(0, width) + 1.5, y.clip(0, height) + 1.5)
    # Prevents flat regions from becoming darker by one, because float32 weights may sum to less than 1.
    values = np.clip(values + np.float32(2**-10), 0, 255).astype(np.uint8)
    cv2.copyTo(values, inside.view(np.uint8), rows)
  return result


def _sample_bilinear(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns values (h, W, 3) of a float32 image at points (h, W). Pixels have whole coordinates."""
  return cv2.remap(image, x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR)


def _sample_bicubic(image: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns values like `_sample_bilinear`, with a cubic kernel (a = -1) on 4 x 4 pixels.

  OpenCV does not have this kernel.

  If all points have whole coordinates along an axis, as in a shear, only the pixels at the points are used on this
  axis.
  """
  left, top = np.floor(x), np.floor(y)
  across, down, first = _cubic_weights(x - left), _cubic_weights(y - top), _convert_map(left - 1, top - 1)

  def line(j: int) -> np.ndarray:
    return _sum_weighted(
      across,
      lambda i: cv2.remap(image[j:, i:], first, None, cv2.INTER_NEAREST),  # type: ignore[call-overload]  # see above
    )

  return _sum_weighted(down, line)


def _cubic_weights(part: np.ndarray) -> dict[int, np.ndarray]:
  """Returns the weights (h, W, 3) of four neighbouring pixels. `part` (h, W) is the distance of points from pixel 1."""
  if not part.any():
    return {1: np.ones((*part.shape, 3), np.float32)}
  part = part.astype(np.float32)
  rest = 1 - part
  product = part * rest
  weights = (-product * rest, rest + product * rest, part + product * part, -product * part)
  return {place: cv2.merge([weight] * 3) for place, weight in enumerate(weights)}


def _sum_weighted(weights: Mapping[int, np.ndarray], tap: Callable[[int], np.ndarray]) -> np.ndarray:
  """Returns the sum of weight times tap(position)."""
  result = np.zeros_like(next(iter(weights.values())))
  for place, weight in weights.items():
    cv2.accumulateProduct(tap(place), weight, result)
  return result


def _compute_origins(
  matrix: Matrix, rows: range, width: int, middle: float, precision: type[np.floating]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the origins x and y (h, W) of the pixels of some rows. `middle` is the centre of the first pixel."""
  a, b, c, d, e, f = np.asarray(matrix, precision)
  y, x = (np.asarray(rows)[:, None] + middle).astype(precision), (np.arange(width) + middle).astype(precision)
  return a * x + b * y + c, d * x + e * y + f


def _convert_map(x: np.ndarray, y: np.ndarray) -> np.ndarray:
  """Returns whole coordinates in the format of OpenCV's remap: int16 (H, W, 2)."""
  return cv2.merge([x.astype(np.int16), y.astype(np.int16)])


def cutout(image: np.ndarray, reach: int, fill: tuple[int, int, int], place: tuple[float, float]) -> np.ndarray:
  """Fills a box around a pixel, clipped at the border of the image.

  Args:
    image: the image.
    reach: number of pixels from the centre to each side of the box.
    fill: colour of the box.
    place: (down, right) of the centre, as shares of height and width in [0, 1).
  """
  row, column = (int(share * side) for share, side in zip(place, image.shape[:2], strict=True))
  image = image.copy()
  image[max(row - reach, 0) : row + reach, max(column - reach, 0) : column + reach] = fill
  return image

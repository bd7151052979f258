"""Operations on uint8 images [H, W, 3], of colours and of places, in the arithmetic of Pillow and of TensorFlow.

All is that of the original codes down to the rounding, except where a docstring says how far off.
"""

import functools

import cv2
import numpy as np

# One thread per image: the stream already works on many at once.
cv2.setNumThreads(1)

LEVELS = np.arange(256)
BAND = 2**12  # pixels warped at a time: their float32 colours, 48 KiB, stay in the cache, and are no new memory pages


# Operations on colours. Where the new value depends on the old one alone, it is looked up.


def autocontrast(image, argument=None, precision=np.float64):
  """Stretches each channel linearly from its lowest and highest value to 0 and 255; a constant channel stays."""
  present = [np.flatnonzero(counts) for counts in histograms(image)]
  low, high = (np.array([levels[end] for levels in present], precision) for end in (0, -1))
  slope = precision(255) / np.where(high > low, high - low, 1)
  table = LEVELS[:, None].astype(precision) * slope + -low * slope
  return look_up(image, np.where(high > low, table, LEVELS[:, None]))


def equalize(image, argument=None):
  """Makes each channel's values equally frequent, in steps of 1/255 of its pixels but those of the highest value.

  A channel that is constant, or has less than 255 such pixels, stays.
  """
  tables = []
  for counts in histograms(image):
    step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    before = np.cumsum(counts) - counts
    tables.append((before + step // 2) // step if step else LEVELS)
  return look_up(image, np.stack(tables, axis=-1))


def invert(image, argument=None):
  """255 - value."""
  return cv2.bitwise_not(image)


def posterize(image, bits):
  """Keeps the highest `bits` of each value; of 0 bits nothing is left but black."""
  return look_up(image, LEVELS >> (8 - bits) << (8 - bits))


def posterize_wrapped(image, bits):
  """As TensorFlow shifts uint8: by 7 at most, modulo 256. So 0 bits, and 9 or more, are one bit."""
  return posterize(image, 8 - min((8 - bits) % 256, 7))


def solarize(image, threshold):
  """Inverts values from `threshold` on."""
  return look_up(image, np.where(threshold <= LEVELS, 255 - LEVELS, LEVELS))


def solarize_wrapped(image, threshold):
  """As TensorFlow compares uint8: the threshold counts modulo 256, so that 256 inverts all (big_vision issue 110)."""
  return solarize(image, threshold % 256)


def solarize_add(image, addition):
  """Adds to values below 128."""
  return look_up(image, np.where(LEVELS < 128, LEVELS + addition, LEVELS))


def color(image, factor):
  """Away from (above 1) or towards the gray image of Pillow."""
  return blend(cv2.merge([gray_pillow(image)] * 3), image, factor)


def color_tensorflow(image, factor):
  """Away from (above 1) or towards the gray image of TensorFlow."""
  return blend(cv2.merge([gray_tensorflow(image)] * 3), image, factor)


def contrast(image, factor):
  """Away from or towards the mean of the gray image, rounded."""
  return look_up(image, blend(int(gray_pillow(image).mean() + 0.5), LEVELS, factor))


def contrast_published(image, factor):
  """Away from or towards H W / 256 (196 at 224 px, 255 from 256 px on): the code sums counts where it means values.

  This is how the published models were trained (big_vision issue 109).
  """
  height, width = image.shape[:2]
  return look_up(image, blend(min(height * width // 256, 255), LEVELS, factor))


def contrast_mended(image, factor):
  """Away from or towards the mean of TensorFlow's gray image, cut to a whole number (tensorflow/models 11219)."""
  return look_up(image, blend(int(gray_tensorflow(image).mean()), LEVELS, factor))


def brightness(image, factor):
  """Away from or towards black."""
  return look_up(image, blend(0, LEVELS, factor))


def sharpness(image, factor, rounding=6):
  """Away from or towards a smoothed image, whose border is the original's.

  The sum with weights 1, and 5 in the middle, is divided by 13 and rounded as Pillow does.
  """
  height, width = image.shape[:2]
  smooth = image.copy()
  if height > 2 and width > 2:
    total = cv2.filter2D(image, cv2.CV_16S, np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32))
    smooth[1:-1, 1:-1] = (total[1:-1, 1:-1] + rounding) // 13
  return blend(smooth, image, factor)


def sharpness_tensorflow(image, factor):
  """As `sharpness`, but the quotient is cut, not rounded.

  TensorFlow sums float32 quotients, which may end just below a whole number: its smoothed image is one lower in places,
  0.4% of the pixels of noise, and a sixth of all gray levels where the image is flat (measured with TensorFlow 2.21).
  """
  return sharpness(image, factor, rounding=0)


def histograms(image):
  """How many pixels have each value: three arrays [256] of int64, one for each channel."""
  return [cv2.calcHist([image], [c], None, [256], [0, 256]).ravel().astype(np.int64) for c in range(3)]


def look_up(image, table):
  """The image with each value v replaced by table[v], clipped to 0..255; table is [256] or, by channel, [256, 3]."""
  table = np.clip(table, 0, 255).astype(np.uint8)
  return cv2.LUT(image, table if table.ndim == 1 else table[None])


def blend(start, end, factor):
  """start + factor (end - start) in float32, clipped and cut to uint8: at 0 the start, at 1 the end, beyond it more."""
  start = np.asarray(start, np.float32)
  mixed = np.subtract(end, start, dtype=np.float32)
  mixed *= np.float32(factor)
  mixed += start
  return np.clip(mixed, 0, 255, out=mixed).astype(np.uint8)


def gray_pillow(image):
  """[H, W, 3] -> [H, W]: (19595 R + 38470 G + 7471 B) / 2^16, rounded. All numbers are below 2^24, exact in float32."""
  weights = np.array([[19595, 38470, 7471, 2**15]], np.float32)
  return (cv2.transform(image.astype(np.float32), weights) * np.float32(2**-16)).astype(np.uint8)


def gray_tensorflow(image):
  """[H, W, 3] -> [H, W]: 0.2989 R + 0.587 G + 0.114 B of values in 0..1, times 255.5 and cut, in float32."""
  red, green, blue = (channel * np.float32(1 / 255) for channel in cv2.split(image))
  gray = red * np.float32(0.2989) + green * np.float32(0.587) + blue * np.float32(0.114)
  return (gray * np.float32(255.5)).astype(np.uint8)


# Operations on places. A matrix (a, b, c, d, e, f) says where an output pixel (x, y) comes from: (a x + b y + c,
# d x + e y + f). Its functions take the argument, and the height and width of the image in the coordinates used.


def rotation(degrees, height, width):
  """About the middle; counter-clockwise if positive."""
  cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
  x, y = width / 2, height / 2
  return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def shear_x(amount, height, width):
  """Lines move to the left in proportion to their y, about the upper corner."""
  return 1, amount, 0, 0, 1, 0


def shear_y(amount, height, width):
  """Columns move up in proportion to their x, about the left corner."""
  return 1, 0, 0, amount, 1, 0


def translation_x(pixels, height, width):
  """To the left."""
  return 1, 0, pixels, 0, 1, 0


def translation_y(pixels, height, width):
  """Up."""
  return 1, 0, 0, 0, 1, pixels


def translation_x_relative(share, height, width):
  """To the left by a share of the width."""
  return translation_x(share * width, height, width)


def translation_y_relative(share, height, width):
  """Up by a share of the height."""
  return translation_y(share * height, height, width)


def nearest(matrix, image, argument, fill):
  """The warped image as TensorFlow's projective transform makes it: nearest pixel, centres of pixels are whole.

  Turns differ at up to 1 pixel in 50,000, where the last bit of a cosine decides between two; the rest is the same.
  """
  origins = _nearest(matrix, argument, *image.shape[:2])
  return cv2.remap(image, origins, None, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=fill)


@functools.lru_cache(maxsize=32)  # of images of 224 pixels 6 MiB; a policy of one magnitude has ten
def _nearest(matrix, argument, height, width):
  """Where each pixel comes from, as OpenCV's remap takes it."""
  x, y = _origins(matrix(argument, height - 1, width - 1), range(height), width, 0, np.float32)
  # Halves are rounded away from zero, so that half a pixel before the first is outside.
  x, y = (np.trunc(v + np.copysign(np.float32(0.5), v)) for v in (x, y))
  return _map(x.clip(-1, width), y.clip(-1, height))


def interpolated(matrix, image, argument, fill, interpolation):
  """The warped image as Pillow's transform makes it, "bilinear" or "bicubic" (a = -1); centres of pixels end in .5.

  Points outside the image are filled; inside, pixels beyond the border equal those on it. Values are cut, not rounded;
  computed in float32 where Pillow has float64, so that few pixels differ, by one gray level.
  """
  height, width = image.shape[:2]
  inverse, sample = matrix(argument, height, width), {"bilinear": _bilinear, "bicubic": _bicubic}[interpolation]
  # Two pixels on each side, for the neighbours of points that lie on the border.
  padded = cv2.copyMakeBorder(image, 2, 2, 2, 2, cv2.BORDER_REPLICATE).astype(np.float32)
  result = np.full(image.shape, fill, np.uint8)
  band = max(BAND // width, 1)
  for first in range(0, height, band):
    rows = result[first : first + band]
    x, y = _origins(inverse, range(first, first + len(rows)), width, 0.5, np.float64)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    values = sample(padded, x.clip(0, width) + 1.5, y.clip(0, height) + 1.5)
    # Float32 weights must not make a flat region darker by one when values are cut.
    values = np.clip(values + np.float32(2**-10), 0, 255).astype(np.uint8)
    cv2.copyTo(values, inside.view(np.uint8), rows)
  return result


def _bilinear(image, x, y):
  """Values [h, W, 3] of a float32 image at points [h, W], where whole numbers are pixels."""
  return cv2.remap(image, x.astype(np.float32), y.astype(np.float32), cv2.INTER_LINEAR)


def _bicubic(image, x, y):
  """As `_bilinear`, with the cubic kernel a = -1, which OpenCV lacks, on 4 by 4 pixels.

  An axis along which every point is at a pixel, as across a shear, takes that pixel only.
  """
  left, top = np.floor(x), np.floor(y)
  across, down, first = _cubic(x - left), _cubic(y - top), _map(left - 1, top - 1)

  def line(j):
    return _weighted(across, lambda i: cv2.remap(image[j:, i:], first, None, cv2.INTER_NEAREST))

  return _weighted(down, line)


def _cubic(part):
  """Weights [h, W, 3] of four pixels, by their place; `part` [h, W] is how far behind number 1 the point lies."""
  if not part.any():
    return {1: np.ones((*part.shape, 3), np.float32)}
  part = part.astype(np.float32)
  rest = 1 - part
  product = part * rest
  weights = (-product * rest, rest + product * rest, part + product * part, -product * part)
  return {place: cv2.merge([weight] * 3) for place, weight in enumerate(weights)}


def _weighted(weights, tap):
  """Sum of weight times tap(place)."""
  result = np.zeros_like(next(iter(weights.values())))
  for place, weight in weights.items():
    cv2.accumulateProduct(tap(place), weight, result)
  return result


def _origins(matrix, rows, width, middle, precision):
  """x and y [h, W] that the pixels of some rows come from; `middle` is the coordinate of the first pixel's centre."""
  a, b, c, d, e, f = np.asarray(matrix, precision)
  y, x = (np.asarray(rows)[:, None] + middle).astype(precision), (np.arange(width) + middle).astype(precision)
  return a * x + b * y + c, d * x + e * y + f


def _map(x, y):
  """What OpenCV's remap takes for whole coordinates: int16 [H, W, 2]."""
  return cv2.merge([x.astype(np.int16), y.astype(np.int16)])


def cutout(image, reach, fill, place):
  """Fills a box that reaches `reach` pixels to each side of a pixel, clipped at the border."""
  row, column = (int(share * side) for share, side in zip(place, image.shape[:2], strict=True))
  image = image.copy()
  image[max(row - reach, 0) : row + reach, max(column - reach, 0) : column + reach] = fill
  return image

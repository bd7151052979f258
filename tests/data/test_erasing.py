"""Tests of random erasing on the device, against NumPy and SciPy."""

import jax
import numpy as np
import pytest
import scipy.stats

from tests import modules
from vit_jax import schema
from vit_jax.data import erasing

pytestmark = pytest.mark.heavy

DECILES = [0.1, 0.3, 0.5, 0.7, 0.9]


def numpy_boxes(numbers, height, width, area, aspect):
  """Tries boxes one by one, in float32 as on the device."""
  for share, ratio, down, right in numbers.astype(np.float32):
    target = np.float32(height * width) * (np.float32(area[0]) + share * np.float32(area[1] - area[0]))
    ratio = np.float32(aspect[0]) * np.float32(aspect[1] / aspect[0]) ** ratio
    rows, columns = round(float(np.sqrt(target * ratio))), round(float(np.sqrt(target / ratio)))
    if rows < height and columns < width:
      return int(down * np.float32(height - rows + 1)), int(right * np.float32(width - columns + 1)), rows, columns
  return None


@pytest.mark.parametrize(
  ("height", "width", "area", "aspect"),
  [(32, 32, (0.02, 1 / 3), (0.3, 1 / 0.3)), (20, 31, (0.3, 1.0), (0.1, 10.0)), (9, 9, (0.6, 1.0), (0.01, 100.0))],
)
def test_first_box_that_fits_is_erased(height, width, area, aspect):
  numbers = np.random.default_rng(0).random((2000, 10, 4), dtype=np.float32)
  boxes, fits = jax.jit(erasing.choose_erasing_boxes, static_argnums=(1, 2, 3, 4))(numbers, height, width, area, aspect)
  expected = [numpy_boxes(n, height, width, area, aspect) for n in numbers]
  np.testing.assert_array_equal(fits, [e is not None for e in expected])
  different = [tuple(b) != e for b, e in zip(np.asarray(boxes).tolist(), expected, strict=True) if e is not None]
  assert np.mean(different) < 0.005  # only a side that ends in .5 before rounding may differ
  if area[0] == 0.6:
    assert 0.01 < np.mean(fits) < 0.99


def erased(images, **arguments):
  result = jax.jit(erasing.random_erasing(None, **arguments))(modules.keys(len(images)), images)
  assert result.dtype == images.dtype
  return np.asarray(result)


def test_erasing_paints_noise_over_one_box_in_a_quarter_of_the_images():
  images = np.full((4000, 16, 16, 3), np.float32(50))
  result = erased(images)
  touched = (result != 50).any(-1)
  assert (touched == (result != 50).all(-1)).all()  # all channels or no channel
  chosen = touched.any((1, 2))
  assert abs(chosen.mean() - 0.25) < 0.03
  rows, columns = touched.any(2), touched.any(1)
  np.testing.assert_array_equal(touched, rows[:, :, None] & columns[:, None, :])  # boxes
  area = touched[chosen].mean((1, 2))
  # Uniform between 1/50 and 1/3, rounded to whole pixels.
  np.testing.assert_allclose(np.quantile(area, DECILES), 0.02 + (1 / 3 - 0.02) * np.array(DECILES), atol=0.03)
  tall = np.log(rows[chosen].sum(1) / columns[chosen].sum(1))
  assert abs(tall.mean()) < 0.1 and 0.5 < tall.std() < 0.8  # log-uniform within +-1.2
  paint = result[touched].ravel()
  assert scipy.stats.kstest(paint[:20_000], "norm").pvalue > 1e-3
  assert abs(np.corrcoef(result[touched].T)[0, 1]) < 0.03


@pytest.mark.parametrize(("fill", "values"), [("colour", 1), ("zero", 1)])
def test_fill_may_be_one_colour_or_zero(fill, values):
  result = erased(np.full((200, 16, 16, 3), np.float32(50)), probability=1.0, fill=fill)
  for image in result:
    painted = image[(image != 50).any(-1)]
    assert len(np.unique(painted, axis=0)) == values
  colours = np.array([image[(image != 50).any(-1)][0] for image in result])
  if fill == "zero":
    assert (colours == 0).all()
  else:
    assert scipy.stats.kstest(colours.ravel(), "norm").pvalue > 1e-3


def test_several_boxes_share_the_area():
  images = np.full((150, 32, 32, 3), np.float32(50))
  one, four = (erased(images, probability=1.0, fill="colour", area=(0.3, 0.3), count=c) for c in (1, 4))
  shares = [(result != 50).any(-1).mean((1, 2)) for result in (one, four)]
  assert abs(shares[0].mean() - 0.3) < 0.01
  # Four boxes of 7.5 % at random positions cover less if they overlap.
  assert 0.2 < shares[1].mean() < 0.3 and shares[1].max() < 0.33
  assert max(len(np.unique(image[(image != 50).any(-1)], axis=0)) for image in four) == 4


def test_images_are_unchanged_without_a_fitting_box_or_probability():
  images = np.full((50, 16, 16, 3), np.float32(50))
  assert (erased(images, probability=1.0, area=(1.0, 1.0), fill="zero") == 50).all()
  assert (erased(images, probability=0.0, fill="zero") == 50).all()
  with pytest.raises(schema.ConfigError, match=r"aspect: \(2.0, 1.0\) goes from high to low"):
    erasing.random_erasing(None, aspect=(2.0, 1.0))

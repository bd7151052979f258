"""Tests of checks for NaN and infinite values, in the outputs of each image and in weights on host and devices."""

import jax
import ml_dtypes
import numpy as np
import pytest

from vit_jax.models import finite
from vit_jax.schema.errors import NotFiniteError

pytestmark = pytest.mark.heavy

VALUES = [np.nan, np.inf, -np.inf]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_image_with_a_value_that_is_not_finite_is_flagged(value, dtype):
  logits = np.ones((4, 3), dtype)
  logits[2, 1] = value
  flags = jax.device_get(finite.compute_flags({"logits": logits, "best": np.zeros((4, 5), np.int32)}))
  assert flags.keys() == {"finite/logits"}
  np.testing.assert_array_equal(flags["finite/logits"], [True, True, False, True])


def test_error_names_the_first_image_and_its_output():
  rows = {"best": np.arange(3), "finite/loss": np.array([1, 0, 0], bool), "finite/logits": np.array([1, 1, 0], bool)}
  with pytest.raises(NotFiniteError, match=r"image 'photo 17': output 'logits' is not finite"):
    finite.check_flags(rows, np.array([3, 9, 17]), "photo {}".format)
  good = rows | {"finite/logits": np.ones(3, bool), "finite/loss": np.ones(3, bool)}
  assert finite.check_flags(good, np.arange(3), str).keys() == {"best"}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("place", [np.asarray, jax.numpy.asarray], ids=["host", "device"])
def test_error_names_the_first_weight_that_is_not_finite(value, place):
  good, bad = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
  bad[1, 2] = value
  finite.check_weights({"a": place(good)})
  with pytest.raises(NotFiniteError) as error:
    finite.check_weights({"a": place(good), "b": place(bad), "c": place(bad)})
  assert f"b is not finite at [1, 2] ({float(value)}) (not finite: 2 of 3 arrays)" in str(error.value)

"""Tests of tensors that are read when their values are needed."""

import numpy as np
import pytest

from vit_jax.importers.formats import lazy_tensors
from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.schema import ConfigError

ARRAY = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_numpy_functions_accept_lazy_tensors():
  tensor = Tensor(ARRAY.shape, ARRAY.dtype, lambda: ARRAY)
  np.testing.assert_array_equal(tensor[1:], ARRAY[1:])
  np.testing.assert_array_equal(tensor + ARRAY, 2 * ARRAY)
  np.testing.assert_array_equal(np.stack([tensor, tensor]), np.stack([ARRAY, ARRAY]))
  np.testing.assert_array_equal(np.asarray(tensor, np.float64), ARRAY)


def test_joined_tensors_are_read_when_their_values_are_needed():
  read = []

  def values():
    read.append(1)
    return ARRAY

  whole = lazy_tensors.join_tensors([Tensor(ARRAY.shape, ARRAY.dtype, values), ARRAY[:1]])
  assert (whole.shape, whole.dtype, read) == ((4, 4), np.float32, [])
  np.testing.assert_array_equal(np.asarray(whole), np.concatenate([ARRAY, ARRAY[:1]]))


def test_read_error_is_one_line_with_the_file_name(tmp_path):
  def fail():
    raise OSError("no\nluck")

  with pytest.raises(ConfigError, match=r"x: cannot be read: no luck$"):
    lazy_tensors.guard_read(tmp_path / "x", fail)()


def test_tensors_much_larger_than_their_file_are_an_error(tmp_path):
  path = tmp_path / "x"
  path.write_bytes(b"123")
  lazy_tensors.check_size(path, lazy_tensors.FEW)
  with pytest.raises(ConfigError, match="the file has 3 bytes, but its tensors claim"):
    lazy_tensors.check_size(path, lazy_tensors.FEW + 1)

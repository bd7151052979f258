"""Tests of the errors of OpenCV: a damaged file and a lack of memory give different errors."""

import cv2
import numpy as np
import pytest

from tests.image_files import encode, picture
from vit_jax.data.formats import opencv
from vit_jax.data.formats.headers import DecodeError


def test_pixels_are_in_red_green_blue_order():
  np.testing.assert_array_equal(opencv.decode(encode(picture()), 10**5), picture())


def test_error_of_a_damaged_file_contains_its_first_bytes():
  with pytest.raises(DecodeError, match=r"not a complete image: 9 bytes beginning with b'no image'"):
    opencv.decode(b"no image!", 10)


def test_lack_of_memory_is_not_reported_as_damage():
  with pytest.raises(MemoryError):
    opencv.decode(b"no image!", 2**60)


@pytest.mark.parametrize(
  ("error", "expected"),
  [
    (MemoryError(), True),
    (cv2.error("OpenCV(5.0.0) a.cpp:1: error: (-4:Insufficient memory) F"), True),
    (cv2.error("OpenCV(5.0.0) a.cpp:1: error: (-215:Assertion failed) F"), False),
    (ValueError("no"), False),
    (None, False),
  ],
)
def test_errors_about_insufficient_memory_are_recognised(error, expected):
  assert opencv.is_out_of_memory(error) is expected

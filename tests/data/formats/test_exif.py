"""Tests of tag directories: their values, and the orientation of images."""

import struct

import pytest
from PIL import Image

from tests.image_files import ORIENTATION
from vit_jax.data.formats import exif
from vit_jax.data.formats.errors import DecodeError


def test_truncated_exif_reads_the_orientation_or_the_default():
  written = Image.Exif()
  written[ORIENTATION] = 6
  data = written.tobytes()
  assert exif.read_orientation(data) == exif.read_orientation(memoryview(data)[6:]) == 6
  assert [exif.read_orientation(data[:length]) for length in range(len(data) - 4)].count(6) <= 1
  for length in range(len(data)):
    assert exif.read_orientation(data[:length]) in (1, 6)


def made(order, kind, count, value):
  """Returns a directory with an orientation."""
  start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}IH", 8, 1)
  return start + struct.pack(f"{order}HHI", ORIENTATION, kind, count) + value


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "letter"), [(1, "B3x"), (3, "H2x"), (4, "I")])
def test_values_have_the_byte_order_and_type_of_their_directory(order, kind, letter):
  data = made(order, kind, 1, struct.pack(f"{order}{letter}", 8))
  found = exif.read_directory(data)
  assert found.values(data, ORIENTATION).tolist() == [8] and found.orientation(data) == exif.read_orientation(data) == 8
  assert (found.order, found.repeated, set(found.entries)) == (order, False, {ORIENTATION})


def test_values_outside_the_file_or_of_another_type_are_an_error():
  for data in (made("<", 3, 3, struct.pack("<I", 9999)), made("<", 11, 1, bytes(4)), made("<", 3, 0, bytes(4))):
    with pytest.raises(DecodeError, match="a directory that ends after them"):
      exif.read_directory(data).values(data, ORIENTATION)
    assert exif.read_orientation(data) == 1
  assert exif.read_directory(b"no directory") is None

"""Tests of WebP animations.

The first frame is decoded without its transparency. The rest of the canvas is black.
"""

import struct

import numpy as np
import pytest

from tests.image_files import decoded, encode

DRAW = np.random.default_rng(0)


def block(name, data):
  return name + struct.pack("<I", len(data)) + data + bytes(len(data) % 2)


def three(number):
  return number.to_bytes(3, "little")


def animation(width, height, frames, background=bytes(4), transparent=False):
  """Returns a WebP with a canvas of this size. Frames are (pixels, top, left, flags)."""
  body = block(b"VP8X", bytes([2 | 16 * transparent, 0, 0, 0]) + three(width - 1) + three(height - 1))
  body += block(b"ANIM", background + struct.pack("<H", 0))
  for pixels, top, left, flags in frames:
    sides = three(left // 2) + three(top // 2) + three(pixels.shape[1] - 1) + three(pixels.shape[0] - 1)
    body += block(b"ANMF", sides + three(100) + bytes([flags]) + encode(pixels, "WEBP", lossless=True, exact=True)[12:])
  return b"RIFF" + struct.pack("<I", 4 + len(body)) + b"WEBP" + body


@pytest.mark.parametrize("flags", [0, 2], ids=["blended", "replaced"])
@pytest.mark.parametrize("background", [bytes(4), bytes([10, 20, 30, 255])], ids=["black", "coloured"])
@pytest.mark.parametrize("channels", [3, 4])
def test_first_frame_is_decoded_without_its_transparency(channels, background, flags):
  pixels, other = DRAW.integers(0, 256, (2, 20, 30, channels), dtype=np.uint8)
  whole = animation(30, 20, [(pixels, 0, 0, flags), (other, 0, 0, 0)], background, channels == 4)
  np.testing.assert_array_equal(decoded(whole), pixels[..., :3])
  part = decoded(animation(50, 40, [(pixels, 6, 4, flags), (other, 0, 0, 0)], background, channels == 4))
  np.testing.assert_array_equal(part[6:26, 4:34], pixels[..., :3])
  part[6:26, 4:34] = 0
  assert part.shape == (40, 50, 3) and not part.any()

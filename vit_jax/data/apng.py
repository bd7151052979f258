"""Animated PNGs: the still image that the file also has (PNG specification, third edition, section 4.9)."""

import dataclasses
from struct import unpack_from

import numpy as np

from vit_jax.data import opencv

CHUNK = b"acTL"  # an animated PNG has this chunk before its image data
_OF_ANIMATIONS = (CHUNK, b"fcTL", b"fdAT")
_SIGNATURE = 8  # bytes


@dataclasses.dataclass(frozen=True)
class Still:
  """The image of a PNG's IDAT chunks, which programs without support for animations show.

  This image may differ from all frames of the animation. OpenCV would return the first frame.
  """

  memory: int  # bytes that decoding takes at most

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the pixels, uint8 [H, W, 3] RGB. Raises DecodeError for damaged files."""
    return opencv.decode(_without_animation(data), self.memory)


def _without_animation(data):
  """Returns the file without the chunks of an animation. The caller has checked that all chunks are whole."""
  kept, at, first = [], _SIGNATURE, 0
  while at < len(data):
    length, name = unpack_from(">I4s", data, at)
    end = at + 12 + length
    if name in _OF_ANIMATIONS:
      kept.append(memoryview(data)[first:at])
      first = end
    if name == b"IEND":
      break
    at = end
  return b"".join((*kept, memoryview(data)[first:]))

"""Animated PNGs: the still image that the file also contains (PNG specification, third edition, section 4.9)."""

import dataclasses
from struct import unpack_from

import numpy as np

from vit_jax.data.formats import opencv

CHUNK = b"acTL"  # the chunk that an animated PNG has before its image data
_OF_ANIMATIONS = (CHUNK, b"fcTL", b"fdAT")
_SIGNATURE = 8  # length in bytes


@dataclasses.dataclass(frozen=True)
class ApngImage:
  """The image in the IDAT chunks of a PNG, which programs without support for animations display.

  This image may differ from all frames of the animation. OpenCV would return the first frame.

  Attributes:
    memory: largest number of bytes of memory for decoding.
  """

  memory: int

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the pixels, uint8 (H, W, 3) RGB. Raises DecodeError for damaged files."""
    return opencv.decode(_remove_animation(data), self.memory)


def _remove_animation(data: bytes) -> bytes:
  """Returns the file without the chunks of the animation. The caller must check that all chunks are complete."""
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

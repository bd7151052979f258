"""PNGs with chunks that are removed before decoding: animations and colour profiles.

Animated PNGs also contain a still image (PNG specification, third edition, section 4.9). Colour profiles do not affect
the pixels, but libpng prints a warning for each invalid profile, and these are frequent in old PNGs.
"""

import dataclasses
from struct import unpack_from

import numpy as np

from vit_jax.data.formats import opencv

CHUNK = b"acTL"  # the chunk that an animated PNG has before its image data
PROFILE = b"iCCP"  # the chunk of a colour profile
_REMOVED = (CHUNK, b"fcTL", b"fdAT", PROFILE)
_SIGNATURE = 8  # length in bytes


@dataclasses.dataclass(frozen=True)
class ApngImage:
  """The image in the IDAT chunks of a PNG, which programs without support for animations display.

  This image may differ from all frames of an animation. OpenCV would return the first frame.

  Attributes:
    memory: largest number of bytes of memory for decoding.
  """

  memory: int

  def decode(self, data: bytes) -> np.ndarray:
    """Returns the pixels, uint8 (H, W, 3) RGB. Raises DecodeError for damaged files."""
    return opencv.decode(_remove_chunks(data), self.memory)


def _remove_chunks(data: bytes) -> bytes:
  """Returns the file without the chunks in `_REMOVED`. The caller must check that all chunks are complete."""
  kept, at, first = [], _SIGNATURE, 0
  while at < len(data):
    length, name = unpack_from(">I4s", data, at)
    end = at + 12 + length
    if name in _REMOVED:
      kept.append(memoryview(data)[first:at])
      first = end
    if name == b"IEND":
      break
    at = end
  return b"".join((*kept, memoryview(data)[first:]))

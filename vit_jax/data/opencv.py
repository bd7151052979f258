"""Decodes image files with OpenCV, and recognises its errors for lack of memory."""

import cv2
import numpy as np

from vit_jax.data.errors import DecodeError
from vit_jax.schema import amount


def decode(data: bytes, memory: int) -> np.ndarray:
  """Decodes an image file to RGB; transparency, colour profiles and orientation have no effect.

  Args:
    data: the bytes of the file.
    memory: number of bytes that decoding takes at most. It distinguishes a lack of memory from a damaged file.

  Returns:
    uint8 [H, W, 3], the pixels in the order in which the file stores them.

  Raises:
    DecodeError: the file is damaged.
    MemoryError: the process has too little memory.
  """
  try:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
  except cv2.error as error:
    if no_memory(error):
      raise MemoryError from error
    raise DecodeError(f"OpenCV cannot decode it: {error.err}") from error
  if image is None:
    np.empty(memory, np.uint8)  # raises MemoryError, which OpenCV does not report for WebP and progressive JPEGs
    raise DecodeError(f"not a complete image; {amount(len(data), 'byte')} beginning with {data[:8]!r}")
  return image


def no_memory(error: BaseException | None) -> bool:
  """Returns whether an error reports a lack of memory, which is not a defect of the image."""
  # OpenCV's `error.code` is an attribute of the class: that of the last error of any thread.
  return isinstance(error, MemoryError) or (isinstance(error, cv2.error) and "(-4:Insufficient memory)" in str(error))

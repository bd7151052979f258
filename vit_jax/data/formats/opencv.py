"""Decoding of image files with OpenCV, and a check whether an OpenCV error reports a lack of memory."""

import cv2
import numpy as np

from vit_jax.data.formats.errors import DecodeError
from vit_jax.schema import format_amount


def decode(data: bytes, memory: int) -> np.ndarray:
  """Decodes an image file to RGB. Transparency, colour profiles and orientation have no effect.

  Args:
    data: content of the file.
    memory: largest number of bytes of memory for decoding. It distinguishes a lack of memory from a damaged file.

  Returns:
    The pixels in the order in which the file stores them, uint8 (H, W, 3).

  Raises:
    DecodeError: if the file is damaged.
    MemoryError: if the process has too little memory.
  """
  try:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
  except cv2.error as error:
    if is_out_of_memory(error):
      raise MemoryError from error
    raise DecodeError(f"OpenCV cannot decode it: {error.err}") from error
  if image is None:
    np.empty(memory, np.uint8)  # raises MemoryError, which OpenCV does not report for WebP and progressive JPEGs
    raise DecodeError(f"not a complete image: {format_amount(len(data), 'byte')} beginning with {data[:8]!r}")
  return image


def is_out_of_memory(error: BaseException | None) -> bool:
  """Returns whether an error reports a lack of memory, which is not a defect of the image."""
  # OpenCV's `error.code` is an attribute of the class, so it can belong to an error of another thread.
  return isinstance(error, MemoryError) or (isinstance(error, cv2.error) and "(-4:Insufficient memory)" in str(error))

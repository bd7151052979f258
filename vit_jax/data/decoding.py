"""Decoding of image files to RGB pixels on the host, with limits for single images and for memory of all threads."""

import collections
import contextlib
import ctypes
import os
import queue
import sys
import threading
from collections.abc import Iterator

import cv2
import numpy as np

from vit_jax.data.formats import headers, jpeg, opencv
from vit_jax.data.formats.headers import DecodeError, Header
from vit_jax.data.formats.opencv import is_out_of_memory as is_out_of_memory

# Smallest number of columns of a box that is decoded alone. In a box of four columns or fewer, libjpeg does not
# smooth the colours.
_NARROW = 16

if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
  # By default, glibc returns the memory of an image to the kernel, which must clear pages for the next image. If
  # glibc keeps the memory, blending two images of 224 pixels in float32 takes 0.3 ms instead of 1.3 ms. The options
  # are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD. Larger blocks are still returned.
  for option, size in ((-1, 2**26), (-3, 2**25)):
    ctypes.CDLL(None).mallopt(option, size)


@contextlib.contextmanager
def _silence_stderr() -> Iterator[None]:
  """Discards output to the standard error during imports. Must be used before threads are started."""
  if sys.stderr is None:  # the parent process closed it
    yield
    return
  sys.stderr.flush()
  kept = os.dup(2)
  with open(os.devnull, "wb") as nowhere:
    os.dup2(nowhere.fileno(), 2)
  try:
    yield
  finally:
    os.dup2(kept, 2)
    os.close(kept)


os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # otherwise it prints a message for each damaged image
with _silence_stderr():  # it warns about three CUDA libraries that are not needed here
  try:
    from nvidia import nvimgcodec
  except ImportError:  # not available for macOS
    nvimgcodec = None

_local = threading.local()  # contains the decoder of each thread


def count_usable_cores() -> int:
  """Returns the number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_cores = queue.SimpleQueue()
for _number in range(count_usable_cores()):
  _cores.put(_number)


@contextlib.contextmanager
def use_core() -> Iterator[None]:
  """Limits the threads that are inside this context to the number of cores of the process. Other threads wait."""
  number = _cores.get()
  try:
    yield
  finally:
    _cores.put(number)


class MemoryLimit:
  """A number of bytes that threads share.

  A thread that requests more than is available waits. Requests are granted in order. Requests for more than the total
  are reduced to the total, so that every request can be granted. A thread holds only one share at a time. Deadlocks are
  therefore impossible.

  Args:
    total: number of bytes of all shares together.
  """

  def __init__(self, total: int) -> None:
    self.total = self._left = total
    self._changed = threading.Condition()
    self._waiting = collections.deque()

  @contextlib.contextmanager
  def share(self, size: int) -> Iterator[None]:
    """Holds a share of the memory within the context.

    Args:
      size: number of bytes. Larger requests than the total are reduced to the total.
    """
    size, me = min(size, self.total), object()
    with self._changed:
      self._waiting.append(me)
      self._changed.wait_for(lambda: self._waiting[0] is me and size <= self._left)
      self._waiting.popleft()
      self._left -= size
      self._changed.notify_all()  # the next request may fit too
    try:
      yield
    finally:
      with self._changed:
        self._left += size
        self._changed.notify_all()


# Memory for all images that the process decodes at the same time. The largest image that is allowed by default needs
# half of it, and as a progressive CMYK JPEG nearly all of it. A photograph of 500 x 400 pixels needs 1.2 MB.
MEMORY = MemoryLimit(2**31)


def check_image(data: bytes, max_pixels: int, max_aspect: float, exif: bool = False, lenient: bool = False) -> Header:
  """Reads the header of an image file, and checks it against the limits.

  Args:
    data: content of the file.
    max_pixels: largest number of pixels.
    max_aspect: largest ratio of the longer to the shorter side.
    exif: whether the image is rotated according to its EXIF orientation. If False, pixels are returned as stored.
    lenient: whether a JPEG is decoded although libjpeg warns about its coded data. Missing rows are always an error.

  Returns:
    The header, which `decode` and `LazyImage` require.

  Raises:
    DecodeError: if the file is damaged, exceeds a limit, or has an unsupported format.
  """
  header = headers.read(data)
  if header.orientation != 1:  # includes memory for the rotated copy
    memory = header.memory + 3 * header.height * header.width
    header = header._replace(memory=memory) if exif else header._replace(orientation=1)
  if lenient and isinstance(header.layout, jpeg.JpegFile):
    header = header._replace(layout=header.layout._replace(lenient=True))
  height, width, *_ = header
  if height * width > max_pixels:
    raise DecodeError(f"{width:,} x {height:,} pixels. Allowed: up to data.max_pixels={max_pixels:,} in all")
  if max(height, width) > max_aspect * min(height, width):
    raise DecodeError(
      f"{width:,} x {height:,} pixels. Allowed: one side up to data.max_aspect={max_aspect:g} times the other"
    )
  return header


def decode(data: bytes, header: Header) -> np.ndarray:
  """Decodes a checked image file. Decodes only the first frame of an animation and the first page of a TIFF.

  Args:
    data: content of the file.
    header: result of `check_image` for the file.

  Returns:
    uint8 (H, W, 3) RGB, rotated according to the header. Gray, palettes and CMYK are converted, and alpha is ignored.

  Raises:
    DecodeError: if the file is truncated or contradicts its header. For a JPEG, also if libjpeg reports an error or a
      warning about the coded data, unless the header was read with `lenient`.
    MemoryError: if the process has too little memory.

  Example:
    import cv2
    import numpy as np
    from vit_jax.data import decoding

    data = cv2.imencode(".png", np.zeros((20, 30, 3), np.uint8))[1].tobytes()
    header = decoding.check_image(data, max_pixels=10**6, max_aspect=100)
    decoding.decode(data, header).shape  # (20, 30, 3)
  """
  image = header.layout.decode(data) if header.layout else opencv.decode(data, header.memory)
  if image.shape[:2] != (header.height, header.width):
    raise DecodeError(
      f"its header specifies {header.height} rows of {header.width} pixels, but the image has {image.shape[:2]}"
    )
  return rotate_upright(image, header.orientation)


# {orientation: (mirrored horizontally, mirrored vertically)}, after the transposition if there is one (EXIF 2.32,
# section 4.6.4 A).
_MIRRORED = {2: (True, False), 3: (True, True), 4: (False, True), 6: (True, False), 7: (True, True), 8: (False, True)}
_FLIPS = {(True, False): 1, (True, True): -1, (False, True): 0}  # flip codes of OpenCV


def _is_transposed(orientation: int) -> bool:
  """Returns whether the first row of the file is displayed as a column."""
  return orientation >= 5


def rotate_upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
  """Returns pixels (H, W, 3) as they must be displayed.

  Args:
    pixels: pixels as the file stores them.
    orientation: EXIF orientation, 1 to 8.
  """
  if _is_transposed(orientation):
    pixels = cv2.transpose(pixels)
  return cv2.flip(pixels, _FLIPS[_MIRRORED[orientation]]) if orientation in _MIRRORED else pixels


class LazyImage:
  """A checked image file as an array (H, W, 3). Boxes of a JPEG can be decoded separately.

  `picture[top:bottom, left:right]` and `np.asarray(picture)` return arrays and raise the errors of `decode`. A box has
  the same pixels as the result of `decode`.

  The first box of a file is cut out of the whole image, because damage outside of the box must be detected too. If the
  whole file was decoded before, only the rows and columns of the box are decoded.

  Args:
    data: content of the file.
    header: result of `check_image` for the file.
    is_whole: whether the whole file was decoded without an error before.

  Attributes:
    shape: (H, W, 3) of the displayed image.
    is_whole: whether the whole file was decoded without an error.
  """

  def __init__(self, data: bytes, header: Header, is_whole: bool = False) -> None:
    self._data, self._header, self.is_whole = data, header, is_whole
    height, width = header.height, header.width
    self.shape = (width, height, 3) if _is_transposed(header.orientation) else (height, width, 3)

  def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
    pixels = decode(self._data, self._header)
    self.is_whole = True
    return pixels

  def __getitem__(self, box: tuple[slice, slice]) -> np.ndarray:
    top, bottom, left, right = self._stored(box)
    if self.is_whole and nvimgcodec and self._header.regions and right - left >= _NARROW:
      pixels = _decode_box(self._data, nvimgcodec.Region(top, left, bottom, right))
      if pixels is not None:
        return rotate_upright(pixels, self._header.orientation)
    return np.asarray(self)[box]

  def _stored(self, box: tuple[slice, slice]) -> tuple[int, int, int, int]:
    """Returns (top, bottom, left, right) of a box in the image as the file stores it."""
    (top, bottom, _), (left, right, _) = (part.indices(side) for part, side in zip(box, self.shape, strict=False))
    height, width, _ = self.shape
    across, down = _MIRRORED.get(self._header.orientation, (False, False))
    if across:
      left, right = width - right, width - left
    if down:
      top, bottom = height - bottom, height - top
    return (left, right, top, bottom) if _is_transposed(self._header.orientation) else (top, bottom, left, right)


AnyImage = np.ndarray | LazyImage  # pixels, or a file that is decoded in part


def _decode_box(data: bytes, region: object) -> np.ndarray | None:
  """Decodes a region of a JPEG file with libjpeg's methods to skip lines and columns. Returns None if that fails."""
  if not hasattr(_local, "decoder"):
    host = nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY
    backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
    _local.decoder = nvimgcodec.Decoder(device_id=host, max_num_cpu_threads=1, backends=backends)
    _local.options = nvimgcodec.DecodeParams(
      color_spec=nvimgcodec.ColorSpec.SRGB, allow_any_depth=False, apply_exif_orientation=False
    )
  try:
    stream = nvimgcodec.CodeStream(data).get_sub_code_stream(region=region)
  except RuntimeError:  # the parser of nvImageCodec is stricter than libjpeg
    return None
  pixels = _local.decoder.decode(stream, params=_local.options)
  return None if pixels is None else np.asarray(pixels)

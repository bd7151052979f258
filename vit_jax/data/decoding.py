"""From an image file to RGB pixels, on the host, with bounds for one image and for all that threads decode at once."""

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

from vit_jax.data import headers, jpeg, opencv
from vit_jax.data.headers import DecodeError, Header
from vit_jax.data.opencv import no_memory as no_memory

# Columns of a box that is decoded alone: in one of four or fewer libjpeg does not smooth the colours.
_NARROW = 16

if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
  # glibc gives the pages of an image back to the kernel, which has to clear others for the next one: blending two
  # images of 224 pixels in float32 took 1.3 ms, and takes 0.3. M_TRIM_THRESHOLD, M_MMAP_THRESHOLD: what is larger goes
  # back as before.
  for option, size in ((-1, 2**26), (-3, 2**25)):
    ctypes.CDLL(None).mallopt(option, size)


@contextlib.contextmanager
def _silent():
  """Nothing that is written to the standard error gets there; for imports, before there are threads."""
  if sys.stderr is None:  # closed by who started this
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


os.environ.setdefault("PYNVIMGCODEC_VERBOSITY", "0")  # or it writes what is said below of each image that is torn
with _silent():  # it complains of three libraries of CUDA, which nothing here needs
  try:
    from nvidia import nvimgcodec
  except ImportError:  # there is none for macOS
    nvimgcodec = None

_local = threading.local()  # of each thread: its decoder


def cores() -> int:
  """Those that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_cores = queue.SimpleQueue()
for _number in range(cores()):
  _cores.put(_number)


@contextlib.contextmanager
def core() -> Iterator[None]:
  """Waits until fewer threads than the process has cores are inside."""
  number = _cores.get()
  try:
    yield
  finally:
    _cores.put(number)


class Memory:
  """Bytes that threads share. Who wants more than is left waits, in the order of asking; all of it is the most.

  A thread holds one share at a time, so that each is given back in the end and nobody waits for ever.
  """

  def __init__(self, total: int):
    self.total = self._left = total
    self._changed = threading.Condition()
    self._waiting = collections.deque()

  @contextlib.contextmanager
  def share(self, size: int) -> Iterator[None]:
    """Holds so many bytes, or all there are."""
    size, me = min(size, self.total), object()
    with self._changed:
      self._waiting.append(me)
      self._changed.wait_for(lambda: self._waiting[0] is me and size <= self._left)
      self._waiting.popleft()
      self._left -= size
      self._changed.notify_all()  # the next may fit too
    try:
      yield
    finally:
      with self._changed:
        self._left += size
        self._changed.notify_all()


# Of all images that the process decodes at once. The largest that is allowed by default takes half of it, as a
# progressive CMYK JPEG nearly all; a photograph of 500 x 400 pixels takes 1.2 MB.
MEMORY = Memory(2**31)


def check(data: bytes, max_pixels: int, max_aspect: float, exif: bool = False, lenient: bool = False) -> Header:
  """Reads the header of an image file, and checks it against the limits.

  Args:
    data: the bytes of the file.
    max_pixels: limit of the number of pixels.
    max_aspect: limit of the longer side over the shorter one.
    exif: an image that its camera calls turned or mirrored is decoded upright, and not as it is stored.
    lenient: decode a JPEG although libjpeg warns about its coded data, unless rows are missing.

  Returns:
    The header, which `decode` and `Picture` take.

  Raises:
    DecodeError: the file is damaged, exceeds a limit, or has a form that is not supported.
  """
  header = headers.read(data)
  if header.orientation != 1:  # its copy that is turned has room too
    memory = header.memory + 3 * header.height * header.width
    header = header._replace(memory=memory) if exif else header._replace(orientation=1)
  if lenient and isinstance(header.layout, jpeg.Photo):
    header = header._replace(layout=header.layout._replace(lenient=True))
  height, width, *_ = header
  if height * width > max_pixels:
    raise DecodeError(f"{width:,} x {height:,} pixels; allowed: up to data.max_pixels={max_pixels:,} in all")
  if max(height, width) > max_aspect * min(height, width):
    raise DecodeError(
      f"{width:,} x {height:,} pixels; allowed: one side up to data.max_aspect={max_aspect:g} times the other"
    )
  return header


def decode(data: bytes, header: Header) -> np.ndarray:
  """Decodes a checked file, of an animation the first frame, of a TIFF the first page.

  Args:
    data: the bytes of the file.
    header: of the same file.

  Returns:
    uint8 [H, W, 3] RGB, turned as the header states. Gray, palettes and CMYK are converted, and alpha is ignored.

  Raises:
    DecodeError: the file is truncated, or its contents contradict each other. For a JPEG, libjpeg reports an error or
      a warning about the coded data, unless the header was read with `lenient`.
    MemoryError: the process has too little memory.
  """
  image = header.layout.decode(data) if header.layout else opencv.decode(data, header.memory)
  if image.shape[:2] != (header.height, header.width):
    raise DecodeError(
      f"its header promises {header.height} rows of {header.width} pixels, and it has {image.shape[:2]}"
    )
  return upright(image, header.orientation)


# By orientation, how a transposed or stored image is mirrored: across, and down (EXIF 2.32, section 4.6.4 A).
_MIRRORED = {2: (True, False), 3: (True, True), 4: (False, True), 6: (True, False), 7: (True, True), 8: (False, True)}
_FLIPS = {(True, False): 1, (True, True): -1, (False, True): 0}  # OpenCV's numbers


def _is_transposed(orientation):
  """Whether the first row of the file is shown as a column."""
  return orientation >= 5


def upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
  """Pixels [H, W, 3] that a file with this orientation shows, of those that it stores."""
  if _is_transposed(orientation):
    pixels = cv2.transpose(pixels)
  return cv2.flip(pixels, _FLIPS[_MIRRORED[orientation]]) if orientation in _MIRRORED else pixels


class Picture:
  """A checked image file as an array [H, W, 3]. A box of a JPEG can be decoded alone.

  `picture[top:bottom, left:right]` returns an array, as does `np.asarray(picture)`. Both raise what `decode` raises. A
  box has the pixels that `decode` gives it.

  The first box of a file is cut out of the whole image, because damage outside of the box must be found too. If the
  whole file was decoded before, only the rows and columns of the box are decoded.

  Attributes:
    shape: (H, W, 3) as the image is shown.
    is_whole: the whole file was decoded without an error.
  """

  def __init__(self, data: bytes, header: Header, is_whole: bool = False):
    """Describes a file without decoding it.

    Args:
      data: the bytes of the file.
      header: of the same file.
      is_whole: the whole file was decoded without an error before.
    """
    self._data, self._header, self.is_whole = data, header, is_whole
    height, width = header.height, header.width
    self.shape = (width, height, 3) if _is_transposed(header.orientation) else (height, width, 3)

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    pixels = decode(self._data, self._header)
    self.is_whole = True
    return pixels

  def __getitem__(self, box: tuple[slice, slice]) -> np.ndarray:
    top, bottom, left, right = self._stored(box)
    if self.is_whole and nvimgcodec and self._header.regions and right - left >= _NARROW:
      pixels = _box(self._data, nvimgcodec.Region(top, left, bottom, right))
      if pixels is not None:
        return upright(pixels, self._header.orientation)
    return np.asarray(self)[box]

  def _stored(self, box):
    """(top, bottom, left, right) of a box in the image as the file stores it."""
    (top, bottom, _), (left, right, _) = (part.indices(side) for part, side in zip(box, self.shape, strict=False))
    height, width, _ = self.shape
    across, down = _MIRRORED.get(self._header.orientation, (False, False))
    if across:
      left, right = width - right, width - left
    if down:
      top, bottom = height - bottom, height - top
    return (left, right, top, bottom) if _is_transposed(self._header.orientation) else (top, bottom, left, right)


def _box(data, region) -> np.ndarray | None:
  """A region of a JPEG file, decoded by libjpeg's own means to skip lines and columns; None where that fails."""
  if not hasattr(_local, "decoder"):
    host = nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY
    backends = [nvimgcodec.Backend(nvimgcodec.BackendKind.CPU_ONLY)]
    _local.decoder = nvimgcodec.Decoder(device_id=host, max_num_cpu_threads=1, backends=backends)
    _local.options = nvimgcodec.DecodeParams(
      color_spec=nvimgcodec.ColorSpec.SRGB, allow_any_depth=False, apply_exif_orientation=False
    )
  try:
    stream = nvimgcodec.CodeStream(data).get_sub_code_stream(region=region)
  except RuntimeError:  # its parser is stricter than libjpeg
    return None
  pixels = _local.decoder.decode(stream, params=_local.options)
  return None if pixels is None else np.asarray(pixels)

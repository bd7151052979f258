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

from vit_jax.data import headers
from vit_jax.data.headers import DecodeError, Header

# Eight bytes of ones, which libjpeg looks at behind the last block; no code of a block is all ones.
_BEHIND = b"\xff\x00" * 8

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


def check(data: bytes, max_pixels: int, max_aspect: float) -> Header:
  """The header of an image file that may be decoded; DecodeError, with the reason, for any other."""
  header = headers.read(data)
  height, width, *_ = header
  if height * width > max_pixels:
    raise DecodeError(f"{width:,} x {height:,} pixels; allowed: up to data.max_pixels={max_pixels:,} in all")
  if max(height, width) > max_aspect * min(height, width):
    raise DecodeError(
      f"{width:,} x {height:,} pixels; allowed: one side up to data.max_aspect={max_aspect:g} times the other"
    )
  return header


def decode(data: bytes, header: Header) -> np.ndarray:
  """RGB image [H, W, 3], uint8, of a checked file; gray, palette and CMYK are converted, alpha and EXIF ignored.

  Raises DecodeError with the reason. A truncated file is an error, also one that has its end marker: of JPEGs with one
  scan all that lack more than the last three blocks of 64 samples; of progressive ones all whose scans do not bring
  each coefficient to its last bit, but not those that lack a part of the last scan.
  """
  if header.end is not None:
    # libjpeg paints gray what is missing before an end marker. Where there is none, it waits for more, and OpenCV
    # returns no image.
    data = _without_end(data, header)
  try:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION)
  except cv2.error as error:
    raise DecodeError(f"OpenCV cannot decode it: {error.err}") from error
  if image is None:
    raise DecodeError(f"not a complete image; {len(data)} bytes that begin with {data[:8]!r}")
  if image.shape[:2] != (header.height, header.width):
    raise DecodeError(
      f"its header promises {header.height} rows of {header.width} pixels, and it has {image.shape[:2]}"
    )
  return image


def _without_end(data, header) -> bytes:
  """A JPEG file without its end marker, and what stands behind it."""
  return b"".join((memoryview(data)[: header.end], _BEHIND))


class Picture:
  """A checked image file as an array [H, W, 3]; of a JPEG only the box that is asked for is decoded, where that works.

  `picture[top:bottom, left:right]` gives an array, as does `np.asarray(picture)`. Both raise DecodeError. A box has the
  pixels that `decode` gives it, but a truncated file is an error only if its box lacks more than the last three blocks.
  """

  def __init__(self, data: bytes, header: Header):
    self._data, self._header = data, header
    self.shape = (header.height, header.width, 3)

  def __array__(self, dtype=None, copy=None) -> np.ndarray:
    return decode(self._data, self._header)

  def __getitem__(self, box: tuple[slice, slice]) -> np.ndarray:
    (top, bottom, _), (left, right, _) = (part.indices(side) for part, side in zip(box, self.shape, strict=False))
    # Up to the last row a decoder wants the end marker, which it shall not have.
    if nvimgcodec and self._header.regions and bottom < self.shape[0] and right - left >= _NARROW:
      pixels = _box(_without_end(self._data, self._header), nvimgcodec.Region(top, left, bottom, right))
      if pixels is not None:
        return pixels
    return decode(self._data, self._header)[box]


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

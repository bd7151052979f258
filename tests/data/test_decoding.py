"""Tests of decoding against Pillow, of damaged files, and of the memory limit that threads share."""

import io
import pathlib
import resource
import sys
import threading

import cv2
import numpy as np
import pytest
from PIL import Image

from tests import hostile_images
from tests.image_files import boxes, decoded, encode, picture
from vit_jax.data import decoding


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "P", "RGBA", "1"])
def test_every_mode_of_png_has_the_rgb_of_pillow(mode):
  image = Image.fromarray(picture()).convert(mode)
  np.testing.assert_array_equal(decoded(encode(image)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_every_mode_of_jpeg_has_the_rgb_of_pillow(mode, progressive):
  data = encode(Image.fromarray(picture()).convert(mode), "JPEG", quality=95, progressive=progressive)
  expected = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
  assert np.abs(decoded(data).astype(int) - expected).max() <= 2


def test_sixteen_bits_are_reduced_to_eight():
  image = picture()
  data = cv2.imencode(".png", image[..., ::-1].astype(np.uint16) * 257)[1].tobytes()
  np.testing.assert_array_equal(decoded(data), image)
  gray = encode(Image.fromarray(image[..., 0].astype(np.uint16) * 257))
  np.testing.assert_array_equal(decoded(gray), np.repeat(image[..., :1], 3, axis=-1))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("left", [30, 230], ids="{} MB, where pixels take 192 and decoding 384".format)
def test_lack_of_memory_is_not_reported_as_a_damaged_file(left):
  data = encode(np.full((8000, 8000, 3), 99, np.uint8), "JPEG", progressive=True)
  header, before = decoding.check_image(data, 2**30, 100), resource.getrlimit(resource.RLIMIT_AS)
  used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
  resource.setrlimit(resource.RLIMIT_AS, (used + left * 10**6, before[1]))
  try:
    with pytest.raises(MemoryError):
      decoding.decode(data, header)
  finally:
    resource.setrlimit(resource.RLIMIT_AS, before)
  assert decoding.decode(data, header)[0, 0].tolist() == [99, 99, 99]


JPEGS = {
  "smoothed colours": {"subsampling": 2},
  "colours of two pixels": {"subsampling": 1},
  "colours of four pixels": {"subsampling": "4:1:1"},
  "colours of each pixel": {"subsampling": 0},
  "restart markers": {"restart_marker_blocks": 3},
  "not converted": {"keep_rgb": True},
  "progressive": {"progressive": True},
  "gray": {"mode": "L"},
  "of a printer": {"mode": "CMYK"},
  "of few rows": {"height": 20},
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "cut out"])
@pytest.mark.parametrize("kind", JPEGS)
def test_box_of_a_jpeg_has_the_pixels_of_the_whole(kind, alone, monkeypatch):
  options = {"height": 201, "mode": "RGB"} | JPEGS[kind]
  image = Image.fromarray(picture(options.pop("height"), 333)).convert(options.pop("mode"))
  data = encode(image, "JPEG", quality=95, **options)
  if not alone:
    monkeypatch.setattr(decoding, "nvimgcodec", None)  # as on a system without nvimgcodec
  whole = decoded(data)
  for box, pixels in boxes(data):
    np.testing.assert_array_equal(pixels, whole[box])


def test_each_box_of_a_truncated_jpeg_is_an_error():
  data = encode(picture(400, 300), "JPEG", quality=95)
  for share in (0.2, 0.5, 0.9):
    for end in (b"", b"\xff\xd9"):
      assert all(pixels is None for _, pixels in boxes(data[: int(share * len(data))] + end, 10))


def test_boxes_of_a_damaged_jpeg_match_the_whole_or_are_all_errors():
  data, draw, counts = encode(picture(200, 300), "JPEG", quality=95), np.random.default_rng(0), [0, 0]
  for _ in range(40):
    torn = bytearray(data)
    torn[draw.integers(700, len(data) - 100)] ^= 1 << draw.integers(8)
    try:
      whole = decoded(bytes(torn))
    except decoding.DecodeError:
      whole = None
    counts[whole is None] += 1
    for box, pixels in boxes(bytes(torn), 5):
      np.testing.assert_array_equal(pixels, whole if whole is None else whole[box])
  assert min(counts) > 2


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9, 0.99])
def test_truncated_file_is_an_error(form, share):
  data = encode(picture(), form)
  with pytest.raises(decoding.DecodeError, match="not a complete image"):
    decoded(data[: int(share * len(data))])


@pytest.mark.parametrize("lost", [1, 2, 3, 10, 100])
def test_jpeg_without_its_last_bytes_is_an_error(lost):
  for progressive in (False, True):
    with pytest.raises(decoding.DecodeError):
      decoded(encode(picture(), "JPEG", progressive=progressive)[:-lost])


def test_jpeg_with_a_second_half_of_zeros_is_an_error():
  data = encode(picture(480, 640), "JPEG")
  with pytest.raises(decoding.DecodeError):
    decoded(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))


@pytest.mark.parametrize("data", [b"", b"a text file, whatever its name", bytes(1000)])
def test_data_that_are_not_an_image_are_an_error(data):
  with pytest.raises(decoding.DecodeError):
    decoded(data)


def test_png_with_a_wrong_checksum_is_an_error():
  data = bytearray(encode(picture()))
  data[data.index(b"IDAT") + 40] ^= 0xFF
  with pytest.raises(decoding.DecodeError):
    decoded(bytes(data))


def test_bytes_after_a_complete_image_are_ignored():
  for form in ("JPEG", "PNG"):
    data = encode(picture(), form)
    np.testing.assert_array_equal(decoded(data + bytes(50)), decoded(data))


@pytest.mark.parametrize("name", [name for name in hostile_images.REFUSED if "cut" in name or "end" in name])
def test_incomplete_jpeg_or_png_is_an_error_even_with_an_end_marker(name):
  with pytest.raises(decoding.DecodeError, match=r"^not a complete image"):
    decoded(hostile_images.REFUSED[name]())


@pytest.mark.parametrize("name", [name for name in hostile_images.WHOLE if "10,000" not in name])
def test_unusual_complete_image_has_the_pixels_of_pillow(name):
  data = hostile_images.WHOLE[name]()
  found, expected = decoded(data), hostile_images.pillow(data).astype(int)
  assert found.shape == expected.shape
  assert np.abs(found - expected).max() <= (8 if "webp" in name else 2)


def test_jpegs_of_all_sizes_and_qualities_are_accepted():
  draw = np.random.default_rng(0)
  for i in range(60):
    height, width, quality = (int(draw.integers(*ends)) for ends in ((1, 90), (1, 90), (5, 100)))
    options = {"quality": quality, "optimize": bool(i % 2), "restart_marker_blocks": i % 5}
    data = encode(picture(height, width, i), "JPEG", **options, **({"subsampling": i % 3} if i % 4 else {}))
    direct = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    np.testing.assert_array_equal(decoded(data), direct)


# Limits.


def test_image_with_too_many_pixels_is_refused_with_both_numbers():
  data = encode(picture(60, 80))
  with pytest.raises(decoding.DecodeError, match=r"80 x 60 pixels. Allowed: up to data.max_pixels=4,799 in all"):
    decoding.check_image(data, 4799, 100)
  assert decoding.check_image(data, 4800, 100)[:2] == (60, 80)


def test_image_that_is_too_long_is_refused_with_both_numbers():
  data = encode(picture(60, 600))
  with pytest.raises(decoding.DecodeError, match=r"600 x 60 pixels\. .* up to data.max_aspect=9.9 times the other"):
    decoding.check_image(data, 10**6, 9.9)
  assert decoding.check_image(data, 10**6, 10)[:2] == (60, 600)


def test_threads_never_exceed_the_memory_limit_and_all_finish():
  memory, held, most, lock = decoding.MemoryLimit(100), [], [], threading.Lock()

  def hold(size):
    for _ in range(20):
      with memory.share(size):
        with lock:
          held.append(min(size, 100))
          most.append(sum(held))
        with lock:
          held.remove(min(size, 100))

  threads = [threading.Thread(target=hold, args=(size,)) for size in (1, 30, 50, 99, 100, 10**9)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(20)
    assert not thread.is_alive()
  assert max(most) == 100


def test_memory_is_released_after_an_error():
  memory = decoding.MemoryLimit(10)
  for _ in range(3):
    with pytest.raises(ZeroDivisionError), memory.share(10):
      _ = 1 // 0
  with memory.share(10):
    pass


def test_large_image_is_not_overtaken_by_small_ones():
  memory, order = decoding.MemoryLimit(10), []

  def hold(size):
    with memory.share(size):
      order.append(size)

  with memory.share(5):
    large = threading.Thread(target=hold, args=(10,))
    large.start()
    while not memory._waiting:
      pass
    small = threading.Thread(target=hold, args=(1,))
    small.start()
    small.join(0.05)
    assert order == []
  for thread in (large, small):
    thread.join(20)
  assert order == [10, 1]


# Colours of JPEGs.

ADOBE = b"\xff\xee\0\x0eAdobe\0d\0\0\0\0"


def renamed(data, names):
  """Returns a JPEG with renamed components."""
  changed, frame, scan = bytearray(data), data.index(b"\xff\xc0"), data.index(b"\xff\xda")
  for number, name in enumerate(names):
    changed[frame + 10 + 3 * number] = changed[scan + 5 + 2 * number] = name
  return bytes(changed)


def marked(transform, jfif):
  """Returns a JPEG of three channels with Adobe's marker, and optionally with that of JFIF."""
  data = encode(picture(150, 203), "JPEG", quality=90)
  return data[: 20 if jfif else 2] + ADOBE + bytes([transform]) + data[20:]


COLOURED = {
  "RGB that Pillow writes": lambda: encode(picture(150, 203), "JPEG", keep_rgb=True),
  **{f"Adobe {i}, JFIF {j}": lambda i=i, j=j: marked(i, j) for i in (0, 1) for j in (False, True)},
  "components R, G, B": lambda: renamed(encode(picture(150, 203), "JPEG")[:2] + encode(picture(150, 203), "JPEG")[20:],
                                        b"RGB"),
  "components 0, 1, 2": lambda: renamed(encode(picture(150, 203), "JPEG"), b"\0\1\2"),
}  # fmt: skip


@pytest.mark.parametrize("name", COLOURED)
def test_jpegs_of_all_colour_markers_have_the_pixels_of_pillow(name):
  data = COLOURED[name]()
  whole = decoded(data)
  np.testing.assert_array_equal(whole, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
  for box, pixels in boxes(data, 20):
    np.testing.assert_array_equal(pixels, whole[box])

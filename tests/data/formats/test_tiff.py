"""Tests of the first page of TIFF files, against Pillow, OpenCV and NumPy. Incomplete files are errors."""

import io
import struct

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.image_files import decoded, encode, picture
from tests.made_images import scaled, tiff_file
from tests.made_images import tiff as made
from vit_jax.data.formats import exif, headers
from vit_jax.data.formats.headers import DecodeError

PACKED = {
  "none": None, "packbits": "packbits", "lzw": "tiff_lzw", "deflate": "tiff_adobe_deflate", "jpeg": "jpeg"
}  # fmt: skip


def stored(image, compression=None, **options):
  return encode(image, "TIFF", compression=compression, **options)


def pillows(data):
  return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
@pytest.mark.parametrize("packed", ["none", "lzw", "deflate"])
def test_every_mode_of_tiff_has_the_rgb_of_pillow(mode, packed):
  data = stored(Image.fromarray(picture()).convert(mode), PACKED[packed])
  np.testing.assert_array_equal(decoded(data), pillows(data))


@pytest.mark.parametrize("packed", PACKED)
def test_every_compression_has_the_pixels_of_opencv(packed):
  data = stored(picture(), PACKED[packed])
  expected = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
  assert np.abs(decoded(data).astype(int) - expected).max() <= 2


@pytest.mark.parametrize("kind", ["group3", "group4", "tiff_ccitt"])
def test_fax_compressed_pages_are_decoded(kind):
  image = Image.fromarray(picture(2000, 300)).convert("1")
  np.testing.assert_array_equal(decoded(stored(image, kind)), np.asarray(image.convert("RGB")))
  blank = Image.new("1", (5000, 3000), 1)
  assert decoded(stored(blank, kind)).min() == 255


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_sixteen_bits_are_reduced_to_eight(channels):
  image = picture()
  wide = np.dstack([image[..., ::-1], image[..., :1]])[..., :channels].astype(np.uint16) * 257
  data = cv2.imencode(".tif", wide)[1].tobytes()
  expected = np.repeat(image[..., 2:], 3, -1) if channels == 1 else image
  np.testing.assert_array_equal(decoded(data), expected)


def by_hand(width, height, pixels, order="<", **tags):
  """Returns a TIFF of one strip after its directory, with tags by number as (type, value)."""
  known = {256: (4, width), 257: (4, height), 258: (3, 8), 259: (3, 1), 262: (3, 1), 277: (3, 1), 278: (4, height),
           279: (4, len(pixels))}  # fmt: skip
  known |= {int(tag[1:]): value for tag, value in tags.items()}
  known[273] = 4, 8 + 2 + 12 * (len(known) + 1) + 4
  if 322 in known and 324 not in known:
    known |= {324: known.pop(273), 325: known.pop(279)}
  known = {tag: value for tag, value in known.items() if value is not None}
  entries = b"".join(
    struct.pack(f"{order}HHI", tag, kind, 1) + struct.pack(f"{order}{' BxHI'[kind]}", value).ljust(4, b"\0")
    if kind != 1 else struct.pack(f"{order}HHIB3x", tag, kind, 1, value)
    for tag, (kind, value) in sorted(known.items())
  )  # fmt: skip
  start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
  return start + struct.pack(f"{order}H", len(known)) + entries + bytes(4) + pixels


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
def test_gray_supports_white_as_zero_and_both_byte_orders(order, inverted, bits):
  gray = picture()[..., 0]
  pixels = (gray.astype(f"{order}u2") * 257).tobytes() if bits == 16 else gray.tobytes()
  data = by_hand(80, 60, pixels, order, t258=(3, bits), t262=(3, 0 if inverted else 1))
  if (order, inverted, bits) == (">", True, 16):  # Pillow has no mode for this form
    with pytest.raises(DecodeError, match="unknown pixel mode"):
      decoded(data)
    return
  np.testing.assert_array_equal(decoded(data)[..., 1], 255 - gray if inverted else gray)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", [1, 3, 4])
@pytest.mark.parametrize("packed", [False, True])
def test_orientation_may_have_any_integer_type(order, kind, packed):
  gray = picture()[..., 0]
  data = by_hand(80, 60, gray.tobytes(), order, t274=(kind, 8))
  np.testing.assert_array_equal(decoded(data)[..., 0], gray)
  np.testing.assert_array_equal(decoded(data, exif=True)[..., 0], np.rot90(gray))


def test_first_of_several_pages_is_decoded():
  first, second = (Image.fromarray(picture(seed=seed)) for seed in range(2))
  data = encode(first, "TIFF", save_all=True, append_images=[second])
  np.testing.assert_array_equal(decoded(data), np.asarray(first))


def test_tiles_are_read_and_a_tile_beyond_the_file_is_an_error():
  gray = picture()[..., 0]
  tile = np.zeros((64, 96), np.uint8)
  tile[:60, :80] = gray
  data = by_hand(80, 60, tile.tobytes(), t322=(3, 96), t323=(3, 64))
  np.testing.assert_array_equal(decoded(data)[..., 2], gray)
  with pytest.raises(DecodeError, match="pixels that end at"):
    decoded(data[:-1])
  with pytest.raises(DecodeError, match="without some of its strips or tiles; it needs 4"):
    decoded(by_hand(80, 60, tile.tobytes(), t322=(3, 48), t323=(3, 32)))


@pytest.mark.parametrize("packed", PACKED)
@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9, 0.99])
def test_truncated_file_is_an_error(packed, share):
  data = stored(picture(300, 400), PACKED[packed])
  with pytest.raises(DecodeError, match="not a complete image"):
    decoded(data[: int(share * len(data))])


@pytest.mark.parametrize("packed", ["lzw", "deflate", "jpeg"])
def test_strip_of_zeros_is_an_error(packed):
  data = bytearray(stored(picture(300, 400), PACKED[packed]))
  page = exif.read_directory(bytes(data))
  last = page.values(bytes(data), 273)[-1]
  size = page.values(bytes(data), 279)[-1]
  data[last : last + size] = bytes(int(size))
  with pytest.raises(DecodeError, match="not a complete image"):
    decoded(bytes(data))


@pytest.mark.parametrize(("height", "width"), [(65_500, 65_500), (301, 400), (300, 401)])
def test_jpeg_larger_than_its_strip_is_an_error(height, width):
  data = bytearray(stored(picture(300, 400), "jpeg"))
  frame = bytes(data).rindex(b"\xff\xc0")
  struct.pack_into(">HH", data, frame + 5, height, width)
  with pytest.raises(DecodeError, match=rf"has an image of {width:,} x {height:,} pixels, not 400 x"):
    decoded(bytes(data))


GRAY = bytes(4800)


@pytest.mark.parametrize(
  ("data", "message"),
  [
    (by_hand(80, 60, GRAY)[:-1], "pixels that end at"),
    (by_hand(800, 600, GRAY), "need 480,000 bytes or more"),
    (by_hand(800_000, 600_000, GRAY, t259=(3, 5)), "need 117,187,500 bytes or more"),
    (by_hand(80, 60, GRAY, t256=None), "without the directory tag 256"),
    (by_hand(80, 60, GRAY, t279=None), "without the directory tag 279"),
    (by_hand(80, 60, GRAY, t279=(4, 0)), "it needs 1$"),
    (by_hand(80, 60, GRAY, t278=(4, 1)), "it needs 60$"),
    (by_hand(80, 60, GRAY, t278=(4, 0)), "tiles of 80 x 0"),
    (by_hand(0, 60, GRAY), "0 x 60"),
    (by_hand(80, 2**31, GRAY, t278=(4, 1)), "more than 131,072 strips"),
    (by_hand(80, 60, GRAY, t258=(3, 32)), "32 bits"),
    (by_hand(80, 60, GRAY, t339=(3, 3)), "floating-point numbers"),
    (by_hand(80, 60, GRAY, t262=(3, 8)), "colours of kind 8"),
    (by_hand(80, 60, GRAY, t256=(4, 80), t324=(4, 9), t322=(4, 60_000), t323=(4, 60_000)), "60,000 x 60,000"),
    (encode(picture(), "TIFF", big_tiff=True), "BigTIFF"),
    (b"II*\0" + b"\xff" * 40, "without the directory tag"),
    (b"MM\0*\0\0\0\x08\xff\xff" + bytes(12 * 9), "without the directory tag"),
  ],
  ids=range(17),
)
def test_invalid_page_is_refused_before_it_is_decoded(data, message):
  with pytest.raises(DecodeError, match=message):
    headers.read(data)


def test_files_with_random_changes_are_refused_or_decoded():
  draw = np.random.default_rng(0)
  for packed in PACKED:
    data = stored(picture(20, 30), PACKED[packed])
    table = exif.read_directory(data).entries[256].at
    for i in range(150):
      changed = bytearray(data)
      for _ in range(2):
        at = draw.integers(len(data)) if i % 2 else (table + draw.integers(-10, 120)) % len(data)
        changed[at] = draw.integers(256)
      try:
        header = headers.read(bytes(changed))
        if header.height * header.width < 10**6:
          assert header.layout.decode(bytes(changed)).shape == (header.height, header.width, 3)
      except DecodeError:
        pass


# Files built from the specification, compared with arithmetic.


def rgb(samples, bits, colours, palette):
  """Computes the RGB pixels of stored samples as TIFF 6.0 defines them."""
  if colours == 3:
    return palette[samples[..., 0]] >> 8
  eight = scaled(samples, bits) if bits < 8 else samples >> (bits - 8)
  if colours == 5:
    return ((255 - eight[..., :3]) * (255 - eight[..., 3:4]) * 2 + 255) // 510  # rounded
  if colours == 2:
    return eight[..., :3]
  return np.repeat(255 - eight[..., :1] if colours == 0 else eight[..., :1], 3, -1)


FORMS = [
  *((bits, colours, 1, ()) for colours in (0, 1) for bits in (1, 2, 4, 8, 16)),
  (12, 1, 1, ()), (1, 3, 1, ()), (2, 3, 1, ()), (4, 3, 1, ()), (8, 3, 1, ()), (8, 2, 3, ()), (16, 2, 3, ()),
  (8, 2, 4, (0,)), (8, 2, 4, (2,)), (16, 2, 4, (2,)), (8, 1, 2, (2,)), (8, 3, 2, (0,)), (8, 3, 2, (2,)),
  (8, 2, 5, (0, 0)), (8, 5, 4, ()), (16, 5, 4, ()), (8, 5, 5, (0,)),
]  # fmt: skip
LAYOUTS = {"one strip": {}, "strips": {"rows": 5}, "tiles": {"tile": (16, 16)}}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("bits", "colours", "channels", "extra"), FORMS)
def test_every_sample_format_has_its_defined_pixels_or_is_refused(bits, colours, channels, extra, layout):
  draw, exact = np.random.default_rng(bits), 0
  samples = draw.integers(0, 1 << bits, (19, 29, channels))
  palette = draw.integers(256, 65536, (1 << bits, 3)) if colours == 3 else None
  tags = {338: (3, list(extra))} if extra else {}
  tags |= {320: (3, palette.T.ravel().tolist())} if colours == 3 else {}
  expected = rgb(samples, bits, colours, palette)
  for order in "<>":
    for planes in (False, True) if channels > 1 else (False,):
      for options in ({}, {"deflated": True}, {"deflated": True, "differences": True}, {"reversed_bits": True}):
        if options.get("differences") and bits not in (8, 16):
          continue
        data = made(samples, bits, colours, order, planes=planes, tags=tags, **options, **LAYOUTS[layout])
        try:
          found = decoded(data)
        except DecodeError as error:
          assert "that Pillow cannot read: unknown pixel mode" in str(error)
          continue
        np.testing.assert_array_equal(found, expected)
        exact += 1
  assert exact >= 1


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
def test_premultiplied_colours_are_divided_by_alpha(bits, deflated):
  draw = np.random.default_rng(0)
  alpha = draw.integers(0, 256, (20, 30, 1))
  colours = draw.integers(0, 256, (20, 30, 3)) * alpha // 255
  samples = np.concatenate([colours, alpha], -1) * (257 if bits == 16 else 1)
  expected = np.where(alpha > 0, np.minimum(255, colours * 255 // np.maximum(alpha, 1)), colours)
  for planes in (False, True):
    data = made(samples, bits, 2, planes=planes, deflated=deflated, tags={338: (3, [1])})
    np.testing.assert_array_equal(decoded(data), expected)


@pytest.mark.parametrize("deflated", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(("channels", "extra"), [(4, []), (5, []), (5, [0])])
def test_separate_planes_without_a_matching_extra_samples_tag_are_refused(bits, channels, extra, deflated):
  samples = np.broadcast_to(np.array([100, 50, 20, 128, 77][:channels]) * (257 if bits == 16 else 1), (6, 8, channels))
  tags = {338: (3, extra)} if extra else {}
  with pytest.raises(
    DecodeError, match=f"ExtraSamples tag that describes {len(extra)} of the {channels - 3} beyond RGB"
  ):
    decoded(made(samples, bits, 2, planes=True, deflated=deflated, tags=tags))
  if channels == 4:
    together = decoded(made(samples, bits, 2, deflated=deflated, tags=tags))
    np.testing.assert_array_equal(together, np.broadcast_to([100, 50, 20], (6, 8, 3)))


GRAY_SAMPLES = np.zeros((6, 8, 1), np.int64)
CMYK_SAMPLES = np.zeros((6, 8, 4), np.int64)


@pytest.mark.parametrize(
  ("data", "reason"),
  [
    (made(CMYK_SAMPLES, 8, 5, tags={332: (3, [2])}), "inks other than cyan"),
    (made(GRAY_SAMPLES, 8, 1, tags={317: (3, [2])}), "predictor 2 and compression 1"),
    (made(GRAY_SAMPLES, 8, 1, deflated=True, tags={317: (3, [3])}), "predictor 3 and compression 8"),
    (made(GRAY_SAMPLES, 8, 3, tags={320: (3, [7] * 768)}), "palette of 8-bit instead of 16-bit colours"),
    (made(CMYK_SAMPLES[..., :3], 8, 2, tags={258: (3, [5, 6, 5])}), "samples of 5 and 6 bits"),
    *(
      (made(GRAY_SAMPLES, 8, 1, tags={259: (3, [number])}), f"compression {number}")
      for number in (6, 32771, 32809, 34676, 34712, 34887, 50001, 9)
    ),
    (made(GRAY_SAMPLES, 8, 8), "colours of kind 8"),
    (made(GRAY_SAMPLES, 8, 1, tags={339: (3, [2])}), "floating-point numbers"),
  ],
  ids=range(15),
)
def test_files_that_would_have_wrong_colours_are_refused_with_the_reason(data, reason):
  with pytest.raises(DecodeError, match=reason):
    headers.read(data)


def test_directory_with_a_repeated_tag_is_refused():
  data = tiff_file({256: (4, [8]), 257: (4, [6]), 258: (3, [8]), 262: (3, [1]), 278: (4, [6])}, [bytes(48)], (273, 279))
  assert headers.read(data)[:2] == (6, 8)
  with pytest.raises(DecodeError, match="repeated tag"):
    headers.read(data.replace(struct.pack("<HHI", 278, 4, 1), struct.pack("<HHI", 262, 4, 1)))


def test_strip_shorter_than_its_rows_is_an_error():
  samples = np.random.default_rng(0).integers(0, 256, (20, 30, 1))
  data = made(samples, 8, 1, rows=5)
  short = data.replace(struct.pack("<4I", *[150] * 4), struct.pack("<4I", 150, 140, 150, 150))
  assert short != data
  with pytest.raises(DecodeError, match="not a complete image"):
    decoded(short)

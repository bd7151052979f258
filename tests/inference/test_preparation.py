"""Tests that one image is prepared like in evaluations."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.image_files import encode, picture
from vit_jax import schema
from vit_jax.data import augment, loader, sources, stream
from vit_jax.data.bound_data import EvalData
from vit_jax.data.images import ImageError, Images
from vit_jax.inference.preparation import Preparation
from vit_jax.schema import Choice


def bound(**args):
  made = schema.bind(Choice("images", args), (stream.eval_examples, loader.batches, augment.normalise))
  return EvalData(made.name, made.args)


@pytest.mark.parametrize(
  "crop", [{"name": "resize"}, {"name": "centre", "resize": 48}, {"name": "torchvision", "ratio": 0.9}]
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_pixels_of_a_file_match_the_evaluation_stream(crop, form):
  data, config = encode(picture(90, 120), form), bound(image_size=32, test_crop=crop)
  source = sources.Source("one", "all", ("a",), 1, lambda i: (data, 0), str)
  examples = config.eval_examples(source)
  image, _, mask = examples.example(Images(source, "raise", 10**6, 100.0).read_prepared, 0)
  assert mask == 1
  np.testing.assert_array_equal(Preparation.from_data(config).prepare_file(data), image)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photograph_is_rotated_upright(orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  data, preparation = encode(picture(90, 120), "PNG", exif=exif), Preparation.from_data(bound(image_size=32, exif=True))
  upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))))
  np.testing.assert_array_equal(preparation.prepare_file(data), preparation.prepare_pixels(upright))


def test_pixels_are_prepared_like_the_file_that_contains_them():
  preparation, image = Preparation.from_data(bound(image_size=24)), picture(50, 40)
  np.testing.assert_array_equal(preparation.prepare_pixels(image), preparation.prepare_file(encode(image)))
  gray = np.stack([image[..., 0]] * 3, axis=-1)
  np.testing.assert_array_equal(preparation.prepare_pixels(image[..., 0]), preparation.prepare_pixels(gray))


@pytest.mark.parametrize(
  "image",
  [
    np.zeros((4, 4, 3)),
    np.zeros((4, 4, 4), np.uint8),
    np.zeros((3, 4, 4, 3), np.uint8),
    np.zeros((0, 4, 3), np.uint8),
    np.zeros((200, 200, 3), np.uint8),
  ],
  ids=lambda image: f"{image.shape} {image.dtype}",
)
def test_unsupported_arrays_are_refused(image):
  with pytest.raises(ImageError, match="an image of shape"):
    Preparation.from_data(bound(image_size=8, max_pixels=10_000)).prepare_pixels(image)


def test_pixel_limit_of_the_run_applies():
  with pytest.raises(ValueError, match="max_pixels=100"):
    Preparation.from_data(bound(image_size=8, max_pixels=100)).prepare_file(encode(picture()))

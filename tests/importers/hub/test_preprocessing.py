"""Tests of preprocessing metadata: each test crop survives a round trip through hub formats and vit_jax's JSON."""

import json

import numpy as np
import pytest
from PIL import Image

from vit_jax import schema
from vit_jax.data import crops
from vit_jax.importers.hub import preprocessing, preprocessor
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.schema import Choice, ConfigError

NORMALISED = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6)}
CROPS = [
  ("resize", {"interpolation": "bilinear"}),
  ("torchvision", {"ratio": 0.9, "interpolation": "bicubic"}),
  ("torchvision", {"ratio": 0.95, "interpolation": "lanczos"}),
  ("centre", {"resize": 256, "squash": True, "interpolation": "bicubic"}),
  ("resize", {"interpolation": "area"}),
]


def make_metadata(name="resize", **arguments):
  crop = schema.bind(Choice(name, arguments), (crops.TEST_CROPS[name],))
  return ImageMetadata(NORMALISED, crop, 224, ("a", "ü", "=c"), "sigmoid")


def crop_image(choice, image):
  return schema.make(schema.bind(choice, (crops.TEST_CROPS[choice.name],)), crops.TEST_CROPS, 224)(image, None)


IMAGE = np.random.default_rng(0).integers(0, 256, (301, 400, 3), dtype=np.uint8)


@pytest.mark.parametrize(("name", "arguments"), CROPS)
def test_crop_keeps_its_pixels_through_hub_formats(name, arguments):
  metadata = make_metadata(name, **arguments)
  expected = crop_image(metadata.crop, IMAGE)
  of_timm, _ = preprocessing.read_timm_crop({**preprocessing.create_timm_keys(metadata), "input_size": [3, 224, 224]})
  of_transformers = preprocessor.read(preprocessor.create_processor_config(metadata)).image_metadata.crop
  np.testing.assert_array_equal(crop_image(of_timm, IMAGE), expected)
  np.testing.assert_array_equal(crop_image(of_transformers, IMAGE), expected)


@pytest.mark.parametrize(("name", "arguments"), CROPS[:1] + CROPS[3:4])
def test_processor_config_gives_the_same_pixels_with_pillow(name, arguments):
  metadata = make_metadata(name, **arguments)
  written = preprocessor.create_processor_config(metadata)
  size = written["size"]["width"], written["size"]["height"]
  scaled = np.array(Image.fromarray(IMAGE).resize(size, Image.Resampling(written["resample"])))
  margin = (size[0] - 224) // 2
  np.testing.assert_array_equal(scaled[margin : margin + 224, margin : margin + 224], crop_image(metadata.crop, IMAGE))
  assert written["do_center_crop"] == (name == "centre")


@pytest.mark.parametrize(("name", "arguments"), CROPS)
def test_json_round_trip_is_lossless(name, arguments):
  metadata = make_metadata(name, **arguments)
  assert preprocessing.from_json(json.loads(json.dumps(preprocessing.to_json(metadata)))) == metadata


@pytest.mark.parametrize("large", range(224, 460, 7))
def test_ratio_gives_back_the_number_of_pixels(large):
  assert int(224 / preprocessing.find_ratio(224, large)) == large


def test_published_processors_are_read():
  vit = {"do_resize": True, "size": 224, "resample": 2, "feature_extractor_type": "ViTFeatureExtractor"}
  assert preprocessor.read(vit).image_metadata.crop == Choice("resize", {"interpolation": "bilinear"})
  bit = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "resample": 3}
  bit |= {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
  assert preprocessor.read(bit).image_metadata.crop == Choice(
    "torchvision", {"ratio": 0.875, "interpolation": "bicubic"}
  )


@pytest.mark.parametrize("values", [{"size": "x"}, {"size": {"height": 0}}, {"size": [1]}], ids=str)
def test_invalid_size_of_a_processor_is_an_error(values):
  with pytest.raises(ConfigError, match="size is"):
    preprocessor.read(values)


HUGE = 10**400


@pytest.mark.parametrize(
  ("read", "values", "parts"),
  [
    (preprocessor.read, {"resample": [3], "size": 224}, ["resample is [3]", "3 (bicubic)"]),
    (preprocessor.read, {"resample": {}, "size": 224}, ["resample is {}", "2 (bilinear)"]),
    (preprocessing.from_json, {"test_crop": {"name": [1]}}, ["test_crop is {'name': [1]}", "torchvision"]),
    (preprocessing.from_json, {"probabilities": ["softmax"]}, ["probabilities is ['softmax']", "sigmoid"]),
    (preprocessing.from_json, {"mean": [HUGE] * 3}, ["mean is [1000", "a number for each channel"]),
    (preprocessing.read_timm_crop, {"crop_pct": HUGE}, ["crop_pct is 1000", "from 0.1 to 1"]),
  ],
  ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_values_of_another_type_are_errors_with_allowed_values(read, values, parts):
  with pytest.raises(ConfigError) as error:
    read(values)
  assert all(part in str(error.value) for part in parts), error.value


@pytest.mark.parametrize("kind", ["Bit", "DeiT"])
def test_images_are_scaled_to_at_most_ten_times_a_crop(kind):
  values = {"size": {"shortest_edge": 65535}, "do_center_crop": True, "crop_size": 1, "image_processor_type": kind}
  with pytest.raises(ConfigError, match=r"size is {'shortest_edge': 65535}, with a crop_size of 1.*ten times"):
    preprocessor.read(values)
  crop = preprocessor.read({**values, "size": 2240, "crop_size": 224}).image_metadata.crop
  crop_image(crop, IMAGE)


@pytest.mark.parametrize(("small", "large"), [(1, 65535), (1, 2001), (3, 60000), (17, 65535)])
def test_very_small_ratio_has_more_digits(small, large):
  assert int(small / preprocessing.find_ratio(small, large)) == large


def test_crops_that_a_hub_cannot_express_are_noted():
  assert preprocessing.describe_crop_limits(make_metadata("resize", interpolation="bilinear"), True) == []
  assert "Pillow's box" in preprocessing.describe_crop_limits(make_metadata(), True)[0]
  assert (
    "smooths" in preprocessing.describe_crop_limits(make_metadata("resize", interpolation="bicubic_aliased"), False)[0]
  )
  torchvision = make_metadata("torchvision", ratio=0.9, interpolation="bicubic")
  assert (
    "moved by a pixel" in preprocessing.describe_crop_limits(torchvision, True)[0]
    and preprocessing.describe_crop_limits(torchvision, False) == []
  )


def test_crop_scales_with_the_image_size():
  assert preprocessing.scale_crop(make_metadata("centre", resize=256).crop, 224, 448).args["resize"] == 512

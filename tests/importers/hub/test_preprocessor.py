"""Tests that images match the processors of Transformers, and that unsupported processor files are errors."""

import importlib

import numpy as np
import pytest

from tests import peers
from vit_jax import importers, schema
from vit_jax.data import crops
from vit_jax.importers.hub import preprocessor
from vit_jax.schema import Choice, ConfigError

IMAGE = np.random.default_rng(0).integers(0, 256, (320, 480, 3), dtype=np.uint8)
MODULES = {"ViT": "vit", "DeiT": "deit", "Beit": "beit", "Siglip": "siglip", "Bit": "bit", "CLIP": "clip"}
OTHER = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
SQUARE = {"height": 224, "width": 224}


def processor(config):
  """Returns the Pillow processor that Transformers loads from a config."""
  peers.transformers()
  name = config["image_processor_type"].removesuffix("ImageProcessor")
  module = importlib.import_module(f"transformers.models.{MODULES[name]}.image_processing_pil_{MODULES[name]}")
  return getattr(module, f"{name}ImageProcessorPil").from_dict(config)


def ours(config, side=224):
  """Returns the image that vit_jax computes for the same config."""
  metadata = preprocessor.read(config).image_metadata
  crop = schema.bind(metadata.crop, (crops.TEST_CROPS[metadata.crop.name],))
  cut = schema.make(crop, crops.TEST_CROPS, side)(IMAGE, None)
  mean, std = (np.array(metadata.normalised[key]) for key in ("mean", "std"))
  return (cut / 255 - mean) / std


VIT = {"image_processor_type": "ViTImageProcessor", "size": SQUARE, **OTHER}
EXPRESSIBLE = {
  "as written": VIT,
  "defaults of ViT": {"image_processor_type": "ViTImageProcessor"},
  "defaults of DeiT": {"image_processor_type": "DeiTImageProcessor"},
  "defaults of Beit": {"image_processor_type": "BeitImageProcessor"},
  "defaults of Siglip": {"image_processor_type": "SiglipImageProcessor"},
  "defaults of Bit": {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}},
  "defaults of CLIP": {"image_processor_type": "CLIPImageProcessor", "size": 256, **OTHER},
  "null steps": VIT | {"do_rescale": None, "do_normalize": None, "do_center_crop": None, "pad_size": None},
  "no crop of DeiT": {"image_processor_type": "DeiTImageProcessor", "do_center_crop": None, "size": SQUARE},
  "do_normalize=false": VIT | {"do_normalize": False},
  "rescale_factor": VIT | {"rescale_factor": 1 / 127.5},
  "rescale_factor and do_normalize=false": VIT | {"rescale_factor": 1 / 127.5, "do_normalize": False},
  "rescale_factor and defaults": {"image_processor_type": "BitImageProcessor", "rescale_factor": 1 / 100},
  "do_rescale=false": VIT | {"do_rescale": False, "image_mean": [123.7, 116.3, 103.5], "image_std": [58.4, 57.1, 57.4]},
  "do_rescale=false, mean of 0..1": VIT | {"do_rescale": False},
  "do_rescale=false wins over rescale_factor": VIT
  | {"do_rescale": False, "rescale_factor": 0.5, "do_normalize": False},
  "one number": VIT | {"image_mean": 0.25, "image_std": 0.5},
  "do_convert_rgb, do_reduce_labels": VIT | {"do_convert_rgb": True, "do_reduce_labels": True},
  "no crop": {"image_processor_type": "BitImageProcessor", "do_center_crop": False, "size": SQUARE},
  "squashed and cut": VIT | {"do_center_crop": True, "size": {"height": 256, "width": 256}, "crop_size": SQUARE},
  "a number": VIT | {"size": 224, "resample": 1},
  **{f"resample={code}": VIT | {"resample": code} for code in (1, 2, 3)},
}


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_images_match_transformers(name):
  config = EXPRESSIBLE[name]
  expected = processor(config)(IMAGE)["pixel_values"][0]
  np.testing.assert_allclose(ours(config), np.moveaxis(np.asarray(expected), 0, -1), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("kind", preprocessor.DEFAULTS)
def test_defaults_match_the_classes_of_transformers(kind):
  transformers = peers.transformers()
  made = getattr(transformers, f"{kind}ImageProcessor")()
  for key, value in preprocessor.DEFAULTS[kind].items():
    theirs = getattr(made, key)
    if isinstance(value, dict):
      theirs = {word: side for word, side in dict(theirs).items() if side is not None}
    assert theirs == pytest.approx(value) if isinstance(value, list) else theirs == value, key


REFUSED = [
  ({"do_flip_channel_order": True}, "do_flip_channel_order is true, but this step is not supported"),
  ({"do_convert_grayscale": True}, "do_convert_grayscale is true"),
  ({"do_normalize": "no"}, "do_normalize is 'no'. Allowed: true, false or null"),
  ({"do_rescale": 0}, "do_rescale is 0. Allowed: true, false or null"),
  ({"do_pad": True, "pad_size": 5}, "pad_size is 5, but this step is not supported"),
  ({"crop_pct": 0.9}, "crop_pct is 0.9, but this step is not supported"),
  ({"rescale_offset": True}, "rescale_offset is True"),
  *(
    ({"resample": code}, f"resample is {code!r}. Allowed: one of 1 (lanczos)")
    for code in (99, 0, 5, -1, True, 3.0, "3")
  ),
  *(({"rescale_factor": factor}, "rescale_factor is") for factor in (0, -1, "1", True, 10**400)),
  ({"size": {"longest_edge": 224}}, "size is {'longest_edge': 224}. Allowed: shortest_edge, or height and width"),
  ({"size": {"shortest_edge": 224, "longest_edge": 300}}, "size is {'shortest_edge': 224"),
  ({"size": {"height": 224}}, "size is {'height': 224}"),
  ({"size": {"shortest_edge": 224}}, "without do_center_crop, so images would not be squares"),
  ({"size": 200, "do_center_crop": True, "crop_size": 224}, "from crop_size up to ten times"),
  ({"do_center_crop": True}, "crop_size is None. Allowed: squares"),
  ({"do_center_crop": True, "crop_size": {"height": 224, "width": 200}}, "Allowed: squares"),
  ({"do_center_crop": True, "crop_size": {"shortest_edge": 224}}, "crop_size is {'shortest_edge': 224}"),
  ({"do_resize": False, "do_center_crop": True}, "do_center_crop is true and do_resize is false"),
  ({"image_processor_type": [1]}, "image_processor_type is [1]"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[str(changes)[:60] for changes, _ in REFUSED])
def test_unsupported_steps_are_errors_of_one_line(changes, message):
  with pytest.raises(ConfigError) as error:
    preprocessor.read(VIT | changes)
  assert message in str(error.value) and "\n" not in str(error.value)


def test_rescale_factor_without_mean_and_std_is_an_error():
  with pytest.raises(ConfigError, match=r"images are multiplied by 0\.01, without image_mean and image_std. Add both"):
    preprocessor.read({"rescale_factor": 0.01})
  assert preprocessor.read({"do_normalize": False}).image_metadata.normalised == {"mean": (0,) * 3, "std": (1,) * 3}


def test_unread_keys_are_listed():
  found = preprocessor.read(VIT | {"do_resize": False, "gamma": 2, "zoom": None, "device": "cpu"})
  assert found.image_metadata.crop == Choice("resize", {"interpolation": "bilinear"}) and found.side is None
  assert found.notes[0] == "preprocessor_config.json has keys that are not read: gamma"
  assert "do_resize=false" in found.notes[1] and len(found.notes) == 2
  assert preprocessor.read({}) == (importers.ImageMetadata(), None, [])

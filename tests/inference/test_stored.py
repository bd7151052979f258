"""Tests of loaded weights with their preprocessing and classes, from a run, a publisher or the defaults."""

import pytest

from tests import small_weights
from tests.small_weights import CLASSES, described
from vit_jax import checkpoints, convert
from vit_jax.inference import stored
from vit_jax.schema import ConfigError

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def test_preprocessing_and_classes_of_transformers_are_used(tmp_path):
  labels = {str(i): name for i, name in enumerate(CLASSES)}
  (tmp_path / "preprocessor_config.json").write_text('{"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}')
  use = stored.load(small_weights.file(tmp_path, id2label=labels))
  assert use.classes == CLASSES and use.loss == "softmax" and use.notes == []
  args = use.data.args
  assert (args["mean"], args["std"], args["image_size"]) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 32)
  assert args["test_crop"].name == "resize"


def test_preprocessing_of_timm_is_used_with_its_crop(tmp_path):
  described = {"crop_pct": 0.9, "interpolation": "bilinear", "label_names": list(CLASSES)} | IMAGENET
  use = stored.load(str(small_weights.file(tmp_path, pretrained_cfg=described)))
  assert use.classes == CLASSES
  crop = use.data.args["test_crop"]
  assert (crop.name, crop.args["ratio"], crop.args["interpolation"]) == ("torchvision", 0.9, "bilinear")
  assert {key: use.data.args[key] for key in IMAGENET} == IMAGENET


def test_missing_preprocessing_uses_the_default_with_a_note(tmp_path):
  use = stored.load(small_weights.file(tmp_path))
  assert use.classes == tuple("0123456") and use.data.args["mean"] == (0.5, 0.5, 0.5)
  assert "mean=(0.5,0.5,0.5)" in use.notes[0] and "docs/models/index.md#images" in use.notes[0]


def test_generated_label_names_of_transformers_are_ignored(tmp_path):
  use = stored.load(small_weights.file(tmp_path, id2label={str(i): f"LABEL_{i}" for i in range(7)}))
  assert use.classes == tuple("0123456")


def test_wrong_number_of_class_names_is_ignored_with_a_note(tmp_path):
  use = stored.load(small_weights.file(tmp_path, id2label={"0": "cat", "1": "dog"}))
  assert use.classes == tuple("0123456")
  assert "there are 2 names for 7 classes; numbers are used instead" in use.notes


@pytest.mark.parametrize(
  "metadata",
  [{"id2label": {"1": "a"}}, {"id2label": 3}, {"label_names": "abc"}, {"label_names": [1]}, {"crop_pct": 3}],
  ids=str,
)
def test_invalid_metadata_is_named(tmp_path, metadata):
  with pytest.raises(ConfigError, match=rf"config\.json: {next(iter(metadata))} is "):
    stored.load(small_weights.file(tmp_path, **metadata))


def test_other_image_size_resamples_the_position_table(tmp_path):
  use = stored.load(small_weights.file(tmp_path), image_size=48)
  assert use.description.image_size == use.data.args["image_size"] == 48
  assert use.arrays["position/table"].shape[-2] in (36, 37)


def test_model_of_rectangular_images_requires_an_image_size(tmp_path):
  path = small_weights.file(tmp_path, described(size=(32, 48)), image_size=[32, 48])
  with pytest.raises(ConfigError, match="--image-size=N"):
    stored.load(path)
  assert stored.load(path, image_size=40).description.image_size == 40


def test_averaged_weights_of_a_file_without_them_are_an_error(tmp_path):
  with pytest.raises(ConfigError, match="the file has no averaged weights"):
    stored.load(small_weights.file(tmp_path), ema=True)


@pytest.mark.heavy
def test_workdir_without_a_run_notes_its_defaults(tmp_path):
  description = described()
  checkpoints.write_weights(tmp_path / "w", small_weights.arrays(description), {"model": description.to_json()})
  use = stored.load(tmp_path / "w")
  assert use.classes == tuple("0123456") and "does not contain a run" in use.notes[0]
  assert stored.load_run(tmp_path / "w") is None


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["w", "a.npz", "a.safetensors", "hub/model.safetensors"])
def test_conversion_keeps_preprocessing_and_classes(tmp_path, target):
  (tmp_path / "in").mkdir()
  (tmp_path / "hub").mkdir()
  output = {"crop_pct": 0.9, "interpolation": "bicubic", "label_names": list(CLASSES)} | IMAGENET
  source = small_weights.file(tmp_path / "in", pretrained_cfg=output, problem_type="multi_label_classification")
  convert.convert(source, tmp_path / target, None, {})
  before, after = stored.load(source), stored.load(tmp_path / target)
  assert after.classes == CLASSES and after.data == before.data and after.loss == before.loss == "sigmoid"
  assert after.notes == [] and stored.read_normalisation(tmp_path / target) == IMAGENET

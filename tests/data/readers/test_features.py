"""Tests that classes named by a prepared dataset are not imported, in any place of its description."""

import json
import shutil
import sys

import pytest

from tests.data.readers.test_tfds import data_dir, opened  # noqa: F401  a fixture
from vit_jax import schema

LEGACY = {
  "type": "tensorflow_datasets.core.features.features_dict.FeaturesDict",
  "content": {
    "image": {
      "type": "tensorflow_datasets.core.features.image_feature.Image",
      "content": {"shape": [None, None, 3], "dtype": "uint8", "encoding_format": "png"},
    },
    "label": {"type": "evil_of_the_data.Thing", "content": {"num_classes": 2}},
  },
}


def named_at(about, place):
  """Returns a description with a hostile class at a feature, in today's form or in that of older datasets."""
  if place == "the form of older datasets":
    return LEGACY
  target = about if place == "the whole" else about["featuresDict"]["features"]["label"]
  target["pythonClassName"] = "evil_of_the_data.Thing"
  return about


@pytest.mark.parametrize("place", ["the whole", "one feature", "the form of older datasets"])
def test_module_named_by_the_data_is_not_imported(data_dir, tmp_path, monkeypatch, place):  # noqa: F811
  folder = tmp_path / "shapes" / "1.0.0"
  shutil.copytree(data_dir / "shapes" / "1.0.0", folder)
  about = named_at(json.loads((folder / "features.json").read_text()), place)
  (folder / "features.json").write_text(json.dumps(about))
  (folder / "evil_of_the_data.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
  monkeypatch.setattr(sys, "path", [str(folder), *sys.path])  # as `python -m` does with the working directory
  with pytest.raises(
    schema.ConfigError, match=r"names the class 'evil_of_the_data\.Thing', which is not part of .*--import"
  ):
    opened("tfds", "train", path=str(tmp_path), builder="shapes")
  assert not (tmp_path / "ran").exists()


def test_class_imported_by_the_user_is_accepted(data_dir, tmp_path):  # noqa: F811
  import tensorflow_datasets as tfds

  class Label(tfds.features.ClassLabel):
    """A class that the user defines."""

  folder = tmp_path / "shapes" / "1.0.0"
  shutil.copytree(data_dir / "shapes" / "1.0.0", folder)
  about = json.loads((folder / "features.json").read_text())
  about["featuresDict"]["features"]["label"]["pythonClassName"] = f"{Label.__module__}.Label"
  (folder / "features.json").write_text(json.dumps(about))
  assert opened("tfds", "train", path=str(tmp_path), builder="shapes").classes == ("round", "square")

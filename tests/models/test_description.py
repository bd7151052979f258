"""Tests of model descriptions: as one line, as flags and as JSON."""

import pytest

from vit_jax import models
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError


def test_description_survives_a_json_round_trip():
  description = Description(Choice("ViT-S/8", {"depth": 2, "stages": (1, 2)}), (64, 128), 3)
  again = Description.from_json(description.to_json())
  assert again.bind() == description.bind() and again.image_size == (64, 128)


@pytest.mark.parametrize(
  "values",
  [None, {}, {"model": {"name": "ViT-S/8"}, "image_size": -1, "classes": 1, "channels": 3}, {"model": 3}, [1, 2]],
)
def test_invalid_json_values_are_an_error(values):
  with pytest.raises(ConfigError, match="does not describe a model"):
    models.Description.from_json(values)


@pytest.mark.parametrize(
  ("change", "problem"),
  [
    ({"model": []}, r"model is \[\]. Allowed: a name with arguments"),
    ({"model": {"name": [1]}}, r"model is \{'name': \[1\]\}"),
    ({"image_size": []}, r"image_size is \[\]. Allowed: one or two"),
    ({"image_size": {"side": 3}}, r"image_size is \{'side': 3\}. Allowed: one or two whole numbers from 1 to 65535"),
    ({"classes": -1}, "classes is -1. Allowed: a whole number from 0 to"),
    ({"classes": 2.5}, "classes is 2.5. Allowed"),
    ({"channels": 0}, "channels is 0. Allowed: a whole number from 1 to 65535"),
  ],
)
def test_error_names_the_invalid_value(change, problem):
  values = {"model": {"name": "ViT-S/8"}, "image_size": 32, "classes": 3, "channels": 3}
  with pytest.raises(ConfigError, match=f"does not describe a model: .*{problem}"):
    Description.from_json(values | change)
  for key in values:
    with pytest.raises(ConfigError, match=f"does not describe a model: {key} is missing"):
      Description.from_json({name: value for name, value in values.items() if name != key})


def test_arguments_of_older_versions_are_read():
  values = {"model": {"name": "ViT-S/8", "head": "gap"}, "image_size": 32, "classes": 3, "channels": 3}
  assert Description.from_json(values) == Description(Choice("ViT-S/8", {"pool": "gap"}), 32, 3)


def test_line_and_flags_list_arguments_that_change_the_model():
  description = Description(Choice("ViT-S/8", {"depth": 2, "stages": (1, 2), "dropout": 0.1, "gelu": "tanh"}), 32, 0)
  assert str(description) == "ViT-S/8, stages=(1, 2), depth=2 (32 px, no classes)"
  assert description.flags() == "--config.model.name=ViT-S/8 --config.model.stages='(1,2)' --config.model.depth=2"


def test_line_and_flags_show_the_arguments_of_an_inner_choice():
  description = Description(Choice("ViT-S/8", {"rotary": Choice("mixed", {"temperature": 3.0})}), 32, 0)
  assert str(description) == "ViT-S/8, position.rotary=mixed (temperature=3.0) (32 px, no classes)"
  assert description.flags().endswith(
    "--config.model.position.rotary=mixed --config.model.position.rotary.temperature=3.0"
  )


def test_unscan_removes_the_scan_argument():
  description = Description(Choice("ViT-S/8", {"scan": True, "depth": 2}), 32, 3)
  assert description.unscan() == Description(Choice("ViT-S/8", {"depth": 2}), 32, 3)


def test_equal_descriptions_have_equal_hashes():
  pair = [Description(Choice("ViT-S/8", {"depth": 2}), 32, 3) for _ in range(2)]
  assert pair[0] == pair[1] and len(set(pair)) == 1


@pytest.mark.parametrize(
  "change", [{"classes": 1e400}, {"classes": "3"}, {"channels": True}, {"image_size": "32"}, {"image_size": [1, 2, 3]}]
)
def test_sizes_of_other_types_are_an_error(change):
  values = {"model": {"name": "ViT-S/8"}, "image_size": 32, "classes": 3, "channels": 3}
  with pytest.raises(ConfigError, match="does not describe a model"):
    Description.from_json(values | change)

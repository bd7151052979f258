"""Tests that find a layout by its name and model."""

import pytest

from tests.importers.test_layout import SMALL
from vit_jax import importers
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError


def test_layout_of_another_family_is_an_error_with_allowed_names():
  with pytest.raises(ConfigError, match=r"'tim' is not known for ViT-S/16. Did you mean 'timm'"):
    importers.find_layout(Description(Choice("ViT-S/16"), 224, 10), "tim")
  with pytest.raises(ConfigError, match=r"Allowed: compact"):
    importers.find_layout(Description(Choice("cct_2_3x2_32"), 32, 10), "timm")


def test_layout_that_cannot_store_a_model_is_an_error_with_allowed_names():
  model = Description(Choice("ViT-S/8", SMALL | {"mlp": "swiglu_normed", "rotary": Choice("dinov3")}), 32, 3)
  with pytest.raises(ConfigError, match=r"'timm' cannot store ViT-S/8, .* Allowed: "):
    importers.find_layout(model, "timm")

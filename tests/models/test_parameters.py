"""Tests of the order of parameters between image and logits, for every family."""

import re

import numpy as np
import pytest

from tests import modules
from vit_jax import models
from vit_jax.models import parameters


def test_layers_are_counted_from_the_logits_down():
  model = modules.abstract("deit_tiny_distilled_patch16_224", depth=3, registers=2)
  above = model.count_layers_above()
  assert above.keys() == model.shapes().keys()
  for path, layers in above.items():
    first, *rest = path.split("/")
    expected = {"blocks": 3 - int(rest[0])} if first == "blocks" else {}
    expected |= dict.fromkeys(("embedding", "position", "cls", "distillation", "registers"), 4)
    assert layers == expected.get(first, 0), path


def test_scanned_stack_has_a_number_for_each_layer():
  one, stack = (modules.abstract("ViT-Ti/16", depth=3, scan=scan).count_layers_above() for scan in (False, True))
  for path, layers in stack.items():
    if path.startswith("blocks/"):
      assert layers.shape[0] == 3 and layers.ndim == len(modules.shapes("ViT-Ti/16", depth=3, scan=True)[path].shape)
      rest = path.removeprefix("blocks/")
      np.testing.assert_array_equal(layers.ravel(), [one[f"blocks/{i}/{rest}"] for i in range(3)])
    else:
      assert layers == one[path]


def test_parameter_missing_from_the_order_has_no_number():
  shapes = {path: np.zeros(1) for path in ("emb/kernel", "blocks/0/mlp/kernel", "head/kernel", "embedding/kernel")}
  expected = {"emb/kernel": None, "blocks/0/mlp/kernel": 1, "head/kernel": 0, "embedding/kernel": 2}
  assert parameters.count_layers_above(parameters.ORDER, shapes) == expected


@pytest.mark.parametrize("name", ["R26x1", "swin_tiny_patch4_window7_224", "efficientnet_b0"])
def test_families_with_unequal_layers_are_not_counted(name):
  assert modules.abstract(name).count_layers_above() is None


@pytest.mark.parametrize(
  "name", ["ViT-Ti/16", "cct_2_3x2_32", "R26x1", "swin_tiny_patch4_window7_224", "efficientnet_b0"]
)
def test_head_pattern_matches_parameters_absent_without_classes(name):
  whole, headless = modules.shapes(name), modules.shapes(name, classes=0)
  pattern = models.find(name).order.head
  assert {path for path in whole if re.fullmatch(pattern, path)} == whole.keys() - headless.keys()

"""Tests of published Swin Transformers: parameter counts."""

import pytest

from tests import modules
from vit_jax.models.published import swin as published

COUNTS = {  # 1000 classes
  "swin_tiny_patch4_window7_224": 28_288_354,
  "swin_small_patch4_window7_224": 49_606_258,
  "swin_base_patch4_window7_224": 87_768_224,
  "swin_large_patch4_window7_224": 196_532_476,
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_match_the_published_counts(name):
  assert modules.count(name) == COUNTS[name]


@pytest.mark.heavy
@pytest.mark.parametrize("name", published.VARIANTS)
def test_parameter_count_of_every_name_matches_the_formula(name):
  size, window, _ = published.VARIANTS[name]
  width, depths, heads = published.SIZES[size]
  expected = 4 * 4 * 3 * width + width + 2 * width
  for stage, (depth, head) in enumerate(zip(depths, heads, strict=True)):
    d = width * 2**stage
    expected += depth * (12 * d * d + 13 * d + (2 * window - 1) ** 2 * head)
    expected += stage > 0 and 2 * d * d + 4 * d  # norm and linear layer, with four times half the width as input
  assert modules.count(name) == expected + 2 * d + d * 1000 + 1000

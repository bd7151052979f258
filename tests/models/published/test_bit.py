"""Tests of published BiT models: parameter counts."""

import pytest

from tests import modules
from vit_jax.models.published import bit as published

COUNTS = {  # 1000 classes; counted with timm 1.0.31 (resnetv2_*_bit)
  "R50x1": 25_549_352,
  "R50x3": 217_319_080,
  "R101x1": 44_541_480,
  "R101x3": 387_934_888,
  "R152x2": 236_335_208,
  "R152x4": 936_533_224,
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_match_the_published_counts(name):
  assert modules.count(name) == COUNTS[name]


@pytest.mark.heavy
@pytest.mark.parametrize("name", published.SIZES)
def test_parameter_count_of_every_size_matches_the_formula(name):
  factor, stages = published.SIZES[name]
  channels = 64 * factor
  expected = 7 * 7 * 3 * channels
  for i, units in enumerate(stages):
    d = 64 * factor * 2**i
    for j in range(units):
      expected += 2 * (channels + d + d)  # norms
      expected += channels * d + 9 * d * d + d * 4 * d + (j == 0) * channels * 4 * d
      channels = 4 * d
  assert modules.count(name, 64, 7) == expected + 2 * channels + channels * 7 + 7
  assert channels == 2048 * factor

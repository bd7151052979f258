"""Tests of published MLP-Mixers: parameter counts."""

import pytest

from tests import modules
from vit_jax.models.published import mixer as published

COUNTS = {"Mixer-B/16": 59_880_472, "Mixer-B/32": 60_293_428, "Mixer-L/16": 208_196_168}  # 224 px, 1000 classes


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_match_the_published_counts(name):
  assert modules.count(name, scan=True) == COUNTS[name]


@pytest.mark.parametrize("name", published.VARIANTS)
def test_parameter_count_of_every_name_matches_the_formula(name):
  size, patch, _ = published.VARIANTS[name]
  d, depth, f, g = published.SIZES[size]
  n = (224 // patch) ** 2
  block = (n * f + f + f * n + n) + (d * g + g + g * d + d) + 2 * 2 * d
  assert modules.count(name, scan=True) == (patch * patch * 3 * d + d) + depth * block + 2 * d + (d * 1000 + 1000)

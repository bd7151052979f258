"""Tests of published compact transformers: parameter counts against the official code."""

import pytest

from tests import modules
from vit_jax.models.published import compact

COUNTS = {  # counted by instantiating the official code: learned position table, frozen sine table
  "vit_2_4_32": (214666, 206346),
  "vit_4_4_32": (413066, 404746),
  "vit_6_4_32": (3190538, 3173898),
  "vit_7_4_32": (3716874, 3700234),
  "cvt_2_4_32": (214539, 206347),
  "cvt_4_4_32": (412939, 404747),
  "cvt_6_4_32": (3190283, 3173899),
  "cvt_7_4_32": (3716619, 3700235),
  "cct_2_3x2_32": (283723, 275531),
  "cct_4_3x2_32": (482123, 473931),
  "cct_6_3x1_32": (3233803, 3168267),
  "cct_6_3x2_32": (3326923, 3310539),
  "cct_7_3x1_32": (3760139, 3694603),
  "cct_7_3x1_32_c100": (3783269, 3717733),
  "cct_7_3x2_32": (3853259, 3836875),
  "cct_7_7x2_224": (4573735, 4523559),
  "cct_14_7x2_224": (22367273, None),
  "cct_14_7x2_384": (22513193, None),
  "cct_14_7x2_384_fl": (22167463, None),
}


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts_match_the_official_code(name):
  learned, fixed = COUNTS[name]
  assert modules.count(name, scan=True) == learned
  if fixed:
    sine = f"{name.removesuffix('_c100')}_sine{'_c100' if name.endswith('_c100') else ''}"
    assert modules.count(sine, scan=True) == fixed


def test_every_variant_has_a_count():
  assert len(compact.VARIANTS) == 35  # 8 ViT-Lite, 8 CVT, 19 CCT
  assert set(COUNTS) == {name for name in compact.VARIANTS if "_sine" not in name}


def test_scanning_does_not_change_the_parameter_count():
  assert modules.count("cct_7_3x1_32") == modules.count("cct_7_3x1_32", scan=True)

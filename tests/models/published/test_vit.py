"""Tests of published Vision Transformers: parameter counts and spellings."""

import pytest

from tests import modules
from vit_jax import models
from vit_jax.models.published import vit

COUNTS = {  # 224 px, 1000 classes; asserted by vision_transformer's own tests under the names on the left
  "ViT-Ti_16": ("ViT-Ti/16", {}, 5_717_416),
  "ViT-S_16": ("ViT-S/16", {}, 22_050_664),
  "ViT-S_16-gap-norep": ("ViT-S/16", {"pool": "gap"}, 22_049_896),
  "ViT-S_32": ("ViT-S/32", {}, 22_878_952),
  "ViT-S_32-gap-norep": ("ViT-S/32", {"pool": "gap"}, 22_878_184),
  "ViT-B_8": ("ViT-B/8", {}, 86_576_872),
  "ViT-B_16": ("ViT-B/16", {}, 86_567_656),
  "ViT-B_16-gap-norep": ("ViT-B/16", {"pool": "gap"}, 86_566_120),
  "ViT-B_32": ("ViT-B/32", {}, 88_224_232),
  "ViT-B_32-gap-norep": ("ViT-B/32", {"pool": "gap"}, 88_222_696),
  "ViT-L_16": ("ViT-L/16", {}, 304_326_632),
  "ViT-L_32": ("ViT-L/32", {}, 306_535_400),
  "ViT-H_14": ("ViT-H/14", {}, 632_045_800),
  "R+ViT-Ti_16": ("R+Ti/16", {}, 6_337_704),
  "R26+ViT-S_32": ("R26+S/32", {}, 36_431_912),
  "R26+ViT-B_32": ("R26+B/32", {}, 101_383_976),
  "R50+ViT-B_16": ("R50+B/16", {}, 98_659_112),
  "R50+ViT-L_32": ("R50+L/32", {}, 328_994_856),
  "Mixer-B_16": ("Mixer-B/16", {}, 59_880_472),
  "Mixer-B_32": ("Mixer-B/32", {}, 60_293_428),
  "Mixer-L_16": ("Mixer-L/16", {}, 208_196_168),
  "testing": ("ViT-mu/16", {"width": 10, "depth": 1, "heads": 1, "hidden": 10}, 21_390),
  "testing-unpooled": ("ViT-mu/16", {"width": 10, "depth": 1, "heads": 1, "hidden": 10, "pool": "gap"}, 21_370),
  # big_vision's S/16 with a linear head, and with a representation layer.
  "S/16 sincos2d": ("ViT-S/16", {"pool": "gap", "position": "sincos2d"}, 21_974_632),
  "S/16 sincos2d rep": ("ViT-S/16", {"pool": "gap", "position": "sincos2d", "pre_logits": 384}, 22_122_472),
}


@pytest.mark.parametrize("published", COUNTS)
def test_parameter_counts_match_the_published_counts(published):
  name, arguments, count = COUNTS[published]
  assert modules.count(name, scan=True, **arguments) == count


@pytest.mark.parametrize("published", COUNTS)
def test_published_spelling_finds_the_same_model(published):
  name, arguments, _ = COUNTS[published]
  if "_" in published and "gap" not in published and not published.startswith("testing"):
    assert models.find(published) is models.find(name)
    assert arguments == {}


@pytest.mark.parametrize("size", vit.SIZES)
def test_parameter_count_of_every_size_matches_the_formula(size):
  d, depth, _, f = vit.SIZES[size]
  block = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
  expected = (14 * 14 * 3 * d + d) + d + (16 * 16 + 1) * d + depth * block + 2 * d + (d * 1000 + 1000)
  assert modules.count(f"ViT-{size}/14", scan=True) == expected

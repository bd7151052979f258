"""The choices of masks and of Gram anchoring."""

import jax
import numpy as np
import pytest

from vit_jax.schema import Choice, ConfigError, make
from vit_jax.tasks.dinov2_choices import GRAMS, MASKS


def test_gram_anchoring_is_off_by_default_and_has_the_weight_of_dinov3():
  assert make(Choice("none"), GRAMS) is None
  chosen = make(Choice("anchor", {"teacher": "earlier"}), GRAMS)
  assert (chosen.path, chosen.weight, chosen.size, chosen.negatives, chosen.across) == (
    "earlier",
    2.0,
    None,
    "keep",
    False,
  )


@pytest.mark.parametrize("name", MASKS)
def test_a_ratio_from_high_to_low_is_an_error(name):
  with pytest.raises(ConfigError, match=r"ratio: \(0\.5, 0\.1\) goes from high to low"):
    make(Choice(name, {"ratio": (0.5, 0.1)}), MASKS)


@pytest.mark.heavy
@pytest.mark.parametrize(("choice", "most"), [
  (Choice("blocks", {"ratio": (0.2, 0.4), "share": 0.25}), 0.25),
  (Choice("ratios", {"ratio": (0.2, 0.4), "shape": "random"}), 1.0),
])  # fmt: skip
def test_masks_have_the_chosen_ratios(choice, most):
  masks = np.asarray(make(choice, MASKS)(jax.random.key(0), 6, 8, (8, 8)).masks)
  counts = masks.reshape(48, 64).sum(1)
  assert counts.max() <= 0.4 * 64 and 0 < (counts > 0).mean() <= most

"""What stages that hide patches share: patches by loops, orders that are permutations of even chance."""

import jax
import numpy as np
import pytest
import scipy.stats

from vit_jax import models
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks import masking

pytestmark = pytest.mark.heavy

TINY = {"depth": 1, "width": 16, "heads": 2, "hidden": 16}


def model(name, size=(16, 24), **arguments):
  return models.make_functional(models.Description(Choice(name, TINY | arguments), size, 0))


def test_patches_are_those_of_loops_whole_or_cut():
  images = np.random.default_rng(0).random((2, 16, 24, 3), np.float32)
  got = np.asarray(masking.cut_patches(images, 8))
  for i, y, x in np.ndindex(2, 2, 3):
    np.testing.assert_array_equal(got[i, 3 * y + x], images[i, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8])
  np.testing.assert_array_equal(masking.cut_patches(got.reshape(2, 6, -1), 8), got)


def test_orders_are_permutations_in_which_each_patch_comes_first_equally_often():
  orders = np.asarray(masking.draw_orders(jax.random.key(0), 6_000, 6))
  assert (np.sort(orders, axis=1) == np.arange(6)).all()
  for column in orders.T:
    assert scipy.stats.chisquare(np.bincount(column, minlength=6)).pvalue > 1e-5
  again = masking.draw_orders(jax.random.key(0), 6_000, 6)
  np.testing.assert_array_equal(orders, again)


def test_masks_and_augmentation_draw_from_different_keys():
  key = jax.random.key(0)
  assert not np.array_equal(*map(jax.random.key_data, (key, masking.derive_mask_key(key))))


def test_one_order_serves_all_images():
  np.testing.assert_array_equal(masking.repeat_order(np.array([2, 0, 1]), 2), [[2, 0, 1], [2, 0, 1]])


def test_the_grid_and_the_width_are_the_models():
  vit = model("ViT-Ti/8")
  assert masking.require_patch(vit) == vit.patch
  assert (masking.count_patches(vit), masking.token_width(vit)) == (6, 16)


def test_a_model_of_other_tokens_is_refused():
  with pytest.raises(ConfigError, match=r"the tokens of cct_2_3x2_32 are not patches.*ViT-B/16"):
    masking.require_patch(model("cct_2_3x2_32", 32))

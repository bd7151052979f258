"""Tests of mixing on the device, against NumPy and SciPy."""

import jax
import numpy as np
import pytest
import scipy.stats

from tests import modules
from vit_jax import schema
from vit_jax.data import mixup

pytestmark = pytest.mark.heavy

DECILES = [0.1, 0.3, 0.5, 0.7, 0.9]


beta = jax.jit(mixup.draw_beta, static_argnums=2)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.8, 1.0, 4.0])
def test_beta_draws_follow_the_distribution(alpha):
  draws = np.asarray(beta(jax.random.key(0), alpha, (100_000,)), np.float64)
  # The ends are left out, because float32 has no numbers there: a tenth of Beta(0.1, 0.1) is within 6e-8 of 1.
  points = 1 / (1 + np.exp(-np.linspace(-13, 13, 2001)))
  found = np.searchsorted(np.sort(draws), points, side="right") / len(draws)
  difference = np.abs(found - scipy.stats.beta.cdf(points, alpha, alpha)).max()
  assert difference < 1.95 / np.sqrt(len(draws))  # Kolmogorov-Smirnov bound for a probability of 1/1000
  assert abs(np.mean(draws == 0.5)) < 1e-3 and np.isfinite(draws).all()


def test_beta_draws_accept_an_alpha_for_each_draw():
  alphas = np.repeat(np.float32([0.2, 4.0]), 10_000)
  draws = np.asarray(beta(jax.random.key(0), alphas, (20_000,)))
  for part, alpha in ((draws[:10_000], 0.2), (draws[10_000:], 4.0)):
    assert abs(np.var(part) - scipy.stats.beta.var(alpha, alpha)) < 0.004


def test_beta_draws_have_no_loop():
  def loops(function):
    # On CPU, the rounds of the random generator are a loop for every function.
    traced = jax.jit(function).trace(jax.random.key(0))
    return traced.lower(lowering_platforms=("tpu",)).as_text().count("stablehlo.while")

  assert loops(lambda key: mixup.draw_beta(key, 0.2, (64,))) == 0
  assert loops(lambda key: jax.random.beta(key, 0.2, 0.2, (64,))) > 0


def count_steps(duration):
  return duration.count_steps(1, 1, 100)


def draws_of(mix, count, size=8):
  """Mixes two images of one colour each.

  Returns:
    The kept share, and a flag for images that are cut instead of blended. Each is [count, 2].
  """
  images = np.broadcast_to(np.eye(2, 3, dtype=np.float32)[:, None, None], (2, size, size, 3))
  mixed, soft = jax.jit(jax.vmap(mix, (0, None, None, None)))(
    modules.keys(count), images, np.eye(2, dtype=np.float32), 0
  )
  kept, share = np.einsum("nihwi->nihw", mixed[..., :2]), np.einsum("nii->ni", soft)
  np.testing.assert_allclose(soft.sum(-1), 1, atol=1e-6)
  np.testing.assert_allclose(mixed.sum(-1), 1, atol=1e-6)
  np.testing.assert_allclose(kept.mean((2, 3)), share, atol=1e-5)
  return share, ((kept == 0) | (kept == 1)).all((2, 3))


def test_mixup_shares_follow_the_beta_distribution():
  share, cut = draws_of(mixup.mixup(None, count_steps, alpha=0.8), 4000)
  assert scipy.stats.kstest(share[:, 0], scipy.stats.beta(0.8, 0.8).cdf).pvalue > 1e-3
  np.testing.assert_array_equal(share[:, 0], share[:, 1])
  assert cut.mean() < 0.05


def test_big_vision_mixup_uses_the_previous_row_and_the_larger_share():
  mix = jax.jit(mixup.mixup(None, count_steps, alpha=0.2, partner="rolled", share="larger"))
  share, _ = draws_of(mix, 4000)
  folded = np.random.default_rng(0).beta(0.2, 0.2, 100_000)
  np.testing.assert_allclose(
    np.quantile(share[:, 0], DECILES), np.quantile(np.maximum(folded, 1 - folded), DECILES), atol=0.03
  )
  images = modules.pictures(4).astype(np.float32)
  mixed, soft = (np.asarray(x) for x in mix(jax.random.key(3), images, np.eye(4), 0))
  kept = soft[0, 0]
  np.testing.assert_allclose(soft, kept * np.eye(4) + (1 - kept) * np.roll(np.eye(4), 1, axis=0), atol=1e-6)
  np.testing.assert_allclose(mixed, kept * images + (1 - kept) * images[[3, 0, 1, 2]], atol=1e-3)


def test_cutmix_cuts_boxes_and_corrects_the_share():
  share, cut = draws_of(mixup.cutmix(None, count_steps, alpha=1.0), 1000, size=20)
  assert cut.all()
  rng = np.random.default_rng(0)
  length = np.floor(20 * np.sqrt(1 - rng.uniform(size=50_000))).astype(int)
  first = rng.integers(0, 20, (2, 50_000)) - length // 2
  sides = np.minimum(first + length, 20) - np.maximum(first, 0)
  np.testing.assert_allclose(
    np.quantile(share[:, 0], DECILES), np.quantile(1 - sides.prod(0) / 400, DECILES), atol=0.05
  )


def test_switch_is_the_probability_of_cutmix_and_has_its_own_alphas():
  share, cut = draws_of(mixup.mixup_cutmix(None, count_steps, mixup_alpha=2.0, switch=0.75), 4000)
  assert abs(cut[:, 0].mean() - 0.75) < 0.03
  assert scipy.stats.kstest(share[~cut[:, 0], 0], scipy.stats.beta(2, 2).cdf).pvalue > 1e-3


@pytest.mark.parametrize(
  ("name", "mode", "batch", "different"),
  [
    ("mixup", "batch", 6, 1),
    ("mixup_cutmix", "pair", 6, 3),
    ("cutmix", "pair", 5, 2),
    ("mixup", "elem", 6, 6),
    ("mixup_cutmix", "elem", 5, 4),
  ],
)
def test_mode_determines_which_rows_share_a_draw(name, mode, batch, different):
  images, targets = modules.pictures(batch, 20, 20), np.eye(batch)
  mix = jax.jit(mixup.MIXINGS[name](None, count_steps, mode=mode))
  # Row i is mixed with row B - 1 - i. The middle row of an odd batch is mixed with itself, so its draw has no effect.
  rows = [i for i in range(batch) if i != batch - 1 - i]
  most = 0
  for seed in range(20):
    mixed, soft = (np.asarray(x) for x in mix(jax.random.key(seed), images, targets, 0))
    share = np.diag(soft)
    for i in rows:
      own, other = images[i].astype(float), images[batch - 1 - i].astype(float)
      np.testing.assert_allclose(soft[i], share[i] * targets[i] + (1 - share[i]) * targets[batch - 1 - i], atol=1e-6)
      is_own, is_other = ((np.abs(mixed[i] - x) < 1e-3).all(-1) for x in (own, other))
      if (is_own | is_other).all():
        assert abs(is_own.mean() - share[i]) < 0.01  # a box; single pixels may be equal by chance
      else:
        np.testing.assert_allclose(mixed[i], share[i] * own + (1 - share[i]) * other, atol=1e-2)
    if mode == "pair":
      np.testing.assert_array_equal(share, share[::-1])
    most = max(most, len(set(share[rows])))
  assert most == different


@pytest.mark.parametrize(("mode", "draws"), [("batch", 1), ("pair", 4), ("elem", 8)])
def test_mixing_is_applied_with_its_probability(mode, draws):
  mix = mixup.mixup(None, count_steps, alpha=4.0, mode=mode, probability=0.3)
  images, keys = modules.pictures(8, 2, 2), modules.keys(2000 // draws)
  mixed, soft = jax.jit(jax.vmap(mix, (0, None, None, None)))(keys, images, np.eye(8), 0)
  touched = np.einsum("nii->ni", soft) < 1
  np.testing.assert_array_equal((mixed != images).any((2, 3, 4)), touched)
  assert abs(touched.mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 2000)


def test_mixing_ends_at_its_step_and_step_zero_is_refused():
  mix = jax.jit(mixup.mixup(None, count_steps, off_after=schema.Duration("40%")))
  images, key = modules.pictures(4), jax.random.key(0)
  same = [bool((mix(key, images, np.eye(4), step)[0] == images).all()) for step in (0, 39, 40, 99)]
  assert same == [False, False, True, True]
  endless = mixup.mixup(None, lambda _: 10**15, off_after=schema.Duration("1000000Mep"))
  shapes = jax.eval_shape(endless, jax.random.key(0), np.zeros((2, 4, 4, 3), np.uint8), np.zeros((2, 3), np.float32), 0)
  assert shapes[0].shape == (2, 4, 4, 3)
  with pytest.raises(schema.ConfigError, match=r"off_after: 0 would never mix. Use None to mix until the end"):
    mixup.cutmix(None, count_steps, off_after=schema.Duration("0ep"))


def test_pair_mode_with_rolled_partners_is_refused():
  with pytest.raises(schema.ConfigError, match=r"mode: 'pair' cannot be combined with partner='rolled'"):
    mixup.mixup(None, count_steps, mode="pair", partner="rolled")

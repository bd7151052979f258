"""Augmentation on the device, against NumPy, SciPy and published fixtures."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from einops import rearrange

from vit_jax import config, rng
from vit_jax.data import augment

DECILES = [0.1, 0.3, 0.5, 0.7, 0.9]


def pictures(batch=6, height=9, width=9, seed=0):
  return np.random.default_rng(seed).integers(0, 256, (batch, height, width, 3), dtype=np.uint8)


def warp(images, angle=0.0, skew=0.0, zoom=1.0, shift=(0.0, 0.0)):
  ones = jnp.ones(len(images))
  return np.asarray(
    augment.warp_affine(images, angle * ones, skew * ones, zoom * ones, ones[:, None] * jnp.array(shift))
  )


def test_normalising_is_the_formula():
  images, mean, std = pictures(), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
  expected = (images / 255.0 - np.array(mean)) / np.array(std)
  np.testing.assert_allclose(augment.normalise(images, mean=mean, std=std), expected, atol=1e-6)
  half = augment.normalise(images, jnp.bfloat16, mean=mean, std=std)
  assert half.dtype == jnp.bfloat16
  np.testing.assert_allclose(half.astype(jnp.float32), expected, rtol=2**-8, atol=2**-8)


def test_the_defaults_span_minus_one_to_one():
  np.testing.assert_allclose(augment.normalise(np.array([[[[0, 255, 0]]]], np.uint8))[0, 0, 0], [-1, 1, -1], atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 9), (8, 8), (5, 12)])
def test_a_warp_by_nothing_changes_nothing(shape):
  images = pictures(3, *shape)
  np.testing.assert_array_equal(warp(images), images)


@pytest.mark.parametrize("size", [8, 9])
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_right_angles_turn_counter_clockwise(size, turns):
  images = pictures(3, size, size)
  # cos(90 degrees) is 4e-8, so a point on the border may fall 2e-7 outside: an error of that share of 255.
  np.testing.assert_allclose(warp(images, angle=turns * np.pi / 2), np.rot90(images, turns, (1, 2)), atol=1e-3)


def test_shifts_are_down_and_right_with_black_behind():
  images = pictures(2)
  expected = np.zeros_like(images)
  expected[:, 2:, :-3] = images[:, :-2, 3:]
  np.testing.assert_array_equal(warp(images, shift=(2, -3)), expected)


def test_half_a_pixel_is_the_mean_of_neighbours():
  images = pictures(2).astype(float)
  result = warp(images.astype(np.uint8), shift=(0, 0.5))
  np.testing.assert_allclose(result[:, :, 1:], (images[:, :, 1:] + images[:, :, :-1]) / 2, atol=1e-4)
  np.testing.assert_allclose(result[:, :, 0], images[:, :, 0] / 2, atol=1e-4)


def numpy_warp(image, angle, skew, zoom, shift):
  """One pixel at a time, with the forward matrix inverted by NumPy."""
  height, width, _ = image.shape
  turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])  # of (x, y), y downwards
  inverse = np.linalg.inv(zoom * turn @ np.array([[1, np.tan(skew)], [0, 1]]))
  middle = np.array([(width - 1) / 2, (height - 1) / 2])
  result = np.zeros(image.shape)
  for y in range(height):
    for x in range(width):
      at = inverse @ (np.array([x, y]) - middle - np.array(shift)[::-1]) + middle
      for row in range(height):
        for column in range(width):
          weight = max(0, 1 - abs(at[1] - row)) * max(0, 1 - abs(at[0] - column))
          result[y, x] += weight * image[row, column]
  return result


@pytest.mark.parametrize(
  "numbers", [(0.3, 0.0, 1.0, (0.0, 0.0)), (-0.5, 0.4, 1.3, (1.2, -0.7)), (2.0, -0.8, 0.6, (-3.0, 0.1))]
)
def test_a_warp_equals_one_computed_pixel_by_pixel(numbers):
  images = pictures(2, 6, 8)
  expected = np.stack([numpy_warp(image, *numbers) for image in images])
  np.testing.assert_allclose(warp(images, *numbers), expected, atol=2e-3)


def keys(count, seed=0):
  return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(count))


def test_affine_draws_stay_in_their_ranges_and_are_used():
  # Two white pixels on black: their centroid gives the shift, their distance the zoom, their direction the angle.
  image = np.zeros((2000, 33, 33, 3), np.uint8)
  image[:, 16, 10:23] = 255
  result = np.asarray(jax.jit(augment.affine(degrees=20, translate=0.1, scale=(0.8, 1.25)))(keys(2000), image))[..., 0]
  y, x = np.mgrid[:33, :33]
  mass = result.sum((1, 2))
  shift = np.stack([(result * y).sum((1, 2)) / mass - 16, (result * x).sum((1, 2)) / mass - 16], -1)
  assert np.abs(shift).max() < 3.3 + 0.2  # a turned line is not exactly symmetric
  np.testing.assert_allclose(np.quantile(shift, [0.1, 0.5, 0.9], axis=0).T, [[-2.64, 0, 2.64]] * 2, atol=0.25)
  dy, dx = y - 16 - shift[:, 0, None, None], x - 16 - shift[:, 1, None, None]
  angle = np.rad2deg(-0.5 * np.arctan2(2 * (result * dx * dy).sum((1, 2)), (result * (dx**2 - dy**2)).sum((1, 2))))
  assert np.abs(angle).max() < 20.5
  np.testing.assert_allclose(np.quantile(angle, [0.1, 0.5, 0.9]), [-16, 0, 16], atol=1)
  # Length and thickness both grow with the zoom; along the line the second moment grows as its square.
  along = np.sqrt((result * (dx**2 + dy**2)).sum((1, 2)) / mass / np.mean((np.arange(13) - 6) ** 2))
  np.testing.assert_allclose(np.quantile(along, [0.1, 0.5, 0.9]), [0.845, 1.025, 1.205], atol=0.03)


def test_a_probability_leaves_the_rest_untouched():
  images = pictures(1000)
  result = jax.jit(augment.affine(degrees=40, probability=0.3))(keys(1000), images)
  same = (np.asarray(result) == images).all((1, 2, 3))
  assert 0.65 < same.mean() < 0.75
  np.testing.assert_array_equal(jax.jit(augment.affine(probability=0.0))(keys(1000), images), images)


def built(dtype=jnp.float32, seed=0, patch=None, total=100, **choices):
  """The augmentation of a run of so many steps; choices are dicts as in a config."""

  def choice(name, **args):
    return config.Choice(name, args)

  return augment.build(
    dtype,
    seed,
    patch,
    lambda duration: duration.steps(1, 1, total),
    **{key: choice(**value) for key, value in choices.items()},
  )


PER_IMAGE = {"warp": {"name": "affine", "degrees": 30}, "erasing": {"name": "random", "probability": 0.7}}


def test_what_changes_one_image_follows_from_the_seed_and_its_draw_alone():
  images, targets, draws = pictures(16), jnp.eye(16), rng.generator(0, "x").integers(2**32, size=16, dtype=np.uint32)
  apply = jax.jit(built(**PER_IMAGE))
  whole, _ = apply(jax.random.key(1), images, targets, draws, 0)
  # Another step, another batch, another place in it.
  order = np.random.default_rng(0).permutation(16)[:5]
  moved, _ = apply(jax.random.key(2), images[order], targets[order], draws[order], 7)
  np.testing.assert_array_equal(moved, whole[order])
  assert (
    np.asarray(jax.jit(built(seed=1, **PER_IMAGE))(jax.random.key(1), images, targets, draws, 0)[0]) != whole
  ).any()
  again, _ = apply(jax.random.key(1), images, targets, draws[::-1], 0)
  assert (again != whole).any((1, 2, 3)).mean() > 0.9


def test_draws_do_not_depend_on_the_devices():
  images, targets, draws = pictures(16), jnp.eye(16), np.arange(16, dtype=np.uint32)
  apply = jax.jit(built(**PER_IMAGE, mixing={"name": "mixup_cutmix", "mode": "elem"}))
  whole = apply(jax.random.key(1), images, targets, draws, 0)
  mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  batch = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  spread = jax.device_put((images, targets, draws), batch)
  for ours, expected in zip(apply(jax.random.key(1), *spread, 0), whole, strict=True):
    np.testing.assert_allclose(ours, expected, atol=1e-4)


# Mixing.


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.2, 0.8, 1.0, 4.0])
def test_beta_draws_follow_the_distribution(alpha):
  draws = np.asarray(jax.jit(augment.beta, static_argnums=2)(jax.random.key(0), alpha, (200_000,)), np.float64)
  # Compared away from the ends, where float32 has no numbers: a tenth of Beta(0.1, 0.1) lies within 6e-8 of one.
  points = 1 / (1 + np.exp(-np.linspace(-13, 13, 2001)))
  found = np.searchsorted(np.sort(draws), points, side="right") / len(draws)
  difference = np.abs(found - scipy.stats.beta.cdf(points, alpha, alpha)).max()
  assert difference < 1.95 / np.sqrt(len(draws))  # Kolmogorov and Smirnov's bound for one chance in a thousand
  assert abs(np.mean(draws == 0.5)) < 1e-3 and np.isfinite(draws).all()


def test_beta_draws_take_an_alpha_for_each():
  alphas = jnp.where(jnp.arange(20_000) < 10_000, 0.2, 4.0)
  draws = augment.beta(jax.random.key(0), alphas, (20_000,))
  for part, alpha in ((draws[:10_000], 0.2), (draws[10_000:], 4.0)):
    assert abs(np.var(part) - scipy.stats.beta.var(alpha, alpha)) < 0.004


def test_beta_draws_have_no_loop():
  def loops(function):
    # On CPU, the generator's own rounds are a loop, whatever is drawn.
    traced = jax.jit(function).trace(jax.random.key(0))
    return traced.lower(lowering_platforms=("tpu",)).as_text().count("stablehlo.while")

  assert loops(lambda key: augment.beta(key, 0.2, (64,))) == 0
  assert loops(lambda key: jax.random.beta(key, 0.2, 0.2, (64,))) > 0


def steps_of(duration):
  return duration.steps(1, 1, 100)


def mixing_draws(mixing, count=1000, batch=2):
  """Kept share, and whether the image is cut rather than blended, [count, batch]; images are 1 and partners 0."""
  images = jnp.broadcast_to(jnp.eye(batch)[0][:, None, None, None], (batch, 20, 20, 3))
  shares, cuts = [], []
  for row in range(batch):
    rolled = jnp.roll(images, row, 0)
    mixed, soft = jax.jit(jax.vmap(mixing, (0, None, None, None)))(
      jax.random.split(jax.random.key(0), count), rolled, jnp.eye(batch), 0
    )
    np.testing.assert_allclose(soft.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(mixed[:, row].mean((1, 2, 3)), soft[:, row, row], atol=1e-5)
    shares.append(soft[:, row, row])
    cuts.append(((mixed[:, row] == 0) | (mixed[:, row] == 1)).all((1, 2, 3)))
  return np.stack(shares, 1), np.stack(cuts, 1)


def test_mixup_shares_follow_the_beta_distribution():
  share, cut = mixing_draws(augment.mixup(None, steps_of, alpha=0.8), 4000)
  assert scipy.stats.kstest(share[:, 0], scipy.stats.beta(0.8, 0.8).cdf).pvalue > 1e-3
  np.testing.assert_array_equal(share[:, 0], share[:, 1])
  assert cut.mean() < 0.05


def test_big_visions_mixup_takes_the_row_before_and_keeps_the_larger_share():
  mixing = jax.jit(augment.mixup(None, steps_of, alpha=0.2, partner="rolled", share="larger"))
  share, _ = mixing_draws(mixing, 4000)
  folded = np.random.default_rng(0).beta(0.2, 0.2, 100_000)
  np.testing.assert_allclose(
    np.quantile(share[:, 0], DECILES), np.quantile(np.maximum(folded, 1 - folded), DECILES), atol=0.03
  )
  images = pictures(4).astype(np.float32)
  mixed, soft = mixing(jax.random.key(3), images, jnp.eye(4), 0)
  kept = float(soft[0, 0])
  np.testing.assert_allclose(soft, kept * np.eye(4) + (1 - kept) * np.roll(np.eye(4), 1, axis=0), atol=1e-6)
  np.testing.assert_allclose(mixed, kept * images + (1 - kept) * images[[3, 0, 1, 2]], atol=1e-3)


def test_cutmix_cuts_boxes_and_corrects_the_share():
  share, cut = mixing_draws(augment.cutmix(None, steps_of, alpha=1.0))
  assert cut.all()
  rng = np.random.default_rng(0)
  length = np.floor(20 * np.sqrt(1 - rng.uniform(size=50_000))).astype(int)
  first = rng.integers(0, 20, (2, 50_000)) - length // 2
  sides = np.minimum(first + length, 20) - np.maximum(first, 0)
  np.testing.assert_allclose(
    np.quantile(share[:, 0], DECILES), np.quantile(1 - sides.prod(0) / 400, DECILES), atol=0.05
  )


def test_the_switch_chooses_cutmix_as_often_as_it_says_and_alphas_go_with_it():
  share, cut = mixing_draws(augment.mixup_cutmix(None, steps_of, mixup_alpha=2.0, switch=0.75), 4000)
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
def test_a_mode_says_who_shares_a_draw(name, mode, batch, different):
  images, targets = pictures(batch, 20, 20), np.eye(batch)
  mixing = jax.jit(augment.MIXINGS[name](None, steps_of, mode=mode))
  # Row i is mixed with row B - 1 - i; the middle of an odd batch with itself, so that nothing is seen of its draw.
  rows = [i for i in range(batch) if i != batch - 1 - i]
  most = 0
  for seed in range(20):
    mixed, soft = (np.asarray(x) for x in mixing(jax.random.key(seed), images, targets, 0))
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


@pytest.mark.parametrize(("mode", "draws"), [("batch", 1), ("pair", 100), ("elem", 200)])
def test_mixing_is_left_out_as_often_as_the_probability_says(mode, draws):
  mixing = jax.jit(augment.mixup(None, steps_of, alpha=4.0, mode=mode, probability=0.3))
  images = pictures(200, 2, 2)
  mixed = []
  for seed in range(2000 // draws):
    found, soft = mixing(jax.random.key(seed), images, jnp.eye(200), 0)
    touched = np.diag(soft) < 1
    np.testing.assert_array_equal(np.asarray(found)[~touched], images[~touched])
    mixed.append(touched.mean())
  assert abs(np.mean(mixed) - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 2000)


def test_mixing_ends_at_its_step_and_a_zero_is_refused():
  mixing = jax.jit(augment.mixup_cutmix(None, steps_of, off_after=config.Duration("40%")))
  images = pictures(4)

  def same(step):
    return bool((mixing(jax.random.key(0), images, jnp.eye(4), step)[0] == images).all())

  assert [same(step) for step in (0, 39, 40, 99)] == [False, False, True, True]
  with pytest.raises(config.ConfigError, match=r"mixing.off_after: 0 would never mix; None mixes to the end"):
    augment.cutmix(None, steps_of, off_after=config.Duration("0ep"))


def test_pairs_of_rolled_partners_are_refused():
  with pytest.raises(config.ConfigError, match=r"mixing.mode: 'pair' with partner='rolled'"):
    augment.mixup(None, steps_of, mode="pair", partner="rolled")


# Erasing.


def numpy_boxes(numbers, height, width, area, aspect):
  """Tries one after another, in float32 as on the device."""
  for share, ratio, down, right in numbers.astype(np.float32):
    target = np.float32(height * width) * (np.float32(area[0]) + share * np.float32(area[1] - area[0]))
    ratio = np.float32(aspect[0]) * np.float32(aspect[1] / aspect[0]) ** ratio
    rows, columns = round(float(np.sqrt(target * ratio))), round(float(np.sqrt(target / ratio)))
    if rows < height and columns < width:
      return int(down * np.float32(height - rows + 1)), int(right * np.float32(width - columns + 1)), rows, columns
  return None


@pytest.mark.parametrize(
  ("height", "width", "area", "aspect"),
  [(32, 32, (0.02, 1 / 3), (0.3, 1 / 0.3)), (20, 31, (0.3, 1.0), (0.1, 10.0)), (9, 9, (0.6, 1.0), (0.01, 100.0))],
)
def test_the_first_box_that_fits_is_erased(height, width, area, aspect):
  numbers = np.random.default_rng(0).random((2000, 10, 4), dtype=np.float32)
  boxes, fits = augment.erasing_boxes(numbers, height, width, area, aspect)
  expected = [numpy_boxes(n, height, width, area, aspect) for n in numbers]
  np.testing.assert_array_equal(fits, [e is not None for e in expected])
  different = [tuple(b) != e for b, e in zip(np.asarray(boxes).tolist(), expected, strict=True) if e is not None]
  assert np.mean(different) < 0.005  # a side that ends in .5 but for rounding
  if area[0] == 0.6:
    assert 0.01 < np.mean(fits) < 0.99


def erased(images, **arguments):
  result = jax.jit(augment.random_erasing(None, **arguments))(keys(len(images)), images)
  assert result.dtype == images.dtype
  return np.asarray(result)


def test_erasing_paints_noise_over_one_box_of_a_quarter_of_the_images():
  images = jnp.full((4000, 16, 16, 3), 50.0)
  result = erased(images)
  touched = (result != 50).any(-1)
  assert (touched == (result != 50).all(-1)).all()  # all channels or none
  chosen = touched.any((1, 2))
  assert abs(chosen.mean() - 0.25) < 0.03
  rows, columns = touched.any(2), touched.any(1)
  np.testing.assert_array_equal(touched, rows[:, :, None] & columns[:, None, :])  # boxes
  area = touched[chosen].mean((1, 2))
  # Uniform between a fiftieth and a third, rounded to whole pixels.
  np.testing.assert_allclose(np.quantile(area, DECILES), 0.02 + (1 / 3 - 0.02) * np.array(DECILES), atol=0.03)
  tall = np.log(rows[chosen].sum(1) / columns[chosen].sum(1))
  assert abs(tall.mean()) < 0.1 and 0.5 < tall.std() < 0.8  # log-uniform within +-1.2
  paint = result[touched].ravel()
  assert scipy.stats.kstest(paint[:20_000], "norm").pvalue > 1e-3
  assert abs(np.corrcoef(result[touched].T)[0, 1]) < 0.03


@pytest.mark.parametrize(("fill", "values"), [("colour", 1), ("zero", 1)])
def test_a_fill_may_be_one_colour_or_zero(fill, values):
  result = erased(jnp.full((200, 16, 16, 3), 50.0), probability=1.0, fill=fill)
  for image in result:
    painted = image[(image != 50).any(-1)]
    assert len(np.unique(painted, axis=0)) == values
  colours = np.array([image[(image != 50).any(-1)][0] for image in result])
  if fill == "zero":
    assert (colours == 0).all()
  else:
    assert scipy.stats.kstest(colours.ravel(), "norm").pvalue > 1e-3


def test_several_boxes_share_the_area():
  images = jnp.full((500, 32, 32, 3), 50.0)
  one, four = (erased(images, probability=1.0, fill="colour", area=(0.3, 0.3), count=c) for c in (1, 4))
  shares = [(result != 50).any(-1).mean((1, 2)) for result in (one, four)]
  assert abs(shares[0].mean() - 0.3) < 0.01
  # Four boxes of 7.5 % in random places; where they overlap, less is covered.
  assert 0.2 < shares[1].mean() < 0.3 and shares[1].max() < 0.33
  assert max(len(np.unique(image[(image != 50).any(-1)], axis=0)) for image in four) == 4


def test_nothing_is_erased_without_a_box_that_fits_or_a_chance():
  images = jnp.full((50, 16, 16, 3), 50.0)
  assert (erased(images, probability=1.0, area=(1.0, 1.0)) == 50).all()
  assert (erased(images, probability=0.0) == 50).all()
  with pytest.raises(config.ConfigError, match=r"erasing.aspect: \(2.0, 1.0\) goes from high to low"):
    augment.random_erasing(None, aspect=(2.0, 1.0))


# Patches.


def cut(images, patch):
  return rearrange(images, "b (h i) (w j) c -> b (h w) (i j c)", i=patch, j=patch)


VARIANTS = [
  *(
    {"mixing": {"name": name, "mode": mode}} for name in augment.MIXINGS if name != "none" for mode in ("batch", "elem")
  ),
  {"mixing": {"name": "mixup", "partner": "rolled", "share": "larger"}},
  {"mixing": {"name": "cutmix", "mode": "pair"}},
  *({"erasing": {"name": "random", "fill": fill, "count": 2}} for fill in ("pixel", "colour", "zero")),
  {"mixing": {"name": "mixup_cutmix"}, "erasing": {"name": "random"}},
  {},
]


@pytest.mark.parametrize("choices", VARIANTS, ids=str)
def test_patches_are_the_plain_result_rearranged(choices):
  if "erasing" in choices:
    choices = choices | {"erasing": choices["erasing"] | {"probability": 0.7}}
  images, targets, draws = pictures(8, 12, 12), jnp.eye(8), np.arange(8, dtype=np.uint32)

  @jax.jit
  def both(key):
    ways = (built(**choices), images), (built(patch=4, **choices), cut(images, 4))
    return [apply(key, form, targets, draws, 0) for apply, form in ways]

  changed = 0
  for seed in range(3):
    key = jax.random.key(seed)
    (plain, soft), (found, soft_too) = both(key)
    assert found.shape == (8, 9, 48)
    # The same numbers; but one program may fuse a product and a sum, rounded once, where the other rounds twice.
    np.testing.assert_allclose(found, cut(plain, 4), atol=1e-6)
    np.testing.assert_array_equal(soft_too, soft)
    changed += (np.asarray(plain) != augment.normalise(images)).any()
  assert bool(changed) == bool(choices)


def test_normalising_patches_is_normalising_images():
  images, mean, std = pictures(2, 8, 8), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
  expected = cut(np.asarray(augment.normalise(images, mean=mean, std=std)), 4)
  np.testing.assert_array_equal(augment.normalise(cut(images, 4), mean=mean, std=std), expected)


def test_a_warp_needs_whole_images():
  with pytest.raises(AssertionError, match="whole images"):
    built(patch=4, warp={"name": "affine"})


# All of it.


@pytest.mark.parametrize(
  ("key", "name"),
  [
    *(("warp", name) for name in augment.WARPS),
    *(("mixing", name) for name in augment.MIXINGS),
    *(("erasing", name) for name in augment.ERASINGS),
  ],
)
def test_every_warp_mixing_and_erasing_runs_under_jit(key, name):
  apply = jax.jit(built(jnp.bfloat16, **{key: {"name": name}}))
  images, targets = apply(jax.random.key(0), pictures(8), jnp.eye(10)[:8], np.arange(8, dtype=np.uint32), 3)
  assert images.shape == (8, 9, 9, 3)
  assert images.dtype == jnp.bfloat16
  assert targets.dtype == jnp.float32
  np.testing.assert_allclose(targets.sum(-1), 1, atol=1e-6)


def test_the_parts_follow_one_another_as_said():
  # Warped, mixed as uint8, normalised, erased: the parts called one by one give the same.
  choices = PER_IMAGE | {"mixing": {"name": "mixup", "alpha": 0.8}}
  images, targets, draws, key = pictures(8), jnp.eye(8), np.arange(8, dtype=np.uint32), jax.random.key(4)
  found, soft = jax.jit(built(**choices))(key, images, targets, draws, 0)
  row_keys = {
    name: jax.vmap(functools.partial(jax.random.fold_in, rng.stream(0, 0, name)))(draws) for name in ("warp", "erasing")
  }
  warped = np.asarray(jax.jit(augment.affine(degrees=30))(row_keys["warp"], images))
  share = float(jax.jit(augment.mixup(None, steps_of, alpha=0.8))(key, images, targets, 0)[1][0, 0])
  mixed = share * warped + (1 - share) * warped[::-1]
  expected = jax.jit(augment.random_erasing(None, probability=0.7))(row_keys["erasing"], (mixed / 255 - 0.5) / 0.5)
  np.testing.assert_allclose(found, expected, atol=1e-4)
  np.testing.assert_allclose(soft, share * np.eye(8) + (1 - share) * np.eye(8)[::-1], atol=1e-6)


def test_without_a_choice_images_are_only_normalised():
  images, targets = built()(jax.random.key(0), pictures(8), jnp.eye(10)[:8], np.arange(8, dtype=np.uint32), 0)
  np.testing.assert_array_equal(images, augment.normalise(pictures(8)))
  np.testing.assert_array_equal(targets, np.eye(10)[:8])

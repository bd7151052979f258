"""Tests of augmentation on the device.

Normalisation is compared with NumPy, the whole with its parts, and patches with images.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from einops import rearrange

from tests import modules
from vit_jax import rng, schema
from vit_jax.data import augment, erasing, mixup, warping

pytestmark = pytest.mark.heavy


def test_normalisation_matches_the_formula():
  images, mean, std = modules.pictures(), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
  expected = (images / 255.0 - np.array(mean)) / np.array(std)
  np.testing.assert_allclose(augment.normalise(images, mean=mean, std=std), expected, atol=1e-6)
  half = augment.normalise(images, jnp.bfloat16, mean=mean, std=std)
  assert half.dtype == jnp.bfloat16
  np.testing.assert_allclose(half.astype(jnp.float32), expected, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("channels", [3, 48])
def test_denormalisation_inverts_normalisation(channels):
  images = np.random.default_rng(0).integers(0, 256, (2, 5, channels), np.uint8)
  arguments = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.3, 0.25)}
  whole = augment.denormalise(augment.normalise(images, **arguments), **arguments)
  np.testing.assert_allclose(whole, images / 255, atol=1e-6)
  half = augment.denormalise(augment.normalise(images, jnp.bfloat16, **arguments), **arguments)
  assert half.dtype == jnp.float32
  np.testing.assert_allclose(half, images / 255, atol=4e-3)


def test_default_normalisation_spans_minus_one_to_one():
  np.testing.assert_allclose(augment.normalise(np.array([[[[0, 255, 0]]]], np.uint8))[0, 0, 0], [-1, 1, -1], atol=1e-6)


def built(dtype=jnp.float32, seed=0, patch=None, total=100, **choices):
  """Builds the augmentation of a run with `total` steps. Choices are dicts as in a config."""

  def choice(name, **args):
    return schema.Choice(name, args)

  return augment.build(
    dtype,
    seed,
    patch,
    lambda duration: duration.count_steps(1, 1, total),
    **{key: choice(**value) for key, value in choices.items()},
  )


PER_IMAGE = {"warp": {"name": "affine", "degrees": 30}, "erasing": {"name": "random", "probability": 0.7}}


def test_per_image_augmentation_depends_only_on_seed_and_draw():
  images, targets, draws = (
    modules.pictures(16),
    np.eye(16),
    np.random.default_rng(0).integers(2**32, size=16, dtype="u4"),
  )

  @jax.jit
  def apply(seed, step, images, draws):
    return built(seed=seed, **PER_IMAGE)(jax.random.key(step), images, targets, draws, step)[0]

  whole = np.asarray(apply(0, 1, images, draws))
  # Another step, another batch, and another position in the batch.
  order = np.random.default_rng(0).permutation(16)[:5]
  others, their_draws = modules.pictures(16, seed=1), draws + np.uint32(1)
  others[:5], their_draws[:5] = images[order], draws[order]
  np.testing.assert_array_equal(apply(0, 7, others, their_draws)[:5], whole[order])
  for again in (apply(1, 1, images, draws), apply(0, 1, images, draws[::-1])):
    assert (again != whole).any((1, 2, 3)).mean() > 0.9


@functools.cache
def everything():
  return jax.jit(built(**PER_IMAGE, mixing={"name": "mixup_cutmix", "mode": "elem"}))


def test_draws_do_not_depend_on_the_number_of_devices():
  images, targets, draws, key = modules.pictures(16), jnp.eye(16), np.arange(16, dtype=np.uint32), jax.random.key(1)
  whole = everything()(key, images, targets, draws, 0)
  mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  batch = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  spread = jax.device_put((images, targets, draws), batch)
  for ours, expected in zip(everything()(key, *spread, 0), whole, strict=True):
    np.testing.assert_allclose(ours, expected, atol=1e-4)


# Patches.


def cut(images, patch):
  return rearrange(images, "b (h i) (w j) c -> b (h w) (i j c)", i=patch, j=patch)


VARIANTS = [
  *({"mixing": {"name": name, "mode": mode}} for name in mixup.MIXINGS if name != "none" for mode in ("batch", "elem")),
  {"mixing": {"name": "mixup", "partner": "rolled", "share": "larger"}},
  {"mixing": {"name": "cutmix", "mode": "pair"}},
  *({"erasing": {"name": "random", "fill": fill, "count": 2}} for fill in ("pixel", "colour", "zero")),
  {},
]


@pytest.mark.parametrize("choices", VARIANTS, ids=str)
def test_augmented_patches_match_augmented_images(choices):
  if "erasing" in choices:
    choices = choices | {"erasing": choices["erasing"] | {"probability": 0.7}}
  images, targets, draws = modules.pictures(8, 12, 12), jnp.eye(8), np.arange(8, dtype=np.uint32)

  @jax.jit
  def both(key):
    ways = (built(**choices), images), (built(patch=4, **choices), cut(images, 4))
    return [apply(key, form, targets, draws, 0) for apply, form in ways]

  changed = 0
  for seed in range(3):
    key = jax.random.key(seed)
    (plain, soft), (found, soft_too) = both(key)
    assert found.shape == (8, 9, 48)
    # The values are equal up to rounding: one program may fuse a product and a sum, and round once instead of twice.
    np.testing.assert_allclose(found, cut(plain, 4), atol=1e-6)
    np.testing.assert_array_equal(soft_too, soft)
    changed += (np.asarray(plain) != augment.normalise(images)).any()
  assert bool(changed) == bool(choices)


def test_normalising_patches_matches_normalising_images():
  images, mean, std = modules.pictures(2, 8, 8), (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
  expected = cut(np.asarray(augment.normalise(images, mean=mean, std=std)), 4)
  np.testing.assert_array_equal(augment.normalise(cut(images, 4), mean=mean, std=std), expected)


def test_warp_requires_whole_images():
  with pytest.raises(AssertionError, match="whole images"):
    built(patch=4, warp={"name": "affine"})


# The whole augmentation.


@pytest.mark.parametrize(
  ("key", "name"),
  [
    *(("warp", name) for name in warping.WARPS),
    *(("mixing", name) for name in mixup.MIXINGS),
    *(("erasing", name) for name in erasing.ERASINGS),
  ],
)
def test_every_warp_mixing_and_erasing_runs_under_jit(key, name):
  apply = jax.jit(built(jnp.bfloat16, **{key: {"name": name}}))
  images, targets = apply(jax.random.key(0), modules.pictures(8), jnp.eye(10)[:8], np.arange(8, dtype=np.uint32), 3)
  assert images.shape == (8, 9, 9, 3)
  assert images.dtype == jnp.bfloat16
  assert targets.dtype == jnp.float32
  np.testing.assert_allclose(targets.sum(-1), 1, atol=1e-6)


def test_augmentation_matches_its_parts_in_the_documented_order():
  # The order is: warp, mix as values in 0..255, normalise, erase. The parts called one by one give the same result.
  images, targets, draws, key = modules.pictures(16), jnp.eye(16), np.arange(16, dtype=np.uint32), jax.random.key(4)
  found, soft = everything()(key, images, targets, draws, 0)
  fold = jax.jit(jax.vmap(jax.random.fold_in, (None, 0)))
  warp_keys, erasing_keys = (fold(rng.derive_key(0, 0, name), draws) for name in ("warp", "erasing"))
  warped = jax.jit(warping.affine(degrees=30))(warp_keys, images)
  mixed, expected_soft = jax.jit(mixup.mixup_cutmix(None, int, mode="elem"))(key, warped, targets, 0)
  normalised = (np.asarray(mixed) / 255 - 0.5) / 0.5
  expected = jax.jit(erasing.random_erasing(None, probability=0.7))(erasing_keys, normalised)
  np.testing.assert_allclose(found, expected, atol=1e-4)
  np.testing.assert_allclose(soft, expected_soft, atol=1e-6)


@pytest.mark.parametrize(("wanted", "flags"), [
  ({}, None),
  ({"mean": (0.4914, 0.4822, 0.4465)}, None),
  ({"mean": [0.4911, 0.4825, 0.4465], "std": (0.2470, 0.2435, 0.2616)}, None),  # rounded differently
  ({"mean": (0.4914, 0.4822, 0.4475)}, "--config.data.mean='(0.4914,0.4822,0.4475)'"),
  ({"mean": (0.4914, 0.4822, 0.4465), "std": (0.2, 0.2, 0.2)}, "--config.data.std='(0.2,0.2,0.2)'"),
  ({"mean": (0.5,)}, "--config.data.mean='(0.5,0.5,0.5)'"),  # for gray images
])  # fmt: skip
def test_another_normalisation_has_flags(wanted, flags):
  own = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.247, 0.2435, 0.2616)}
  assert augment.find_normalisation_flags(wanted, own) == flags


def test_images_are_only_normalised_by_default():
  images, targets = built()(jax.random.key(0), modules.pictures(8), jnp.eye(10)[:8], np.arange(8, dtype=np.uint32), 0)
  np.testing.assert_array_equal(images, augment.normalise(modules.pictures(8)))
  np.testing.assert_array_equal(targets, np.eye(10)[:8])

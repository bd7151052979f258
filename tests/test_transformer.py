"""The computation that all families share: where tokens go, what a size may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax import config, models
from vit_jax.models import transformer

TINY = dict(depth=2, width=16, heads=2, hidden=16)


def tiny(name="ViT-Ti/8", **arguments):
  return models.create(name, 16, classes=3, rngs=nnx.Rngs(0), **TINY, **arguments)


def images(count=2):
  return jax.random.normal(jax.random.key(1), (count, 16, 16, 3))


def test_the_class_token_stands_in_front_of_the_patches_row_by_row():
  model = tiny(position="none")
  x = jnp.zeros((1, 16, 16, 3)).at[0, 0, 8:].set(1.0)  # the second patch of the first row
  _, found = models.capture(model, "tokens")(x)
  _, blank = models.capture(model, "tokens")(jnp.zeros_like(x))
  changed = np.asarray(jnp.any(found["tokens"] != blank["tokens"], axis=-1))[0]
  assert changed.tolist() == [False, False, True, False, False]
  np.testing.assert_array_equal(found["tokens"][0, 0], model.cls[...])


def test_the_head_reads_the_class_token_or_the_mean():
  for head, pooled in (("cls", lambda x: x[:, 0]), ("gap", lambda x: x.mean(1))):
    logits, found = models.capture(tiny(head=head), "encoded", "features", "pre_logits")(images())
    np.testing.assert_allclose(found["features"], pooled(found["encoded"]), atol=1e-6)
    assert logits.shape == (2, 3)


def test_an_image_does_not_see_its_neighbours():
  model = tiny(pre_logits=8)
  model.head.kernel[...] = jax.random.normal(jax.random.key(2), model.head.kernel.shape)
  both = model(images())
  np.testing.assert_allclose(both[:1], model(images()[:1]), atol=1e-5)
  assert not np.allclose(both[0], both[1])


def test_images_of_another_size_are_refused():
  with pytest.raises(ValueError, match=r"the model was built for \(16, 16, 3\)"):
    tiny()(jnp.zeros((1, 24, 24, 3)))


def test_dropout_needs_a_key_and_follows_from_it():
  model = tiny(dropout=0.5)
  model.head.kernel[...] = jax.random.normal(jax.random.key(2), model.head.kernel.shape)
  first, second = (model(images(), jax.random.key(i)) for i in (0, 1))
  np.testing.assert_array_equal(first, model(images(), jax.random.key(0)))
  assert not np.allclose(first, second)
  np.testing.assert_array_equal(model(images()), model(images()))


def test_sizes_and_grids_say_what_is_allowed():
  assert transformer.size((8, 2, 2, 16), width=None, depth=4, heads=None, hidden=None) == (8, 4, 2, 16)
  with pytest.raises(config.ConfigError, match="width 9 is not a multiple of heads 2; allowed heads: 1, 3, 9"):
    transformer.size((8, 2, 2, 16), width=9, depth=None, heads=None, hidden=None)
  assert transformer.grid(32, 8) == (4, 4)
  with pytest.raises(config.ConfigError, match="nearest image sizes: 24, 32"):
    transformer.grid(30, 8)

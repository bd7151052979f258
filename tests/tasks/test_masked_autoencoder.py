"""Masked autoencoders beside the formulas: targets, loss, what the encoder sees, what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import stages
from vit_jax import models
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks.masked_autoencoder import MaskedAutoencoder

pytestmark = pytest.mark.heavy

VIT = {"depth": 1, "width": 16, "heads": 2, "hidden": 16}
SMALL = {"width": 16, "depth": 1, "heads": 2}


def model(name="ViT-Ti/8", size=32, **arguments):
  return models.make_functional(models.Description(Choice(name, VIT | arguments), size, 0))


def task(of=None, **arguments):
  def augment(key, images, targets, draws, step):
    return jnp.asarray(images, jnp.float32) / 127.5 - 1, targets

  supplied = stages.supplied(of or model(), augment, pixels=lambda x: x * 0.5 + 0.5)
  return MaskedAutoencoder(supplied, **(SMALL | arguments))


def batch(count=3, size=32):
  images = np.random.default_rng(1).integers(0, 256, (count, size, size, 3), np.uint8)
  return {"image": images, "draw": np.arange(count)}


def drawn(stage):
  """Parameters, all of them other than zero and one."""
  values = stage.supplied.model.init(jax.random.key(0)) | dict(stage.init(jax.random.key(1)))
  return {
    path: value + 0.1 * jax.random.normal(jax.random.key(i), value.shape)
    for i, (path, value) in enumerate(sorted(values.items()))
  }


def patch(image, number):
  y, x = divmod(number, 4)
  return image[8 * y : 8 * y + 8, 8 * x : 8 * x + 8]


@pytest.mark.parametrize("normalised", [True, False])
def test_targets_are_those_of_loops_over_patches(normalised):
  images = np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype(np.float32)
  images[0, :8, :8] = 0.5  # of one colour: no division by zero
  got = np.asarray(task(normalised=normalised).targets(jnp.asarray(images)))
  for i, number in np.ndindex(2, 16):
    expected = patch(images[i], number).reshape(-1)
    if normalised:
      expected = (expected - expected.mean()) / np.sqrt(expected.var(ddof=1) + 1e-6)
    np.testing.assert_allclose(got[i, number], expected, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("normalised", [True, False])
def test_the_loss_is_that_of_the_hidden_patches_of_each_image_by_itself(normalised):
  stage = task(normalised=normalised)
  params = drawn(stage)
  examples = stage.examples(batch(), stages.CONTEXT, jax.random.key(3))
  loss, (metrics, _) = stage.objective(params, stages.CONTEXT, examples, None)
  errors = []
  for i, order in enumerate(np.asarray(examples["order"])):
    assert sorted(order) == list(range(16))
    visible, hidden = order[:4], order[4:]  # a quarter of 16
    tokens = stage.supplied.model.outputs(params, examples["image"][i : i + 1], visible=visible[None])[0].tokens
    assert tokens.shape == (1, 5, 16)  # and the class token
    predicted = stage.decoder(params, tokens, visible[None], np.argsort(order)[None])[0]
    for number in hidden:
      pixels = patch(np.asarray(examples["image"][i]), number).reshape(-1)
      if normalised:
        pixels = (pixels - pixels.mean()) / np.sqrt(pixels.var(ddof=1) + 1e-6)
      errors.append(np.mean(np.square(np.asarray(predicted[number]) - pixels)))
  assert float(loss) == pytest.approx(np.mean(errors), rel=1e-4)
  assert float(metrics["rmse"]) == pytest.approx(np.mean(np.sqrt(errors)), rel=1e-4)


@pytest.mark.parametrize("arguments", [{}, {"pool": "gap"}, {"registers": 2}, {"position": "sincos2d"}], ids=str)
def test_an_encoder_that_sees_all_patches_in_order_is_the_model(arguments):
  vit = model(**arguments)
  params, images = vit.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (2, 32, 32, 3))
  whole = vit.outputs(params, images)[0].tokens
  visible = np.broadcast_to(np.arange(16), (2, 16))
  np.testing.assert_allclose(vit.outputs(params, images, visible=visible)[0].tokens, whole, atol=1e-6)


def test_what_is_hidden_changes_no_token_and_what_is_seen_keeps_its_position():
  vit = model()
  params, visible = vit.init(jax.random.key(0)), np.array([[3, 9]])
  images = np.random.default_rng(0).standard_normal((1, 32, 32, 3)).astype(np.float32)
  changed = images.copy()
  changed[0, :8, :8] += 1  # patch 0
  tokens = [np.asarray(vit.outputs(params, x, visible=visible)[0].tokens) for x in (images, changed)]
  np.testing.assert_array_equal(*tokens)
  _, found = models.capture(vit.create(params), "tokens")(images)
  _, of_two = models.capture(lambda x: vit.create(params).outputs(x, visible=visible).tokens, "tokens")(images)
  np.testing.assert_allclose(of_two["tokens"][0], found["tokens"][0, np.array([0, 4, 10])], atol=1e-6)


MISTAKES = [
  ({}, {"name": "cct_2_3x2_32"}, "not patches of the image.*ViT-B/16"),
  ({}, {"name": "Mixer-S/16"}, "Mixer-S/16 requires all patches.*masked_patches"),
  ({}, {"position": "relative"}, "requires all patches.*masked_patches"),
  ({}, {"position_at": "each"}, "belong to all patches.*model.position.at='input'"),
  ({"width": 18}, {}, "18. Allowed: multiples of 4 and of heads=2"),
  ({"heads": 3}, {}, "16. Allowed: multiples of 4 and of heads=3"),
  ({"share": 0.99}, {}, "leaves no visible patch"),
  ({"share": 0.01}, {}, "leaves no visible patch or no hidden patch"),
]


@pytest.mark.parametrize(("arguments", "of", "words"), MISTAKES, ids=str)
def test_what_cannot_be_is_refused_with_what_can(arguments, of, words):
  name = of.get("name", "ViT-Ti/8")
  known = {} if name.startswith("Mixer") else VIT
  description = models.Description(Choice(name, known | {k: v for k, v in of.items() if k != "name"}), 32, 0)
  with pytest.raises(ConfigError, match=words):
    task(models.make_functional(description), **arguments)

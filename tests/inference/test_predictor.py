"""Tests of a model in Python: its accepted inputs, and its pure function for user code."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests import small_weights
from tests.image_files import encode, picture
from vit_jax import models
from vit_jax.data.images import ImageError
from vit_jax.inference import predictor
from vit_jax.schema import ConfigError

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def model(tmp_path_factory):
  labels = {str(i): name for i, name in enumerate(small_weights.CLASSES)}
  return predictor.load(small_weights.file(tmp_path_factory.mktemp("weights"), id2label=labels))


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
  path = tmp_path_factory.mktemp("photos") / "a.png"
  path.write_bytes(encode(picture(70, 50)))
  return path


def test_paths_images_and_arrays_of_one_image_give_equal_results(model, photo):
  opened = Image.open(photo)
  same = model.predict([photo, str(photo), opened, opened.convert("RGBA"), np.asarray(opened), opened])
  assert all(each == same[0] for each in same)
  alone = model.predict(photo)
  assert alone.names == same[0].names
  np.testing.assert_allclose(alone.probabilities, same[0].probabilities, rtol=1e-4)
  features = model.features([opened] * 3)
  assert features.shape == (3, 64) and model.features(photo).shape == (64,)
  stack = model.predict(np.stack([np.asarray(opened)] * 2))
  assert isinstance(stack, list) and len(stack) == 2


def test_pure_function_matches_in_a_user_s_jit(model, photo):
  square = model.square(photo)
  assert square.shape == (32, 32, 3) and square.dtype == np.uint8
  np.testing.assert_allclose(model.preprocess(photo), square / 127.5 - 1, atol=1e-6)  # mean and std are 0.5
  batch = jnp.stack([model.preprocess(photo)] * 2)
  assert batch.shape == (2, 32, 32, 3) and batch.dtype == jnp.float32
  probability = jax.jit(lambda params, x: jax.nn.softmax(model.logits(params, x)))(model.params, batch)[0]
  output = model.predict(photo)
  assert output.names == tuple(model.classes[i] for i in output.numbers)
  np.testing.assert_array_equal(np.argsort(-probability)[:5], output.numbers)
  np.testing.assert_allclose(np.sort(probability)[::-1][:5], output.probabilities, rtol=1e-3, atol=1e-6)


def test_pure_function_can_be_differentiated_mapped_and_compiled(model, photo):
  image = jnp.asarray(model.preprocess(photo))
  logits = jax.jit(model.logits)(model.params, image[None])

  def first(x):
    return model.logits(model.params, x[None])[0, 0]

  value, gradient = jax.jit(jax.value_and_grad(first))(image)
  np.testing.assert_allclose(value, logits[0, 0], rtol=1e-3, atol=1e-4)
  assert gradient.shape == image.shape and float(jnp.abs(gradient).max()) > 0
  mapped = jax.jit(jax.vmap(first))(jnp.stack([image, image]))
  np.testing.assert_allclose(mapped, [value, value], rtol=1e-3, atol=1e-4)


def test_attention_maps_are_available_by_capture(model, photo):
  captured = jax.jit(models.capture(model.logits, "blocks/*/attention/weights"))
  _, maps = captured(model.params, model.preprocess(photo)[None])
  assert set(maps) == {"blocks/0/attention/weights", "blocks/1/attention/weights"}
  for weights in maps.values():
    assert weights.shape == (1, 1, 17, 17)
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)


def test_bad_images_are_named(model, photo, tmp_path):
  (tmp_path / "torn.jpg").write_bytes(photo.read_bytes()[:60])
  for image, message in ((tmp_path / "torn.jpg", "torn.jpg: not a complete image"), ("none.jpg", "none.jpg: ")):
    with pytest.raises(ImageError, match=message):
      model.predict([photo, image])
  with pytest.raises(ImageError, match="Allowed: "):
    model.features(np.zeros((8, 8, 3)))
  with pytest.raises(ImageError, match="empty list"):
    model.predict([])


@pytest.mark.parametrize("of", ["patch", None, ["cls"]])
def test_unknown_kind_of_features_is_refused(model, of):
  with pytest.raises(ConfigError, match=r"of: .* is not a choice.* Allowed: head, cls, patches, cls_patches\.$"):
    model.features([], of=of)


def test_model_without_a_head_has_features(tmp_path, photo):
  headless = predictor.load(small_weights.file(tmp_path, small_weights.described(classes=0)))
  assert headless.classes == () and headless.features(photo).shape == (64,)
  with pytest.raises(ConfigError, match="no head"):
    headless.predict(photo)


def broken(model, name, value):
  """Returns the model with one value of a parameter replaced."""
  params = {**model.params, name: model.params[name].at[..., 1].set(value)}
  return dataclasses.replace(model, params=params)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_error_of_logits_that_are_not_finite_names_the_image(model, photo, value):
  with pytest.raises(ConfigError, match=rf"image {str(photo)!r}: output 'logits' is not finite"):
    broken(model, "head/bias", value).predict([photo])
  with pytest.raises(ConfigError, match="image 'number 0': output 'logits' is not finite"):
    broken(model, "head/bias", value).predict(Image.open(photo))


def test_features_that_are_not_finite_are_an_error(model, photo):
  with pytest.raises(ConfigError, match="is not finite"):
    broken(model, "norm/bias", np.inf).features([photo, photo])


def test_single_overflowing_image_is_named(model):
  grey, white = (np.full((32, 32, 3), value, np.uint8) for value in (127, 255))
  kernel = model.params["embedding/kernel"]
  overflowing = dataclasses.replace(model, params={**model.params, "embedding/kernel": kernel * 2e38})
  assert len(overflowing.predict([grey, grey])) == 2
  with pytest.raises(ConfigError, match="image 'number 2': output 'logits' is not finite"):
    overflowing.predict([grey, grey, white, grey])

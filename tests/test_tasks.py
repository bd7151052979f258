"""Classification: what is minimised and predicted, against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax import tasks

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 255, (6, 4, 4, 3)).astype(np.uint8)
LABELS = np.array([0, 3, 6, 6, 1, 2], np.int32)
PARAMS = {"w": DRAW.normal(size=(48, 7)).astype(np.float32)}


def apply(params, images, key):
  return images.reshape(len(images), -1) @ params["w"], {"mean": images.mean()}


def normalise(images):
  return images.astype(jnp.float32) / 255


def augment(key, images, labels):
  """Mixes each image with its neighbour, half and half."""
  images, targets = normalise(images), jnp.eye(7)[labels]
  return (images + images[::-1]) / 2, (targets + targets[::-1]) / 2


def task(**arguments):
  return tasks.classify(apply, normalise, augment, 7, **arguments)


def log_softmax(z):
  return z - z.max(1, keepdims=True) - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_cross_entropy_to_mixed_and_smoothed_targets(smoothing):
  t = task(label_smoothing=smoothing)
  examples = t.examples({"image": IMAGES, "label": LABELS}, None)
  loss, (metrics, statistics) = t.loss(PARAMS, examples, None)
  mixed = (IMAGES / 255.0 + IMAGES[::-1] / 255.0) / 2
  targets = (np.eye(7)[LABELS] + np.eye(7)[LABELS][::-1]) / 2 * (1 - smoothing) + smoothing / 7
  logits = mixed.reshape(6, -1) @ PARAMS["w"].astype(np.float64)
  np.testing.assert_allclose(loss, -(targets * log_softmax(logits)).sum(1).mean(), rtol=1e-5)
  assert metrics["top1"] == (logits.argmax(1) == targets.argmax(1)).mean()
  np.testing.assert_allclose(statistics["mean"], mixed.mean(), rtol=1e-5)


def test_the_sigmoid_loss_asks_every_class_by_itself():
  t = task(loss="sigmoid")
  found = t.predict(PARAMS, {"image": IMAGES, "label": LABELS})["loss"]
  p = 1 / (1 + np.exp(-(IMAGES / 255.0).reshape(6, -1) @ PARAMS["w"].astype(np.float64)))
  hot = np.eye(7)[LABELS]
  np.testing.assert_allclose(found, -(hot * np.log(p) + (1 - hot) * np.log1p(-p)).sum(1), rtol=1e-4)


def test_predictions_are_the_five_best_classes_without_augmentation_or_smoothing():
  found = task(label_smoothing=0.5).predict(PARAMS, {"image": IMAGES, "label": LABELS})
  logits = (IMAGES / 255.0).reshape(6, -1) @ PARAMS["w"].astype(np.float64)
  np.testing.assert_array_equal(found["best"], np.argsort(-logits, 1)[:, :5])
  np.testing.assert_allclose(found["loss"], -log_softmax(logits)[np.arange(6), LABELS], rtol=1e-5)


def test_fewer_than_five_classes_are_all_predicted():
  t = tasks.classify(lambda p, x, k: (x[:, 0, 0, :], {}), normalise, augment, 3)
  assert t.predict({}, {"image": IMAGES, "label": LABELS % 3})["best"].shape == (6, 3)

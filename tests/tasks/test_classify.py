"""Classification: what is minimised and predicted, against NumPy."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.stages import CONTEXT, supplied
from vit_jax import losses, models
from vit_jax.schema import Choice, ConfigError
from vit_jax.tasks.classify import Classify

pytestmark = pytest.mark.heavy

DRAW = np.random.default_rng(0)
IMAGES = DRAW.integers(0, 255, (6, 4, 4, 3)).astype(np.uint8)
LABELS = np.array([0, 3, 6, 6, 1, 2], np.int32)
PARAMS = {"w": DRAW.normal(size=(48, 7)).astype(np.float32)}


@dataclasses.dataclass(frozen=True)
class Linear:
  """A linear map of pixels, with a statistic; as a task sees a model."""

  logits: np.ndarray | None = None
  patch: int | None = None
  description: models.Description = models.Description(Choice("linear"), 4, 7)

  def outputs(self, params, images, key=None):
    features = images.reshape(len(images), -1)
    logits = features @ params["w"] if self.logits is None else jnp.asarray(self.logits)
    return models.Output(images, features, logits, {"head": logits}), {"mean": jnp.mean(images)}


def normalise(images):
  return images.astype(jnp.float32) / 255


KEY = jax.random.key(0)


def mix(key, images, targets, draws, step):
  """Mixes each image with its neighbour, half and half."""
  images = normalise(images)
  return (images + images[::-1]) / 2, (targets + targets[::-1]) / 2


def plain(key, images, targets, draws, step):
  return normalise(images), targets


def task(augment=mix, model=Linear(), **arguments):
  return Classify(supplied(model, augment), **arguments)


def batch(labels=LABELS):
  return {"image": IMAGES, "label": labels, "draw": np.arange(6, dtype=np.uint32)}


def log_softmax(z):
  return z - z.max(1, keepdims=True) - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_cross_entropy_to_mixed_and_smoothed_targets(smoothing):
  t = task(label_smoothing=smoothing)
  examples = t.examples(batch(), CONTEXT, KEY)
  loss, (metrics, statistics) = t.objective(PARAMS, CONTEXT, examples, None)
  mixed = (IMAGES / 255.0 + IMAGES[::-1] / 255.0) / 2
  targets = (np.eye(7)[LABELS] + np.eye(7)[LABELS][::-1]) / 2 * (1 - smoothing) + smoothing / 7
  logits = mixed.reshape(6, -1) @ PARAMS["w"].astype(np.float64)
  np.testing.assert_allclose(loss, -(targets * log_softmax(logits)).sum(1).mean(), rtol=1e-5)
  assert metrics["top1"] == (logits.argmax(1) == targets.argmax(1)).mean()
  np.testing.assert_allclose(statistics["mean"], mixed.mean(), rtol=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_labels_of_a_teacher_count_in_parts(loss):
  share = np.tile(np.array([0.6, 0.2], np.float32), (6, 1))
  labels = np.stack([LABELS, (LABELS + 1) % 7], 1)
  found = task(plain, loss=loss).examples(batch(labels) | {"share": share}, CONTEXT, KEY)["target"]
  expected = 0.6 * np.eye(7)[LABELS] + 0.2 * np.eye(7)[(LABELS + 1) % 7]
  np.testing.assert_allclose(found, expected / 0.8 if loss == "softmax" else expected, atol=1e-6)


def test_the_sigmoid_loss_asks_every_class_by_itself():
  t = task(loss="sigmoid")
  found = t.predict(PARAMS, normalise(IMAGES), LABELS)["loss"]
  p = 1 / (1 + np.exp(-(IMAGES / 255.0).reshape(6, -1) @ PARAMS["w"].astype(np.float64)))
  hot = np.eye(7)[LABELS]
  np.testing.assert_allclose(found, -(hot * np.log(p) + (1 - hot) * np.log1p(-p)).sum(1), rtol=1e-4)


def test_binary_cross_entropy_is_a_mean_over_classes_with_the_targets_of_deit3():
  def expected(targets):
    p = 1 / (1 + np.exp(-np.asarray(mixed["image"], np.float64).reshape(6, -1) @ PARAMS["w"]))
    return -(targets * np.log(p) + (1 - targets) * np.log1p(-p)).mean()

  soft, whole = task(loss="mean_sigmoid"), task(loss="mean_sigmoid", target_threshold=0.0)
  mixed = whole.examples(batch(), CONTEXT, KEY)
  np.testing.assert_array_equal(mixed["target"].max(1), [0.5, 0.5, 1.0, 1.0, 0.5, 0.5])
  assert float(whole.objective(PARAMS, CONTEXT, mixed, None)[0]) == pytest.approx(
    expected(np.asarray(mixed["target"]) > 0), 1e-5
  )
  assert float(soft.objective(PARAMS, CONTEXT, mixed, None)[0]) == pytest.approx(
    expected(np.asarray(mixed["target"])), 1e-5
  )
  # A test image has whole targets anyway.
  found = [t.predict(PARAMS, normalise(IMAGES), LABELS)["loss"] for t in (soft, whole)]
  np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"target_threshold": 0.0}, r"^target_threshold: a threshold cannot be used with softmax.*mean_sigmoid"),
    ({"target_threshold": 0.0, "loss": "sigmoid", "label_smoothing": 0.1}, "label_smoothing=0.1 raises every class"),
  ],
)
def test_a_threshold_that_means_nothing_is_refused(arguments, message):
  with pytest.raises(ConfigError, match=message):
    task(**arguments)


def test_predictions_are_the_five_best_classes_without_augmentation_or_smoothing():
  found = task(label_smoothing=0.5).predict(PARAMS, normalise(IMAGES), LABELS)
  logits = (IMAGES / 255.0).reshape(6, -1) @ PARAMS["w"].astype(np.float64)
  np.testing.assert_array_equal(found["best"], np.argsort(-logits, 1)[:, :5])
  np.testing.assert_allclose(found["loss"], -log_softmax(logits)[np.arange(6), LABELS], rtol=1e-5)


def test_fewer_than_five_classes_are_all_predicted():
  three = Linear(np.eye(6, 3), description=models.Description(Choice("linear"), 4, 3))
  assert task(model=three).predict({}, normalise(IMAGES), LABELS % 3)["best"].shape == (6, 3)


@pytest.mark.parametrize("loss", ["softmax", "sigmoid"])
def test_only_logits_of_the_wanted_classes_compete(loss):
  classes = [0, 1, 2, 3, 6]
  column = {name: i for i, name in enumerate(classes)}
  found = task(loss=loss).predict(PARAMS, normalise(IMAGES), LABELS, classes)
  alone = Linear(description=models.Description(Choice("linear"), 4, len(classes)))
  columns = {"w": PARAMS["w"][:, classes]}
  expected = task(model=alone, loss=loss).predict(columns, normalise(IMAGES), np.vectorize(column.get)(LABELS))
  np.testing.assert_array_equal(found["best"], np.array(classes)[expected["best"]])
  for figure in ("confidence", "loss"):
    np.testing.assert_allclose(found[figure], expected[figure], rtol=1e-5)


def test_augmentation_gets_all_that_it_may_follow_from():
  given = []
  t = task(augment=lambda *arguments: given.append(arguments) or plain(*arguments))
  t.examples(batch(), CONTEXT._replace(step=17), KEY)
  key, images, targets, draws, step = given[0]
  assert (key, step) == (KEY, 17)
  np.testing.assert_array_equal(images, IMAGES)
  np.testing.assert_array_equal(targets, np.eye(7)[LABELS])
  np.testing.assert_array_equal(draws, np.arange(6))


# Several labels an image.

LISTS = np.array([[0, 1, -1], [3, -1, -1], [6, 2, 0], [6, 6, -1], [-1, -1, -1], [2, 4, 5]], np.int32)
HOT = np.array([[v in row for v in range(7)] for row in LISTS.tolist()], float)


def test_a_sigmoid_has_a_target_of_one_for_each_label():
  t = task(augment=plain, loss="sigmoid")
  np.testing.assert_array_equal(t.examples(batch(LISTS), CONTEXT, KEY)["target"], HOT)
  p = 1 / (1 + np.exp(-(IMAGES / 255.0).reshape(6, -1) @ PARAMS["w"].astype(np.float64)))
  expected = -(HOT * np.log(p) + (1 - HOT) * np.log1p(-p)).sum(1)
  np.testing.assert_allclose(t.predict(PARAMS, normalise(IMAGES), LISTS)["loss"], expected, rtol=1e-4)


def test_a_softmax_shares_one_among_the_labels():
  t = task(augment=plain)
  shares = HOT / np.maximum(HOT.sum(1, keepdims=True), 1)
  np.testing.assert_allclose(t.examples(batch(LISTS), CONTEXT, KEY)["target"], shares, rtol=1e-6)
  logits = (IMAGES / 255.0).reshape(6, -1) @ PARAMS["w"].astype(np.float64)
  found = t.predict(PARAMS, normalise(IMAGES), LISTS)["loss"]
  np.testing.assert_allclose(found, -(shares * log_softmax(logits)).sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("loss", losses.LOSSES)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_top1_in_training_is_any_of_the_labels(loss, smoothing):
  t = task(augment=plain, loss=loss, label_smoothing=smoothing)
  best = [1, 3, 5, 6, 0, 4]  # right, right, wrong, right, no label, right
  logits = np.eye(7)[best]
  predicting = task(plain, Linear(logits), loss=loss, label_smoothing=smoothing)
  _, (metrics, _) = predicting.objective({}, CONTEXT, t.examples(batch(LISTS), CONTEXT, KEY), None)
  assert metrics["top1"] == pytest.approx(4 / 6)

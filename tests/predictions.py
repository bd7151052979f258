"""Predictions that nobody made."""

import numpy as np

from vit_jax.evals import metrics


def drawn(seed, images, classes, present, most=None):
  """Predictions of random logits, rounded so that some are equal, and with up to `most` labels an image."""
  draw = np.random.default_rng(seed)
  logits = draw.normal(size=(images, classes)).round(1).astype(np.float32)
  label = draw.integers(0, present, images)
  logits[np.arange(images), label] += draw.integers(0, 4, images)
  if most is not None:
    label = np.where(np.arange(most) < draw.integers(0, most + 1, (images, 1)), 0, -1)
    label[label == 0] = draw.integers(0, present, np.count_nonzero(label == 0))  # some classes twice
  noise = draw.uniform(0, 0.01, logits.shape)  # top-k of scikit-learn breaks ties in its own way
  best = np.argsort(-(logits + noise), axis=1)[:, : min(5, classes)].astype(np.int32)
  return metrics.Predictions(
    position=np.arange(images),
    label=label,
    best=best,
    confidence=draw.uniform(1 / classes, 1, images).astype(np.float32),
    loss=draw.exponential(size=images).astype(np.float32),
    logits=logits,
  )


def rows(predictions, chosen):
  """The chosen images, repeated as often as they are chosen."""
  return metrics.Predictions(*(None if x is None else x[chosen] for x in predictions))

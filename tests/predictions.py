"""Random predictions."""

import numpy as np

from vit_jax.evals import metrics


def drawn(seed, images, classes, present, most=None):
  """Returns predictions of random logits, rounded so that some are equal, with up to `most` labels per image."""
  draw = np.random.default_rng(seed)
  logits = draw.normal(size=(images, classes)).round(1).astype(np.float32)
  label = draw.integers(0, present, images)
  logits[np.arange(images), label] += draw.integers(0, 4, images)
  if most is not None:
    label = np.where(np.arange(most) < draw.integers(0, most + 1, (images, 1)), 0, -1)
    label[label == 0] = draw.integers(0, present, np.count_nonzero(label == 0))  # some classes twice
  noise = draw.uniform(0, 0.01, logits.shape)  # scikit-learn's top-k breaks ties differently
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
  """Returns the predictions of the chosen images, which may be repeated."""
  return metrics.Predictions(*(None if x is None else x[chosen] for x in predictions))

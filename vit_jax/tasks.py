"""Stages as values: what is drawn from a batch, what is minimised, what is predicted.

A model enters as `apply(params, images, key) -> (logits, statistics)`. Key None means evaluation; in training the
statistics {path: array} are those entries of params that the forward pass moves, the running ones of batch norms.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import losses
from vit_jax.schema import Probability


class Task(NamedTuple):
  """Three pure functions. Arrays of `examples` and of a batch have the batch axis in front."""

  examples: Callable  # (batch, key, step) -> examples, from which micro-batches are cut
  loss: Callable  # (params, examples, key) -> (scalar, ({name: scalar}, statistics))
  predict: Callable  # (params, batch) -> {name: one row for each image}


def classify(
  apply: Callable,
  normalise: Callable,
  augment: Callable,
  classes: int,
  *,
  loss: Literal["softmax", "sigmoid"] = "softmax",
  label_smoothing: Probability = 0.0,
) -> Task:
  """Classification: cross-entropy to soft targets [B, V]; predicts the best five classes and more.

  An image with several labels has a target of one for each with the sigmoid loss, and equal shares of one with softmax.
  """
  cross_entropy = losses.LOSSES[loss]

  def hard(labels):
    targets = losses.one_hot(labels, classes)
    return losses.shared(targets) if loss == "softmax" else targets

  def examples(batch, key, step):
    images, targets = augment(key, batch["image"], hard(batch["label"]), batch["draw"], step)
    return {"image": images, "target": losses.smooth(targets, label_smoothing)}

  def objective(params, examples, key):
    logits, statistics = apply(params, examples["image"], key)
    hits = losses.best_is_positive(logits, examples["target"])
    return jnp.mean(cross_entropy(logits, examples["target"])), ({"top1": jnp.mean(hits)}, statistics)

  def predict(params, batch):
    logits, _ = apply(params, normalise(batch["image"]), None)
    _, best = jax.lax.top_k(logits, min(5, classes))
    confidence = jnp.max(losses.PROBABILITIES[loss](logits), axis=-1)
    return {
      "loss": cross_entropy(logits, hard(batch["label"])),
      "best": best,
      "confidence": confidence,
      "logits": logits,
    }

  return Task(examples, objective, predict)


TASKS = {"classify": classify}

"""Contexts for tests that use a task without a run."""

import jax.numpy as jnp

from vit_jax.schema import Duration
from vit_jax.tasks.task import Context, TaskContext

CONTEXT = Context(0, {}, {})  # the first step, without frozen models and without an average


def supplied(model=None, augment=None, patch=None, open_frozen_model=None, pixels=None, **others):
  """Returns the context of a task in a run of ten steps. Normalised images have pixels from 0 to 1."""
  values = {
    "normalise": lambda images: images.astype(jnp.float32) / 255,
    "normalised": {},
    "total": 10,
    "count_steps": lambda duration: Duration(duration).count_steps(1, 1, 10),
  }
  return TaskContext(model, patch, lambda patch: augment, open_frozen_model, pixels, **values | others)

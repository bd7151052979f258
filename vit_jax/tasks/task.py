"""What every stage of training is: the protocol that the trainer relies on, and what the run supplies to a stage."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import numpy as np

from vit_jax import models


class Frozen(NamedTuple):
  """A model whose weights a task reads and nothing trains, such as a teacher.

  Its weights are neither averaged nor decayed, and no checkpoint holds them: it has their digest.
  """

  model: models.Model
  shapes: dict[str, jax.ShapeDtypeStruct]  # with shardings
  load: Callable[[], dict[str, np.ndarray]]  # reads the weights, on the host
  key: str  # of the config, whose value is `path`
  path: str


class Supplied(NamedTuple):
  """What a run supplies to its task."""

  model: models.Model  # the one that is trained
  patch: int | None  # side of the patches that its images may come cut into
  augment: Callable  # (patch) -> (key, images uint8, targets, draws, step) -> (images, targets); see `data.augment`
  freeze: Callable[[str, str, bool], Frozen]  # (key of the config, path of weights, their average or not)


class Task(Protocol):
  """A stage of training: pure functions of parameters by path. Arrays of a batch have the batch axis in front."""

  headline: str  # the metric that is shown beside the loss
  patch: int | None  # side of the patches that images come cut into; None: whole images
  frozen: Frozen | None  # asked for where the task trains, and not where it only predicts

  def init(self, key: jax.Array) -> dict[str, jax.Array]:
    """The task's own parameters, trained beside those of the model: a decoder, a mask token. Paths begin with task/."""

  @property
  def sharding(self) -> models.Rows:
    """Rows of a sharding table for these; see `models.sharding`."""

  def examples(self, batch: dict, frozen: dict, key: jax.Array, step: jax.Array) -> dict[str, jax.Array]:
    """What is learned from, which micro-batches are cut from: no gradient passes through it."""

  def objective(self, params: dict, examples: dict, key: jax.Array) -> tuple[jax.Array, tuple[dict, dict]]:
    """The scalar to minimise, and ({metric: scalar}, {path: statistic that the model has moved})."""

  def predict(self, params: dict, images: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    """Rows of `metrics.Predictions` for normalised images [B, H, W, C] and their labels."""

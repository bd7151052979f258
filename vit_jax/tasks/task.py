"""What every stage of training is: the protocol that the trainer relies on, and what the run supplies to a stage."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np

from vit_jax import models
from vit_jax.shapes import Array, Count, Float, Integer, PRNGKey, Shaped, Tensor

Params = Mapping[str, Shaped[Tensor, "..."]]  # by path
Rows = Mapping[str, Shaped[Tensor, "B ..."]]  # of a batch: the batch axis is in front
Labels = Integer[Tensor, " B"] | Integer[Tensor, "B K"]
Objective = tuple[Float[Array, ""], tuple[dict[str, Float[Array, ""]], dict[str, Array]]]


class Frozen(NamedTuple):
  """A model whose weights a task reads and nothing trains, such as a teacher.

  Its weights are neither averaged nor decayed, and no checkpoint holds them: it has their digest.
  """

  model: models.Model
  shapes: dict[str, jax.ShapeDtypeStruct]  # with shardings
  load: Callable[[], dict[str, np.ndarray]]  # reads the weights, on the host
  key: str  # of the config, whose value is `path`
  path: str
  notes: Sequence[str] = ()  # for the user, on how the weights are read


class Supplied(NamedTuple):
  """What a run supplies to its task."""

  model: models.Model  # the one that is trained
  patch: int | None  # side of the patches that its images may come cut into
  augment: Callable  # (patch) -> (key, images uint8, targets, draws, step) -> (images, targets); see `data.augment`
  freeze: Callable[[str, str, bool | None, str | None], Frozen]  # (key of the config, path, ema, prefix)
  pixels: Callable  # normalised images, or such cut into patches -> values 0..1, float32
  normalised: Mapping[str, Sequence[float]] = {}  # mean and std with which the images are normalised


class Task(Protocol):
  """A stage of training: pure functions of parameters by path."""

  headline: str  # the metric that is shown beside the loss
  patch: int | None  # side of the patches that images come cut into; None: whole images
  classes: bool  # whether it learns classes; else the model has no head
  frozen: Frozen | None  # asked for where the task trains, and not where it only predicts

  def init(self, key: PRNGKey) -> Params:
    """The task's own parameters, trained beside those of the model: a decoder, a mask token. Paths begin with task/."""

  @property
  def sharding(self) -> models.Rows:
    """Rows of a sharding table for these; see `models.sharding`."""

  def examples(self, batch: Rows, frozen: Params, key: PRNGKey, step: Count) -> Rows:
    """What is learned from, which micro-batches are cut from: no gradient passes through it."""

  def objective(self, params: Params, examples: Rows, key: PRNGKey | None) -> Objective:
    """The scalar to minimise, and ({metric: scalar}, {path: statistic that the model has moved})."""

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Rows:
    """Rows of `metrics.Predictions` for normalised images and their labels; only logits of these `classes` compete."""

"""The protocol that the trainer requires of every task, and the objects that a run supplies to its task."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import jax
import numpy as np

from vit_jax import models
from vit_jax.data.augment import Augmentation
from vit_jax.shapes import Array, Count, Float, Integer, PRNGKey, Shaped, Tensor

Params = Mapping[str, Shaped[Tensor, "..."]]  # by path
Batch = Mapping[str, Shaped[Tensor, "B ..."]]  # of a batch: the first axis is the batch axis
Labels = Integer[Tensor, " B"] | Integer[Tensor, "B K"]
Objective = tuple[Float[Array, ""], tuple[dict[str, Float[Array, ""]], dict[str, Array]]]


class FrozenModel(NamedTuple):
  """A model with weights that a task reads but does not train, such as a teacher.

  The weights are neither averaged nor decayed. A checkpoint stores only their digest.

  Attributes:
    model: the model.
    shapes: shapes of the weights by path, with shardings.
    load: function that reads the weights into host memory.
    key: key of the config that contains `path`.
    path: weight file or workdir.
    notes: messages for the user about how the weights are read.
  """

  model: models.Model
  shapes: dict[str, jax.ShapeDtypeStruct]
  load: Callable[[], dict[str, np.ndarray]]
  key: str
  path: str
  notes: Sequence[str] = ()


class TaskContext(NamedTuple):
  """The objects that a run supplies to its task.

  Attributes:
    model: the model to train.
    patch: side of the patches in pixels that images may be cut into, or None if the model requires whole images.
    augment: function from `patch` to an augmentation. The augmentation maps (key, uint8 images, targets, draws, step)
      to (images, targets). See `data.augment`.
    freeze: function from (key of the config, path, ema, prefix) to a frozen model.
    pixels: function from normalised images or patches to pixel values in 0..1, in float32.
    normalised: "mean" and "std" with which the images are normalised.
  """

  model: models.Model
  patch: int | None
  augment: Callable[[int | None], Augmentation]
  freeze: Callable[[str, str, bool | None, str | None], FrozenModel]
  pixels: Callable[[Array], Array]
  normalised: Mapping[str, Sequence[float]] = {}


class Task(Protocol):
  """A stage of training: a set of pure functions of parameters by path.

  Attributes:
    headline: name of the metric that is shown next to the loss.
    patch: side of the patches in pixels that images are cut into. None means whole images.
    classes: true if the task learns classes. Otherwise the model has no head.
    frozen: the frozen model of the task, or None. It is read for training, but not for prediction.
  """

  headline: str
  patch: int | None
  classes: bool
  frozen: FrozenModel | None

  def init(self, key: PRNGKey) -> Params:
    """Returns the initial values of the task's own parameters, such as a decoder or a mask token.

    They are trained together with the parameters of the model. Their paths start with "task/".

    Args:
      key: random key.
    """

  @property
  def sharding(self) -> models.ShardingRules:
    """Returns the rows of a sharding table for the task's own parameters. See `models.sharding`."""

  def examples(self, batch: Batch, frozen: Params, key: PRNGKey, step: Count) -> Batch:
    """Returns the examples to learn from.

    Micro-batches are slices of these examples. Gradients do not pass through this function.

    Args:
      batch: arrays of the batch by name.
      frozen: weights of the frozen model by path, empty if the task has no frozen model.
      key: random key of the step.
      step: number of the step.
    """

  def objective(self, params: Params, examples: Batch, key: PRNGKey | None) -> Objective:
    """Computes the loss of a batch of examples.

    Args:
      params: all parameters by path.
      examples: the result of `examples`.
      key: random key, or None for evaluation.

    Returns:
      The scalar to minimise, and a pair of {metric: scalar} and {path: statistic that the model has updated}.
    """

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Batch:
    """Returns the rows of `metrics.Predictions` for a batch.

    Args:
      params: all parameters by path.
      images: normalised images.
      labels: labels (B,) or (B, K).
      classes: classes to choose from. None means all classes.
    """

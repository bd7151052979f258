"""The protocol that the trainer requires of every task, and the objects that a run supplies to its task."""

import abc
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

import jax
import numpy as np

from vit_jax import models
from vit_jax.data.augment import Augmentation, Channels
from vit_jax.data.views import Fields
from vit_jax.schema import Duration
from vit_jax.shapes import Array, Count, Float, Integer, PRNGKey, Shaped, Tensor

Params = Mapping[str, Shaped[Tensor, "..."]]  # by path
Batch = Mapping[str, Shaped[Tensor, "B ..."]]  # of a batch: the first axis is the batch axis
Labels = Integer[Tensor, " B"] | Integer[Tensor, "B K"]
Objective = tuple[Float[Array, ""], tuple[dict[str, Float[Array, ""]], dict[str, Array]]]


class Context(NamedTuple):
  """The values that a task reads in a step but does not differentiate.

  Attributes:
    step: number of completed steps, int32 scalar.
    frozen_weights: {name: parameters by path} of the task's frozen models.
    average: moving average of all parameters by path. Empty unless `Task.uses_average`.
  """

  step: Count
  frozen_weights: Mapping[str, Params]
  average: Params


class ContextShapes(NamedTuple):
  """The shapes of the values of a `Context`, under the same attribute names."""

  step: jax.ShapeDtypeStruct
  frozen_weights: Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]
  average: Mapping[str, jax.ShapeDtypeStruct]


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
    normalised: "mean" and "std" of the images with which the weights were trained, as far as they are known.
  """

  model: models.Model
  shapes: dict[str, jax.ShapeDtypeStruct]
  load: Callable[[], dict[str, np.ndarray]]
  key: str
  path: str
  notes: Sequence[str] = ()
  normalised: Mapping[str, Sequence[float]] = {}


# (key of the config, path, ema, prefix, sharding rules of task parameters) -> frozen model
FrozenModelOpener = Callable[[str, str, bool | None, str | None, models.ShardingRules], FrozenModel]


class TaskContext(NamedTuple):
  """The objects that a run supplies to its task.

  Attributes:
    model: the model to train.
    patch: side of the patches in pixels that images may be cut into, or None if the model requires whole images.
    augment: function from `patch` to an augmentation. The augmentation maps (key, uint8 images, targets, draws, step)
      to (images, targets). See `data.augment`.
    open_frozen_model: function from (key of the config, path, ema, prefix, rules) to a frozen model. If
      sharding rules are given, the frozen model also contains each task parameter in the file that matches a rule.
    pixels: function from normalised images or patches to pixel values in 0..1, in float32.
    normalise: function from uint8 images or patches to the normalised images that the model takes.
    normalised: "mean" and "std" with which the images are normalised.
    total: number of steps of the run.
    count_steps: function that converts a duration to a number of steps.
  """

  model: models.Model
  patch: int | None
  augment: Callable[[int | None], Augmentation]
  open_frozen_model: FrozenModelOpener
  pixels: Callable[[Tensor], Array]
  normalise: Callable[[Tensor], Array]
  normalised: Mapping[str, Channels]
  total: int
  count_steps: Callable[[Duration], int]


class Task(Protocol):
  """A stage of training: a set of pure functions of parameters by path.

  Tasks are subclasses, which inherit the members with a default: no parameters, frozen models and statistics.

  Attributes:
    classes: true if the task learns classes. Otherwise the model has no head.
    cuts_views: true if `fields` contains views, which the task cuts and augments by its own rules. Values for
      `data.crop` and the augmentation are then refused.
  """

  classes: ClassVar[bool]
  cuts_views: ClassVar[bool] = False

  @property
  @abc.abstractmethod
  def headline(self) -> str:
    """Returns the name of the metric that is shown next to the loss."""

  @property
  @abc.abstractmethod
  def fields(self) -> Fields:
    """Returns the arrays of a batch that the task needs."""

  @property
  def frozen_models(self) -> Mapping[str, FrozenModel]:
    """Returns {name: frozen model}, such as a teacher. Their weights are read for training, but not for prediction."""
    return {}

  @property
  def constants(self) -> Mapping[str, float]:
    """Returns {path: value} of parameters that this task replaces by constants, such as the scale of a last layer.

    Heads of other weights are used only if these parameters have the same values.
    """
    return {}

  @property
  def statistics(self) -> frozenset[str]:
    """Returns the paths of the task's own parameters that `objective` updates instead of the optimizer.

    An example is a centre.
    """
    return frozenset()

  @property
  def uses_average(self) -> bool:
    """Returns true if `objective` reads the moving average of the parameters. The run must then have one."""
    return False

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Returns the initial values of the task's own parameters, such as a decoder or a mask token.

    They are trained together with the parameters of the model, except for `statistics`. Their paths start with "task/".

    Args:
      key: random key.
    """
    return {}

  @property
  def sharding(self) -> models.ShardingRules:
    """Returns the rows of a sharding table for the task's own parameters. See `models.find_sharding`."""
    return ()

  def check_metrics(self, means: Mapping[str, float]) -> str | None:
    """Returns a warning if the metrics of a part of the run show a problem that the loss does not show.

    Args:
      means: mean of "loss" and of each metric of `objective` over some steps, by name.
    """
    return None

  @abc.abstractmethod
  def examples(self, batch: Batch, context: Context, key: PRNGKey) -> Batch:
    """Returns the examples to learn from.

    Micro-batches are slices of these examples. Gradients do not pass through this function.

    Args:
      batch: arrays of the batch by name, see `fields`.
      context: values that the task does not differentiate.
      key: random key of the step.
    """

  @abc.abstractmethod
  def objective(self, params: Params, context: Context, examples: Batch, key: PRNGKey | None) -> Objective:
    """Computes the loss of a batch of examples.

    Gradients flow only through `params`.

    Args:
      params: all parameters by path.
      context: values that the task does not differentiate.
      examples: the result of `examples`.
      key: random key, or None for evaluation.

    Returns:
      The scalar to minimise, and a pair of {metric: scalar} and {path: updated statistic} of the model and the task.
      The step averages all of them over micro-batches.
    """

  @abc.abstractmethod
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

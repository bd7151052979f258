"""Distillation: a student learns from labels and from a teacher's predictions of the same images (Touvron et al. 2021).

    --config.task.name=distill --config.task.teacher=PATH [--config.task.targets.name=soft]

PATH is a file of weights or a workdir, as `config.init.from` takes them. A student with a distillation token learns the
labels with one head and the teacher with the other; another student learns both with its one head.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp

from vit_jax import losses, models
from vit_jax.data import augment
from vit_jax.data.augment import Channels, Scales
from vit_jax.schema import Choice, ConfigError, Fraction, Positive, Probability, amount, make
from vit_jax.shapes import Array, Count, Float, PRNGKey, Tensor
from vit_jax.tasks.classify import Classify
from vit_jax.tasks.task import Frozen, Labels, Objective, Params, Rows, Supplied


def hard() -> Callable:
  """Cross-entropy to the teacher's best class (equation 3 of the paper)."""

  def divergence(student: Float[Tensor, "B V"], teacher: Float[Tensor, "B V"]) -> Float[Array, " B"]:
    best = jax.nn.one_hot(jnp.argmax(teacher, -1), teacher.shape[-1], dtype=jnp.float32)
    return losses.softmax_cross_entropy(student, best)

  return divergence


def soft(*, temperature: Positive = 3.0) -> Callable:
  """Kullback-Leibler divergence from the teacher's probabilities at a temperature, times its square (equation 2).

  The mean over images, as the paper has it; DeiT's code divides by the number of classes besides.
  """

  def divergence(student: Float[Tensor, "B V"], teacher: Float[Tensor, "B V"]) -> Float[Array, " B"]:
    return temperature**2 * losses.kl_divergence(teacher / temperature, student / temperature)

  return divergence


TARGETS = {"hard": hard, "soft": soft}


@dataclasses.dataclass(frozen=True)
class Distill:
  """(1 - weight) times the loss of classification + weight times the distance of the student from the teacher.

  Args:
    teacher: file of weights or workdir; any model with as many classes, at any resolution. It sees the very images
      that the student sees, augmented alike, but normalised as in its own training.
    ema: true takes averaged weights, false raw ones. By default averaged ones of a file that has them, and raw ones of
      a workdir.
    prefix: the beginning of the names to read, of a file with several models.
    teacher_mean: with which the teacher's images are normalised. The default is that of the teacher's file or run. None
      takes that of the student's images.
    teacher_std: the standard deviation, likewise.
    targets: what is learned from the teacher: `hard`, its best class, or `soft`, its probabilities.
    weight: of the teacher's part. The paper takes 0.5 with hard targets, 0.1 with soft ones at temperature 3.
    loss: of the labels; as classification has it.
    label_smoothing: of the labels.
  """

  supplied: Supplied
  _: dataclasses.KW_ONLY
  teacher: str
  ema: bool | None = None
  prefix: str | None = None
  teacher_mean: Channels | None = None
  teacher_std: Scales | None = None
  targets: Annotated[Choice, TARGETS] = Choice("hard")
  weight: Fraction = 0.5
  loss: Literal["softmax", "sigmoid", "mean_sigmoid"] = "softmax"
  label_smoothing: Probability = 0.0

  headline: ClassVar[str] = "top1"
  classes: ClassVar[bool] = True
  sharding: ClassVar[models.Rows] = ()

  @functools.cached_property
  def labels(self) -> Classify:
    """The part that learns from labels, and all that is predicted."""
    return Classify(self.supplied, loss=self.loss, label_smoothing=self.label_smoothing)

  @functools.cached_property
  def frozen(self) -> Frozen:
    """The teacher, of which only names and shapes are read here; ConfigError for one with other classes."""
    frozen = self.supplied.freeze("task.teacher", self.teacher, self.ema, self.prefix)
    classes = self.supplied.model.description.classes
    if frozen.model.description.classes != classes:
      raise ConfigError(
        f"{self.teacher} has {amount(frozen.model.description.classes, 'class', 'classes')}, the "
        f"data {classes}; take a teacher that was trained on them",
        "config.task.teacher",
      )
    return frozen

  @property
  def patch(self) -> int | None:
    """Images come cut where both models take them so."""
    return self.supplied.patch if self.supplied.patch == self.frozen.model.patch else None

  def init(self, key: PRNGKey) -> Params:
    """No parameters beside the model's."""
    return {}

  def examples(self, batch: Rows, frozen: Params, key: PRNGKey, step: Count) -> Rows:
    """Those of classification, and the teacher's logits [B, V]."""
    examples = self.labels.augmented(batch, key, step, self.patch)
    outputs, _ = self.frozen.model.outputs(frozen, self._of_teacher(examples["image"]), None)
    return examples | {"teacher": outputs.logits}

  def _of_teacher(self, images):
    """Returns the images normalised as those of the teacher; unchanged, bit by bit, if both are normalised alike."""
    if self.teacher_mean is None and self.teacher_std is None:
      return images
    own, names = self.supplied.normalised, ("mean", "std")
    given = dict(zip(names, (self.teacher_mean, self.teacher_std), strict=True))
    theirs = {name: tuple(own[name] if given[name] is None else given[name]) for name in names}
    if theirs == {name: tuple(own[name]) for name in names}:
      return images
    return augment.normalise(255 * self.supplied.pixels(images), images.dtype, **theirs)

  def objective(self, params: Params, examples: Rows, key: PRNGKey | None) -> Objective:
    """The loss, and of all heads together top-1 and the share of images for which the teacher says the same."""
    outputs, statistics = self.supplied.model.outputs(params, examples["image"], key)
    labels_head = outputs.heads.get("head", outputs.logits)
    teacher_head = outputs.heads.get("head_distillation", outputs.logits)
    divergence = make(self.targets, TARGETS)
    loss = (1 - self.weight) * self.labels.cross_entropy(labels_head, examples["target"])
    loss += self.weight * divergence(teacher_head, examples["teacher"])
    # The best class of a teacher without finite logits would be class 0. NaN stops the run.
    known = jnp.isfinite(examples["teacher"]).all(-1)
    loss = jnp.where(known, loss, jnp.nan)
    agree = jnp.argmax(outputs.logits, -1) == jnp.argmax(examples["teacher"], -1)
    metrics = {
      "top1": jnp.mean(losses.best_is_positive(outputs.logits, examples["target"])),
      "teacher_agreement": jnp.mean(jnp.where(known, agree, jnp.nan)),
    }
    return jnp.mean(loss), (metrics, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Rows:
    """As classification: the teacher is not asked."""
    return self.labels.predict(params, images, labels, classes)

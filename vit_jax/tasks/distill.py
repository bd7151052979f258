"""Distillation: a student learns from labels and from a teacher's predictions (Touvron et al. 2021).

    --config.task.name=distill --config.task.teacher=PATH [--config.task.targets.name=soft]

PATH is a weight file or a workdir, as for `config.init.from`. A student with a distillation token has two heads: one
learns the labels, the other learns from the teacher. Any other student learns both with its single head.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal

import jax
import jax.numpy as jnp

from vit_jax import losses
from vit_jax.data import augment
from vit_jax.data.augment import Channels, Scales
from vit_jax.data.views import Fields
from vit_jax.schema import Choice, ConfigError, Fraction, Positive, Probability, format_amount, make
from vit_jax.shapes import Array, Float, Num, PRNGKey, Tensor
from vit_jax.tasks.classify import Classify
from vit_jax.tasks.task import Batch, Context, FrozenModel, Labels, Objective, Params, Task, TaskContext

Divergence = Callable[[Tensor, Tensor], Array]  # (student logits, teacher logits) -> divergence of each image


def hard() -> Divergence:
  """Returns the divergence "hard": cross-entropy to the teacher's best class (equation 3 of the paper).

  Returns:
    A function of student and teacher logits (B, V) that returns the divergence of each image (B,).
  """

  def divergence(student: Float[Tensor, "B V"], teacher: Float[Tensor, "B V"]) -> Float[Array, " B"]:
    best = jax.nn.one_hot(jnp.argmax(teacher, -1), teacher.shape[-1], dtype=jnp.float32)
    return losses.softmax_cross_entropy(student, best)

  return divergence


def soft(*, temperature: Positive = 3.0) -> Divergence:
  """Returns the divergence "soft": Kullback-Leibler divergence at a temperature, multiplied by temperature squared.

  The divergence is KL(teacher || student), equation 2 of the paper. The loss is averaged over images, as in the paper.
  DeiT's code also divides by the number of classes.

  Args:
    temperature: divisor of the logits of student and teacher.

  Returns:
    A function of student and teacher logits (B, V) that returns the divergence of each image (B,).
  """

  def divergence(student: Float[Tensor, "B V"], teacher: Float[Tensor, "B V"]) -> Float[Array, " B"]:
    return temperature**2 * losses.kl_divergence(teacher / temperature, student / temperature)

  return divergence


TARGETS = {"hard": hard, "soft": soft}


@dataclasses.dataclass(frozen=True)
class Distill(Task):
  """A distillation task: (1 - weight) * classification loss + weight * divergence from the teacher.

  Args:
    supplied: the objects that the run supplies, such as the student.
    teacher: weight file or workdir. The teacher must have as many classes as the data, but may have any resolution. The
      teacher gets exactly the same augmented images as the student, with the normalisation of the teacher's training.
    ema: true selects averaged weights, false selects raw weights. The default is averaged weights for a file that
      contains them, and for a workdir with the average as teacher. Otherwise, raw weights are read.
    prefix: common prefix of the parameter names to read, for a file that contains several models.
    teacher_mean: mean with which the teacher's images are normalised. The default comes from the teacher's file or run.
      None selects the mean of the student's images.
    teacher_std: standard deviation with which the teacher's images are normalised, with the same default as the mean.
    targets: `hard` to learn the teacher's best class, or `soft` to learn its probabilities.
    weight: weight of the teacher's loss. The paper uses 0.5 for hard targets and 0.1 for soft targets at temperature 3.
    loss: loss of the labels, as in classification.
    label_smoothing: share of the label targets that is spread evenly over all classes.
  """

  supplied: TaskContext
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

  @functools.cached_property
  def labels(self) -> Classify:
    """The classification task that learns from the labels and makes all predictions."""
    return Classify(self.supplied, loss=self.loss, label_smoothing=self.label_smoothing)

  @functools.cached_property
  def frozen_models(self) -> dict[str, FrozenModel]:
    """The teacher as {"teacher": model}. Only its names and shapes are read at this point.

    Raises:
      ConfigError: if the teacher has a different number of classes.
    """
    teacher = self.supplied.open_frozen_model("task.teacher", self.teacher, self.ema, self.prefix, ())
    classes = self.supplied.model.description.classes
    if teacher.model.description.classes != classes:
      raise ConfigError(
        f"{self.teacher} has {format_amount(teacher.model.description.classes, 'class', 'classes')}, but "
        f"the data have {classes}. Use a teacher that was trained on them",
        "config.task.teacher",
      )
    return {"teacher": teacher}

  @property
  def fields(self) -> Fields:
    """Returns the fields of a batch. Images are whole unless student and teacher use the same patches."""
    same = self.supplied.patch == self.frozen_models["teacher"].model.patch
    return Fields(self.supplied.patch if same else None)

  def examples(self, batch: Batch, context: Context, key: PRNGKey) -> Batch:
    """Returns the examples of classification together with the teacher's logits.

    Args:
      batch: the batch, as for `Classify.examples`.
      context: values of the step, with the weights of the teacher.
      key: random key of the step.

    Returns:
      {"image": augmented images, "target": targets (B, V), "teacher": logits (B, V)}.
    """
    examples = self.labels.augment_batch(batch, key, context.step, self.fields.patch)
    images = self.normalise_for_teacher(examples["image"])
    outputs, _ = self.frozen_models["teacher"].model.outputs(context.frozen_weights["teacher"], images, None)
    return {**examples, "teacher": outputs.logits}

  def normalise_for_teacher(self, images: Num[Tensor, "..."]) -> Num[Tensor, "..."]:
    """Returns the images with the teacher's normalisation.

    Args:
      images: images with the normalisation of the student, whole or as patches.

    Returns:
      The images, unchanged if both normalisations are equal.
    """
    if self.teacher_mean is None and self.teacher_std is None:
      return images
    own = self.supplied.normalised
    mean = own["mean"] if self.teacher_mean is None else self.teacher_mean
    std = own["std"] if self.teacher_std is None else self.teacher_std
    if (mean, std) == (own["mean"], own["std"]):
      return images
    return augment.normalise(255 * self.supplied.pixels(images), images.dtype, mean=mean, std=std)

  def objective(self, params: Params, context: Context, examples: Batch, key: PRNGKey | None) -> Objective:
    """Returns the loss, top-1 accuracy and the agreement with the teacher.

    The metrics use the logits of all heads together. The loss and the agreement are NaN if the teacher's logits are not
    finite.

    Args:
      params: parameters of the student by path.
      context: unused.
      examples: the result of `examples`.
      key: random key of dropout and stochastic depth, or None for evaluation.

    Returns:
      The loss, and a pair of metrics and the statistics that the student has updated. The metric "teacher_agreement" is
      the share of images for which student and teacher have the same best class.
    """
    outputs, statistics = self.supplied.model.outputs(params, examples["image"], key)
    labels_head = outputs.heads.get("head", outputs.logits)
    teacher_head = outputs.heads.get("head_distillation", outputs.logits)
    divergence = make(self.targets, TARGETS)
    loss = (1 - self.weight) * self.labels.cross_entropy(labels_head, examples["target"])
    loss += self.weight * divergence(teacher_head, examples["teacher"])
    # The argmax of non-finite logits would silently be class 0. A NaN loss stops the run.
    known = jnp.isfinite(examples["teacher"]).all(-1)
    loss = jnp.where(known, loss, jnp.nan)
    agree = jnp.argmax(outputs.logits, -1) == jnp.argmax(examples["teacher"], -1)
    metrics = {
      "top1": jnp.mean(losses.is_best_positive(outputs.logits, examples["target"])),
      "teacher_agreement": jnp.mean(jnp.where(known, agree, jnp.nan)),
    }
    return jnp.mean(loss), (metrics, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Batch:
    """Returns the predictions of the student, as in classification. The teacher is not evaluated.

    Args:
      params: parameters of the student by path.
      images: normalised images.
      labels: labels (B,) or (B, K).
      classes: classes to choose from. None means all classes.
    """
    return self.labels.predict(params, images, labels, classes)

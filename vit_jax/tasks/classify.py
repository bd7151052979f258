"""Classification."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import losses, models
from vit_jax.schema import ConfigError, Probability
from vit_jax.shapes import Array, Count, Float, PRNGKey, Tensor
from vit_jax.tasks.task import Frozen, Labels, Objective, Params, Rows, Supplied


@dataclasses.dataclass(frozen=True)
class Classify:
  """Cross-entropy to soft targets [B, V]: the labels, as augmentation mixed them, smoothed.

  An image with several labels has a target of one for each with a sigmoid loss, and equal shares of one with softmax;
  where data say how much each counts, as a teacher's do, targets are that, with softmax of a sum of one.

  Args:
    loss: "sigmoid" sums over classes, as big_vision; "mean_sigmoid" is their mean, timm's binary cross-entropy. The
      difference is one of scale, which clipping sees.
    label_smoothing: share of the targets that is spread over all classes.
    target_threshold: of a sigmoid loss; targets above it count as one and the others as zero. With 0 all labels of
      mixed images count in full, as in DeiT III. Accuracy goes by the targets as they were.
  """

  supplied: Supplied
  _: dataclasses.KW_ONLY
  loss: Literal["softmax", "sigmoid", "mean_sigmoid"] = "softmax"
  label_smoothing: Probability = 0.0
  target_threshold: Probability | None = None

  headline: ClassVar[str] = "top1"
  classes: ClassVar[bool] = True
  frozen: ClassVar[Frozen | None] = None
  sharding: ClassVar[models.Rows] = ()

  def __post_init__(self):
    if self.target_threshold is None:
      return
    if self.loss == "softmax":
      raise ConfigError(
        "the targets of a softmax share one among the classes; leave it out, or take loss='mean_sigmoid'",
        "target_threshold",
      )
    if self.label_smoothing / self.supplied.model.description.classes > self.target_threshold:
      raise ConfigError(
        f"{self.target_threshold}: label_smoothing={self.label_smoothing} lifts every class above it; set one of the "
        "two to none",
        "target_threshold",
      )

  @property
  def patch(self) -> int | None:
    """Images come cut if the model takes them so."""
    return self.supplied.patch

  def init(self, key: PRNGKey) -> Params:
    """No parameters beside the model's."""
    return {}

  def examples(self, batch: Rows, frozen: Params, key: PRNGKey, step: Count) -> Rows:
    """Augmented images, and targets [B, V]."""
    return self.augmented(batch, key, step, self.patch)

  def augmented(self, batch: Rows, key: PRNGKey, step: Count, patch: int | None) -> Rows:
    """The examples for images that come cut into patches of a side, or whole."""
    targets = self._targets(batch["label"], batch.get("share"))
    images, targets = self.supplied.augment(patch)(key, batch["image"], targets, batch["draw"], step)
    return {"image": images, "target": losses.smooth(targets, self.label_smoothing)}

  def objective(self, params: Params, examples: Rows, key: PRNGKey | None) -> Objective:
    """Mean cross-entropy; the metric is top-1, of the label with the largest target."""
    outputs, statistics = self.supplied.model.outputs(params, examples["image"], key)
    hits = losses.best_is_positive(outputs.logits, examples["target"])
    loss = jnp.mean(self.cross_entropy(outputs.logits, examples["target"]))
    return loss, ({"top1": jnp.mean(hits)}, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Rows:
    """Loss without smoothing, the best five classes with their probabilities, that of the best alone too, logits.

    Of `classes` alone, where they are not all: the logits of others become so low that they take no part.
    """
    logits = self.supplied.model.outputs(params, images, None)[0].logits
    if classes is not None:
      competing = np.isin(np.arange(logits.shape[-1]), classes)
      logits = jnp.where(competing, logits, -1e9)  # not infinite: 0 times that is no number
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    probabilities = losses.PROBABILITIES[self.loss](logits)
    return {
      "loss": self.cross_entropy(logits, self._targets(labels)),
      "best": best,
      "confidence": jnp.max(probabilities, axis=-1),
      "probability": jnp.take_along_axis(probabilities, best, axis=-1),
      "logits": logits,
    }

  def cross_entropy(self, logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
    """Of each image, by the loss of that name."""
    if self.target_threshold is not None:
      targets = (targets > self.target_threshold).astype(targets.dtype)
    return losses.LOSSES[self.loss](logits, targets)

  def _targets(self, labels, shares=None):
    classes = self.supplied.model.description.classes
    targets = losses.one_hot(labels, classes) if shares is None else losses.parts_hot(labels, shares, classes)
    return losses.shared(targets) if self.loss == "softmax" else targets

"""Classification."""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from vit_jax import losses, models
from vit_jax.schema import Probability
from vit_jax.shapes import Array, Count, Float, PRNGKey, Tensor
from vit_jax.tasks.task import Frozen, Labels, Objective, Params, Rows, Supplied


@dataclasses.dataclass(frozen=True)
class Classify:
  """Cross-entropy to soft targets [B, V]: the labels, as augmentation mixed them, smoothed.

  An image with several labels has a target of one for each with the sigmoid loss, and equal shares of one with softmax.
  """

  supplied: Supplied
  _: dataclasses.KW_ONLY
  loss: Literal["softmax", "sigmoid"] = "softmax"
  label_smoothing: Probability = 0.0

  headline: ClassVar[str] = "top1"
  frozen: ClassVar[Frozen | None] = None
  sharding: ClassVar[models.Rows] = ()

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
    targets = self._targets(batch["label"])
    images, targets = self.supplied.augment(patch)(key, batch["image"], targets, batch["draw"], step)
    return {"image": images, "target": losses.smooth(targets, self.label_smoothing)}

  def objective(self, params: Params, examples: Rows, key: PRNGKey | None) -> Objective:
    """Mean cross-entropy; the metric is top-1, of the label with the largest target."""
    outputs, statistics = self.supplied.model.outputs(params, examples["image"], key)
    hits = losses.best_is_positive(outputs.logits, examples["target"])
    loss = jnp.mean(self.cross_entropy(outputs.logits, examples["target"]))
    return loss, ({"top1": jnp.mean(hits)}, statistics)

  def predict(self, params: Params, images: Float[Tensor, "B ..."], labels: Labels) -> Rows:
    """Loss without smoothing, the best five classes, the probability of the best, logits."""
    logits = self.supplied.model.outputs(params, images, None)[0].logits
    _, best = jax.lax.top_k(logits, min(5, logits.shape[-1]))
    return {
      "loss": self.cross_entropy(logits, self._targets(labels)),
      "best": best,
      "confidence": jnp.max(losses.PROBABILITIES[self.loss](logits), axis=-1),
      "logits": logits,
    }

  def cross_entropy(self, logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
    """Of each image, by the loss of that name."""
    return losses.LOSSES[self.loss](logits, targets)

  def _targets(self, labels):
    targets = losses.one_hot(labels, self.supplied.model.description.classes)
    return losses.shared(targets) if self.loss == "softmax" else targets

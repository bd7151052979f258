"""Classification with soft or hard labels."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax import losses
from vit_jax.data.views import Fields
from vit_jax.schema import ConfigError, Probability
from vit_jax.shapes import Array, Count, Float, PRNGKey, Tensor
from vit_jax.tasks.task import Batch, Context, Labels, Objective, Params, Task, TaskContext


@dataclasses.dataclass(frozen=True)
class Classify(Task):
  """A classification task: cross-entropy between logits and soft targets (B, V).

  The targets are the labels after mixing and label smoothing. For an image with several labels, a sigmoid loss has a
  target of one for each label. With softmax, each of n labels has a target of 1 / n. If the data provide a share for
  each label, as a teacher's labels do, these shares are the targets. With softmax, the shares of an image are scaled to
  a sum of one.

  Args:
    supplied: the objects that the run supplies, such as the model.
    loss: "softmax", "sigmoid" or "mean_sigmoid". "sigmoid" sums the binary cross-entropy over classes, as in
      big_vision. "mean_sigmoid" uses the mean over classes, as timm does. These two losses differ only in scale, which
      matters for gradient clipping.
    label_smoothing: share of the targets that is spread evenly over all classes.
    target_threshold: threshold for the targets of a sigmoid loss. Targets above the threshold become one and the others
      become zero. With 0, all labels of mixed images count in full, as in DeiT III. Accuracy uses the targets before
      thresholding. None keeps the targets.

  Raises:
    ConfigError: if `target_threshold` is combined with softmax, or if label smoothing alone raises every class above
      the threshold.
  """

  supplied: TaskContext
  _: dataclasses.KW_ONLY
  loss: Literal["softmax", "sigmoid", "mean_sigmoid"] = "softmax"
  label_smoothing: Probability = 0.0
  target_threshold: Probability | None = None

  headline: ClassVar[str] = "top1"
  classes: ClassVar[bool] = True

  def __post_init__(self) -> None:
    if self.target_threshold is None:
      return
    if self.loss == "softmax":
      raise ConfigError(
        "a threshold cannot be used with softmax, for which the targets of an image sum to one. Remove it, or use "
        "loss='mean_sigmoid'",
        "target_threshold",
      )
    if self.label_smoothing / self.supplied.model.description.classes > self.target_threshold:
      raise ConfigError(
        f"{self.target_threshold}: label_smoothing={self.label_smoothing} raises every class above it. Set one of the "
        "two to none",
        "target_threshold",
      )

  @property
  def fields(self) -> Fields:
    """Returns the fields of a batch: images and labels."""
    return Fields(self.supplied.patch)

  def examples(self, batch: Batch, context: Context, key: PRNGKey) -> Batch:
    """Returns augmented images and their targets.

    Args:
      batch: the batch with "image" (uint8), "label" and "draw", and optionally "share" for each label.
      context: values of the step.
      key: random key of the step.

    Returns:
      {"image": augmented images, "target": targets (B, V)}.
    """
    return self.augment_batch(batch, key, context.step, self.fields.patch)

  def augment_batch(self, batch: Batch, key: PRNGKey, step: Count, patch: int | None) -> Batch:
    """Returns the same examples as `examples`, with images cut into patches of a given size.

    Args:
      batch: the batch, as for `examples`.
      key: random key of the step.
      step: number of the step.
      patch: side of the patches in pixels. None means whole images.
    """
    targets = self._targets(batch["label"], batch.get("share"))
    images, mixed = self.supplied.augment(patch)(key, batch["image"], targets, batch["draw"], step)
    return {"image": images, "target": losses.smooth_labels(mixed, self.label_smoothing)}

  def objective(self, params: Params, context: Context, examples: Batch, key: PRNGKey | None) -> Objective:
    """Returns the mean cross-entropy and top-1 accuracy.

    A prediction is correct if it is the label with the largest target.

    Args:
      params: parameters by path.
      context: unused.
      examples: the result of `examples`.
      key: random key of dropout and stochastic depth, or None for evaluation.

    Returns:
      The loss, and a pair of {"top1": accuracy} and the statistics that the model has updated.
    """
    outputs, statistics = self.supplied.model.outputs(params, examples["image"], key)
    hits = losses.is_best_positive(outputs.logits, examples["target"])
    loss = jnp.mean(self.cross_entropy(outputs.logits, examples["target"]))
    return loss, ({"top1": jnp.mean(hits)}, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Batch:
    """Returns the predictions for each image, without label smoothing.

    Args:
      params: parameters by path.
      images: normalised images.
      labels: labels (B,) or (B, K).
      classes: classes to choose from. The logits of all other classes are set to -1e9. None means all classes.

    Returns:
      The rows "loss" (B,), "best" (B, K), "probability" (B, K), "confidence" (B,) and "logits" (B, V). "best" contains
      the K best classes, with K = 5 or the number of classes if that is smaller. "probability" contains their
      probabilities, and "confidence" the highest probability of the image.
    """
    logits = self.supplied.model.outputs(params, images, None)[0].logits
    if classes is not None:
      competing = np.isin(np.arange(logits.shape[-1]), classes)
      logits = jnp.where(competing, logits, -1e9)  # -inf would make 0 * -inf = NaN in the loss
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
    """Returns the cross-entropy of each image for the configured loss, after thresholding the targets.

    Args:
      logits: logits (..., V).
      targets: targets (..., V).
    """
    if self.target_threshold is not None:
      targets = (targets > self.target_threshold).astype(targets.dtype)
    return losses.LOSSES[self.loss](logits, targets)

  def _targets(self, labels: Labels, shares: Tensor | None = None) -> Array:
    classes = self.supplied.model.description.classes
    targets = losses.one_hot(labels, classes) if shares is None else losses.encode_shares(labels, shares, classes)
    return losses.normalise_rows(targets) if self.loss == "softmax" else targets

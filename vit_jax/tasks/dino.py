"""DINO: self-distillation without labels (Caron et al. 2021).

    --config.task.name=dino --config.optim.ema=0.996 \
        --config.optim.ema_schedule.name=cosine --config.optim.ema_schedule.end=1.0

The student's output for each crop must match the teacher's output for the global crops of the same image. The teacher
is the moving average of the student. The model has no head for classes. Use the evaluation `fewshot`.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from vit_jax import models
from vit_jax.schema import Momentum
from vit_jax.selfsup import losses, targets
from vit_jax.selfsup.heads import ProjectionHead
from vit_jax.selfsup.paths import CENTER, HEAD
from vit_jax.shapes import Array, PRNGKey, Shaped
from vit_jax.tasks import step_parts
from vit_jax.tasks.self_distillation import (
  GLOBAL,
  SelfDistillation,
  measure_collapse,
  merge_crops,
  select_features,
  split_crops,
)
from vit_jax.tasks.task import Batch, Context, Objective, Params


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dino(SelfDistillation):
  """A task with the loss of DINO: cross-entropy of all pairs of teacher crop and student crop.

  Args:
    center_momentum: factor of the old centre when the centre of the teacher's output is updated.
  """

  center_momentum: Momentum = 0.9

  statistics: ClassVar[frozenset[str]] = frozenset({CENTER})
  uses_average: ClassVar[bool] = True

  @property
  def sharding(self) -> models.ShardingRules:
    """Returns the rows of the sharding table for the head and the centre."""
    return (*ProjectionHead.sharding(HEAD), (CENTER, (None,)))

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Returns the initial head, and a centre of zeros."""
    return self.head.init(key, HEAD) | {CENTER: jnp.zeros(self.prototypes)}

  def objective(self, params: Params, context: Context, examples: Batch, key: PRNGKey | None) -> Objective:
    """Returns the mean cross-entropy over all pairs of different crops.

    Args:
      params: parameters of the student, the head and the centre by path.
      context: values of the step, with the average of the parameters, which is the teacher.
      examples: the result of `examples`.
      key: random key of stochastic depth, or None for evaluation.

    Returns:
      The loss, and a pair of metrics and {path of the centre: new centre}. The metrics are the parts "local_loss" and
      "global_loss" of the loss, and those of `measure_collapse`.
    """
    keys = (None, None) if key is None else jax.random.split(key)
    crops = merge_crops(examples["global"])
    model, dtype = self.supplied.model, self.dtype
    with step_parts.name_part("teacher"):
      seen = split_crops(select_features(model, model.outputs(context.average, crops, None)[0]), GLOBAL)
    with step_parts.name_part("heads and losses"):
      logits = self.head.apply(context.average, HEAD, seen, dtype)
      temperature = self.find_temperature(context.step)
      probabilities = targets.center_softmax(logits, params[CENTER], temperature)
    with step_parts.name_part("student"):
      features = split_crops(select_features(model, model.outputs(params, crops, keys[0])[0]), GLOBAL)
      both = jnp.concatenate([features, self.encode_local(params, examples, keys[1])], axis=1)
    with step_parts.name_part("heads and losses"):
      loss = losses.dino_loss(self.head.apply(params, HEAD, both, dtype), probabilities, self.student_temperature)
      metrics = {
        "local_loss": loss.local_part,
        "global_loss": loss.global_part,
      } | measure_collapse(probabilities, features)
      center = targets.update_center(params[CENTER], logits, self.center_momentum)
    return loss.total, (metrics, {CENTER: center})

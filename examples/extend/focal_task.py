"""A task: classification with the focal loss (Lin et al. 2017, arXiv:1708.02002), which weights easy images less."""

import dataclasses

import jax
import jax.numpy as jnp

from vit_jax import register
from vit_jax.schema import NonNegative
from vit_jax.tasks.classify import Classify


@register.task("focal")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Focal(Classify):
  """Cross-entropy [B], each image times (1 - p)^gamma with p the probability of its target; gamma=0 is `classify`.

  Args:
    gamma: exponent; 2 is the value of the paper.
  """

  gamma: NonNegative = 2.0

  def cross_entropy(self, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the loss of each image [B]."""
    entropy = super().cross_entropy(logits, targets)
    probability = jnp.sum(jax.nn.softmax(logits) * targets, axis=-1)
    return (1 - probability) ** self.gamma * entropy

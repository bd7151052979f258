"""A task: classification with the focal loss (Lin et al. 2017, arXiv:1708.02002).

The loss gives easy images less weight.
"""

import dataclasses

import jax
import jax.numpy as jnp

from vit_jax import register
from vit_jax.schema import NonNegative
from vit_jax.tasks.classify import Classify


@register.task("focal")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Focal(Classify):
  """Classification with the cross-entropy of each image multiplied by (1 - p)^gamma.

  p is the probability of the target. With gamma=0 the task equals `classify`.

  Args:
    gamma: exponent. The paper uses 2.
  """

  gamma: NonNegative = 2.0

  def cross_entropy(self, logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Returns the loss of each image (B,).

    Args:
      logits: outputs of the model (B, V).
      targets: probabilities of the classes (B, V).
    """
    entropy = super().cross_entropy(logits, targets)
    probability = jnp.sum(jax.nn.softmax(logits) * targets, axis=-1)
    return (1 - probability) ** self.gamma * entropy

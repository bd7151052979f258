"""Losses on soft labels. Everything is computed in float32."""

import jax
import jax.numpy as jnp

from vit_jax.shapes import Array, Bool, Float, Integer, Num, Tensor


def softmax_cross_entropy(logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """-sum_v t_v log softmax(z)_v. The targets of a row sum to one."""
  logits, targets = _float32(logits, targets)
  return -(targets * jax.nn.log_softmax(logits)).sum(-1)


def sigmoid_cross_entropy(logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """One binary decision per class, summed: -sum_v t_v log s(z_v) + (1 - t_v) log s(-z_v)."""
  logits, targets = _float32(logits, targets)
  return -(targets * jax.nn.log_sigmoid(logits) + (1 - targets) * jax.nn.log_sigmoid(-logits)).sum(-1)


def mean_sigmoid_cross_entropy(logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """The mean over classes of what `sigmoid_cross_entropy` sums: PyTorch's and timm's binary cross-entropy."""
  return sigmoid_cross_entropy(logits, targets) / logits.shape[-1]


def one_hot(labels: Integer[Tensor, " B"] | Integer[Tensor, "B K"], classes: int) -> Float[Array, "B {classes}"]:
  """One at each of a row's labels. A label outside of 0 ... V - 1 counts as none."""
  hot = jax.nn.one_hot(labels, classes, dtype=jnp.float32)
  return hot.max(1) if labels.ndim == 2 else hot


def parts_hot(
  labels: Integer[Tensor, "B K"], shares: Float[Tensor, "B K"], classes: int
) -> Float[Array, "B {classes}"]:
  """The share of each of a row's labels; a label outside of 0 ... V - 1 counts as none."""
  return jnp.einsum("bkv,bk->bv", jax.nn.one_hot(labels, classes, dtype=jnp.float32), shares)


def shared(targets: Float[Tensor, "*B V"]) -> Float[Array, "*B V"]:
  """Rows divided by their sums; a row of zeros stays one."""
  (targets,) = _float32(targets)
  return targets / jnp.maximum(targets.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


def best_is_positive(logits: Float[Tensor, "*B V"], targets: Num[Tensor, "*B V"]) -> Bool[Array, "*B"]:
  """Whether the class of the highest logit is one of those with the highest target.

  So any label counts where an image has several, and the larger part where two are mixed. False in a row of zeros.
  """
  best = jax.nn.one_hot(jnp.argmax(logits, -1), targets.shape[-1], dtype=targets.dtype)
  highest = targets.max(-1)
  # Equal targets that were computed twice may differ in the last bits.
  return ((best * targets).sum(-1) >= (1 - 1e-5) * highest) & (highest > 0)


def smooth(targets: Float[Tensor, "*B V"], amount: float) -> Float[Array, "*B V"]:
  """A share `amount` of every row's mass is spread evenly over all classes, its own included.

  So a hard label becomes 1 - a + a / V, and the others a / V (Szegedy et al. 2016; the same in timm).
  """
  (targets,) = _float32(targets)
  return (1 - amount) * targets + amount / targets.shape[-1] * targets.sum(-1, keepdims=True)


def kl_divergence(expected: Float[Tensor, "*B V"], predicted: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """Of the distribution of logits `predicted` from that of logits `expected`."""
  expected, predicted = _float32(expected, predicted)
  log_p, log_q = jax.nn.log_softmax(expected), jax.nn.log_softmax(predicted)
  return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def _float32(*arrays):
  return tuple(jnp.asarray(array, jnp.float32) for array in arrays)


LOSSES = {
  "softmax": softmax_cross_entropy,
  "sigmoid": sigmoid_cross_entropy,
  "mean_sigmoid": mean_sigmoid_cross_entropy,
}
# By the same names, the probabilities that the logits [B, V] stand for.
PROBABILITIES = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid, "mean_sigmoid": jax.nn.sigmoid}

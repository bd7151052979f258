"""Losses for class targets that may be soft. All losses are computed in float32."""

import jax
import jax.numpy as jnp

from vit_jax.shapes import Array, Bool, Float, Integer, Num, Tensor


def softmax_cross_entropy(logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """Computes -sum_v t_v log softmax(z)_v for each row.

  Args:
    logits: predicted logits z, (*B, V).
    targets: target probabilities t, (*B, V). Each row must sum to one.

  Returns:
    The loss of each row in float32, (*B).

  Example:
    import jax.numpy as jnp
    from vit_jax import losses

    targets = losses.smooth_labels(losses.one_hot(jnp.array([1]), classes=2), 0.1)  # [[0.05, 0.95]]
    losses.softmax_cross_entropy(jnp.array([[0.0, 3.0]]), targets)  # [0.199]
  """
  logits, targets = _cast_to_float32(logits, targets)
  return -(targets * jax.nn.log_softmax(logits)).sum(-1)


def sigmoid_cross_entropy(logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """Computes the sum of one binary cross-entropy per class: -sum_v t_v log s(z_v) + (1 - t_v) log s(-z_v).

  Args:
    logits: predicted logits z, (*B, V).
    targets: target probability t of each class, (*B, V).

  Returns:
    The loss of each row in float32, (*B).
  """
  logits, targets = _cast_to_float32(logits, targets)
  return -(targets * jax.nn.log_sigmoid(logits) + (1 - targets) * jax.nn.log_sigmoid(-logits)).sum(-1)


def mean_sigmoid_cross_entropy(logits: Float[Tensor, "*B V"], targets: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """Computes the mean over classes of the binary cross-entropy, as PyTorch and timm define it.

  Args:
    logits: predicted logits, (*B, V).
    targets: target probability of each class, (*B, V).

  Returns:
    The loss of each row in float32, (*B).
  """
  return sigmoid_cross_entropy(logits, targets) / logits.shape[-1]


def one_hot(labels: Integer[Tensor, " B"] | Integer[Tensor, "B K"], classes: int) -> Float[Array, "B {classes}"]:
  """Converts labels to targets with a one for each label of a row.

  Args:
    labels: class numbers, (B,), or (B, K) if images can have several labels. Values outside of 0 to V - 1 are ignored.
    classes: number of classes V.

  Returns:
    Targets in float32, (B, V).
  """
  hot = jax.nn.one_hot(labels, classes, dtype=jnp.float32)
  return hot.max(1) if labels.ndim == 2 else hot


def encode_shares(
  labels: Integer[Tensor, "B K"], shares: Float[Tensor, "B K"], classes: int
) -> Float[Array, "B {classes}"]:
  """Converts labels and their shares to targets. The target of each label is its share.

  Args:
    labels: class numbers, (B, K). Values outside of 0 to V - 1 are ignored.
    shares: share of each label in its image, (B, K).
    classes: number of classes V.

  Returns:
    Targets in float32, (B, V).
  """
  return jnp.einsum("bkv,bk->bv", jax.nn.one_hot(labels, classes, dtype=jnp.float32), shares)


def normalise_rows(targets: Float[Tensor, "*B V"]) -> Float[Array, "*B V"]:
  """Divides each row by its sum. A row of zeros stays a row of zeros.

  Args:
    targets: non-negative values, (*B, V).

  Returns:
    Rows that sum to one in float32, (*B, V).
  """
  (targets,) = _cast_to_float32(targets)
  return targets / jnp.maximum(targets.sum(-1, keepdims=True), jnp.finfo(jnp.float32).tiny)


def is_best_positive(logits: Float[Tensor, "*B V"], targets: Num[Tensor, "*B V"]) -> Bool[Array, "*B"]:
  """Returns whether the class with the highest logit is one of the classes with the highest target.

  For an image with several labels, each label counts as correct. For a mixture of two images, the label with the larger
  share counts. The result is False for a row of zeros.

  Args:
    logits: predicted logits, (*B, V).
    targets: targets, (*B, V).

  Returns:
    A boolean for each row, (*B).
  """
  best = jax.nn.one_hot(jnp.argmax(logits, -1), targets.shape[-1], dtype=targets.dtype)
  highest = targets.max(-1)
  # Equal targets may differ in their last bits if they were computed separately.
  return ((best * targets).sum(-1) >= (1 - 1e-5) * highest) & (highest > 0)


def smooth_labels(targets: Float[Tensor, "*B V"], amount: float) -> Float[Array, "*B V"]:
  """Applies label smoothing (Szegedy et al. 2016), as in timm.

  A fraction `amount` of the sum of each row is distributed evenly over all classes, including the target class. A
  one-hot target becomes 1 - amount + amount / V, and all other classes become amount / V.

  Args:
    targets: targets, (*B, V).
    amount: fraction of each row that is distributed, between 0 and 1.

  Returns:
    Smoothed targets in float32, (*B, V).
  """
  (targets,) = _cast_to_float32(targets)
  return (1 - amount) * targets + amount / targets.shape[-1] * targets.sum(-1, keepdims=True)


def kl_divergence(expected: Float[Tensor, "*B V"], predicted: Float[Tensor, "*B V"]) -> Float[Array, "*B"]:
  """Computes the Kullback-Leibler divergence KL(expected || predicted) of two softmax distributions.

  Args:
    expected: logits of the target distribution, (*B, V).
    predicted: logits of the predicted distribution, (*B, V).

  Returns:
    The divergence of each row in float32, (*B).
  """
  expected, predicted = _cast_to_float32(expected, predicted)
  log_p, log_q = jax.nn.log_softmax(expected), jax.nn.log_softmax(predicted)
  return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def _cast_to_float32(*arrays: Float[Tensor, "..."]) -> tuple[Float[Array, "..."], ...]:
  return tuple(jnp.asarray(array, jnp.float32) for array in arrays)


LOSSES = {
  "softmax": softmax_cross_entropy,
  "sigmoid": sigmoid_cross_entropy,
  "mean_sigmoid": mean_sigmoid_cross_entropy,
}
# {name of the loss: function from logits [B, V] to class probabilities}.
PROBABILITIES = {"softmax": jax.nn.softmax, "sigmoid": jax.nn.sigmoid, "mean_sigmoid": jax.nn.sigmoid}

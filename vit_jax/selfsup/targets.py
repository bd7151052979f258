"""Targets from the teacher's logits: mean centring and Sinkhorn-Knopp, in float32 and without gradients."""

import jax
import jax.numpy as jnp

from vit_jax.shapes import Array, Bool, Float, Scalar, Tensor


def center_softmax(
  logits: Float[Tensor, "*B K"], center: Float[Tensor, " K"], temperature: Scalar
) -> Float[Array, "*B K"]:
  """Computes softmax((logits - center) / temperature).

  The center is the result of the previous steps. Call `update_center` with the logits of this step afterwards.

  Args:
    logits: the teacher's logits (*B, K).
    center: moving average of logits (K).
    temperature: temperature of the teacher.

  Returns:
    Probabilities in float32, (*B, K).
  """
  logits, center = (jnp.asarray(jax.lax.stop_gradient(x), jnp.float32) for x in (logits, center))
  return jax.nn.softmax((logits - center) / temperature)


def update_center(
  center: Float[Tensor, " K"],
  logits: Float[Tensor, "*B K"],
  momentum: float = 0.9,
  valid: Bool[Tensor, "*B"] | None = None,
) -> Float[Array, " K"]:
  """Computes momentum * center + (1 - momentum) * (mean of the logits of the global batch).

  Args:
    center: moving average of logits (K).
    logits: the teacher's logits (*B, K), before centring.
    momentum: factor of the old center.
    valid: rows to average. None averages all rows. If no row is valid, the center does not change.

  Returns:
    The new center in float32, (K).
  """
  logits, center = (jnp.asarray(jax.lax.stop_gradient(x), jnp.float32) for x in (logits, center))
  axes = tuple(range(logits.ndim - 1))
  if valid is None:
    return momentum * center + (1 - momentum) * logits.mean(axes)
  count = jnp.asarray(valid, jnp.float32).sum()
  mean = jnp.where(valid[..., None], logits, 0).sum(axes) / jnp.maximum(count, 1)
  return jnp.where(count > 0, momentum * center + (1 - momentum) * mean, center)


def sinkhorn(
  logits: Float[Tensor, "*B K"], temperature: Scalar, iterations: int = 3, valid: Bool[Tensor, "*B"] | None = None
) -> Float[Array, "*B K"]:
  """Computes targets that use all prototypes equally often, with the Sinkhorn-Knopp algorithm (Caron et al. 2020).

  The first matrix is exp(logits / temperature). Each iteration divides the columns (prototypes) by their sums over all
  rows of the global batch, and then the rows by their sums.

  The published code overflows if a logit exceeds 88 * temperature. Here the maximum of each column is subtracted first.
  The exponentials of the column then change by a constant factor, which the first division removes. With at least one
  valid row, no column sum is zero.

  The iterations change only one factor per row and one per column. Only the exponentials are stored as a matrix.

  Args:
    logits: the teacher's logits (*B, K).
    temperature: temperature of the teacher.
    iterations: number of iterations, at least 1.
    valid: rows to use. None uses all rows. Unused rows do not influence the result, and their targets are zero.

  Returns:
    Probabilities in float32, (*B, K). Each valid row sums to one.

  Raises:
    ValueError: if `iterations` is less than 1.
  """
  if iterations < 1:
    raise ValueError(f"iterations: expected at least 1, got {iterations}. Published recipes use 3.")
  scaled = jnp.asarray(jax.lax.stop_gradient(logits), jnp.float32) / temperature
  counted = jnp.ones(scaled.shape[:-1], bool) if valid is None else jnp.asarray(valid)
  axes = tuple(range(scaled.ndim - 1))
  scaled = jnp.where(counted[..., None], scaled, -jnp.inf)
  largest = scaled.max(axes)
  # Without valid rows the maximum is -inf, and the exponentials are zero instead of NaN.
  start = jnp.exp(scaled - jnp.where(jnp.isfinite(largest), largest, 0))
  rows = counted.astype(jnp.float32)
  # The sum of all entries stays equal to the number of rows. Otherwise the factors would grow with each iteration.
  share = scaled.shape[-1] / jnp.maximum(rows.sum(), 1)
  for _ in range(iterations):
    # Sums of products instead of matrix products, which accelerators would round.
    columns = _invert(share * (start * rows[..., None]).sum(axes))
    rows = _invert((start * columns).sum(-1))
  return start * columns * rows[..., None]


def _invert(x: jax.Array) -> jax.Array:
  return jnp.where(x > 0, 1 / jnp.where(x > 0, x, 1), 0)

"""Losses of self-distillation, in float32: cross-entropies with the teacher's targets, KoLeo and Gram anchoring."""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.selfsup import vectors
from vit_jax.shapes import Array, Float, Scalar, Tensor

Negatives = Literal["keep", "zero", "zero_in_teacher"]


class DinoLoss(NamedTuple):
  """The DINO loss as a sum of two parts.

  Attributes:
    total: mean over all pairs of a teacher crop and a student crop, local_part + global_part.
    local_part: contribution of the pairs in which the student sees a local crop.
    global_part: contribution of the pairs in which the student sees a global crop.
  """

  total: Float[Array, ""]
  local_part: Float[Array, ""]
  global_part: Float[Array, ""]


def cross_entropy(
  logits: Float[Tensor, "*B K"], targets: Float[Tensor, "*B K"], temperature: Scalar
) -> Float[Array, "*B"]:
  """Computes -sum_k targets_k log softmax(logits / temperature)_k for each row.

  The targets sum to one, so the result is logsumexp(scaled logits) minus the scalar product of targets and scaled
  logits. Therefore the logarithm of the softmax is not stored.

  Args:
    logits: the student's logits (*B, K).
    targets: target probabilities (*B, K). Each row must sum to one.
    temperature: temperature of the student.
  """
  scaled = jnp.asarray(logits, jnp.float32) / temperature
  return _log_sum_exp(scaled) - (jnp.asarray(targets, jnp.float32) * scaled).sum(-1)


def dino_loss(
  student: Float[Tensor, "B S K"],
  targets: Float[Tensor, "B G K"],
  temperature: Scalar = 0.1,
  equal_pairs: bool = False,
) -> DinoLoss:
  """Computes the mean cross-entropy over all pairs of teacher crop and student crop (Caron et al. 2021, section 3.1).

  By default, pairs of a global crop with itself are excluded. With G = 2 and L local crops, 2 + 2 L pairs remain. The
  loss of each pair is averaged over images.

  Args:
    student: the student's logits (B, S, K). The first G of the S crops are the global crops, in the teacher's order.
    targets: the teacher's probabilities of the global crops (B, G, K).
    temperature: temperature of the student.
    equal_pairs: whether to include pairs of a global crop with itself (an option of DINOv3).

  Raises:
    ValueError: if the student has fewer crops than the teacher, or if no pair remains.
  """
  images, crops, _ = student.shape
  seen = targets.shape[1]
  within = seen if equal_pairs else seen - 1  # targets of a global crop
  pairs = seen * (crops - seen) + seen * within
  if crops < seen or not pairs:
    raise ValueError(
      f"student has {crops} crops and the teacher {seen}: expected at least as many, and one pair of different crops"
    )
  scaled = jnp.asarray(student, jnp.float32) / temperature
  targets = jnp.asarray(targets, jnp.float32)
  # Targets are first summed over the teacher crops, so each student crop needs only one product with its logits.
  total = targets.sum(1, keepdims=True)
  partners = jnp.broadcast_to(total, targets.shape) if equal_pairs else total - targets
  normalisers = _log_sum_exp(scaled)
  of_global = within * normalisers[:, :seen].sum() - (partners * scaled[:, :seen]).sum()
  of_local = seen * normalisers[:, seen:].sum() - (total * scaled[:, seen:]).sum()
  local_part, global_part = (value / (images * pairs) for value in (of_local, of_global))
  return DinoLoss(local_part + global_part, local_part, global_part)


def patch_loss(
  student: Float[Tensor, "*B K"],
  targets: Float[Tensor, "*B K"],
  weights: Float[Tensor, "*B"],
  crops: int,
  temperature: Scalar = 0.1,
) -> Float[Array, ""]:
  """Computes the loss of masked patches: the weighted sum of cross-entropies, divided by the number of crops.

  Crops without masked patches count in the divisor, as in iBOT (Zhou et al. 2022) and DINOv2.

  Args:
    student: the student's logits of masked patches (*B, K).
    targets: the teacher's probabilities of the same patches (*B, K).
    weights: 1 / (number of masked patches of the crop), and 0 for unused slots. See `patch_masks`.
    crops: number of all global crops in the batch, G * B.
    temperature: temperature of the student.
  """
  return (cross_entropy(student, targets, temperature) * jnp.asarray(weights, jnp.float32)).sum() / crops


def koleo(x: Float[Tensor, "*B N D"], eps: float = 1e-8) -> Float[Array, "*B"]:
  """Computes the Kozachenko-Leonenko loss of each group (Sablayrolles et al. 2019): -mean_i log |x_i - x_j|.

  x_j is the nearest neighbour of x_i in the group, after the vectors are scaled to length 1. It has the largest scalar
  product with x_i. Gradients flow to both x_i and x_j. The distance is computed from the difference, because
  2 - 2 cos is inaccurate for near duplicates. DINOv2 adds the losses of both global crops.

  Args:
    x: groups of N features (*B, N, D). Vectors of different groups are not compared.
    eps: value that is added to each component of the difference and to the distance.

  Returns:
    The loss of each group in float32, (*B). It may be negative.

  Raises:
    ValueError: if a group has only one vector.
  """
  size = x.shape[-2]
  if size < 2:
    raise ValueError("a group has one vector, which has no neighbour: expected at least two. Use larger groups")
  x = vectors.scale_to_unit_length(x, eps)
  cosines = jnp.matmul(x, x.swapaxes(-1, -2), precision="highest")
  nearest = jnp.argmax(jnp.where(jnp.eye(size, dtype=bool), -jnp.inf, jax.lax.stop_gradient(cosines)), -1)
  difference = x - jnp.take_along_axis(x, nearest[..., None], axis=-2) + eps
  return -jnp.log(jnp.sqrt(jnp.square(difference).sum(-1)) + eps).mean(-1)


def gram_loss(
  student: Float[Tensor, "*B N D"], teacher: Float[Tensor, "*B N D"], negatives: Negatives = "keep"
) -> Float[Array, ""]:
  """Computes the mean squared difference between the cosines of patch pairs (DINOv3, Gram anchoring).

  Cosines are computed between all pairs of the N vectors. To compare patches of different images too, pass the patches
  of a group of images as one set of N vectors.

  Args:
    student: patch features of the student (*B, N, D).
    teacher: patch features of the Gram teacher on the student's grid (*B, N, D).
    negatives: treatment of negative cosines: "keep", "zero" in both matrices, or "zero_in_teacher".
  """
  ours, theirs = (_compute_cosines(x) for x in (student, jax.lax.stop_gradient(teacher)))
  theirs = theirs if negatives == "keep" else jnp.maximum(theirs, 0)
  ours = jnp.maximum(ours, 0) if negatives == "zero" else ours
  return jnp.square(ours - theirs).mean()


def _compute_cosines(x: Tensor) -> jax.Array:
  x = vectors.scale_to_unit_length(x)
  return jnp.matmul(x, x.swapaxes(-1, -2), precision="highest")


@jax.custom_vjp
def _log_sum_exp(x: jax.Array) -> jax.Array:
  """Computes logsumexp over the last axis. The backward pass stores the result instead of all exponentials."""
  return jax.nn.logsumexp(x, axis=-1)


def _log_sum_exp_forward(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  result = _log_sum_exp(x)
  return result, (x, result)


def _log_sum_exp_backward(residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array]:
  x, result = residuals
  return (cotangent[..., None] * jnp.exp(x - result[..., None]),)


_log_sum_exp.defvjp(_log_sum_exp_forward, _log_sum_exp_backward)

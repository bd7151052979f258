"""Losses against loops in NumPy and modules of PyTorch, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import torch

from tests.selfsup import device_counts
from vit_jax.selfsup import losses, resize

pytestmark = pytest.mark.heavy
DRAW = np.random.default_rng(0)


def normal(*shape):
  return DRAW.normal(size=shape).astype(np.float32)


def probabilities(*shape):
  return scipy.special.softmax(3 * normal(*shape), -1)


def entropy(q, s, temperature=0.1):
  """The cross-entropy of one row."""
  return -(q.astype(float) * scipy.special.log_softmax(s.astype(float) / temperature)).sum()


def test_a_cross_entropy_and_its_gradient_are_their_definitions():
  s, q = normal(6, 30), probabilities(6, 30)
  value, gradient = jax.vmap(jax.value_and_grad(lambda s, q: losses.cross_entropy(s, q, 0.1)))(s, q)
  np.testing.assert_allclose(value, [entropy(*pair) for pair in zip(q, s, strict=True)], rtol=5e-6)
  np.testing.assert_allclose(gradient, (scipy.special.softmax(s / 0.1, -1) - q) / 0.1, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e30])
def test_a_cross_entropy_is_finite_at_extreme_logits(scale):
  s, q = scale * normal(3, 7), np.eye(7, dtype=np.float32)[:3]
  value, gradient = jax.value_and_grad(lambda s: losses.cross_entropy(s, q, 0.1).sum())(s)
  assert np.isfinite(value) and np.isfinite(gradient).all()


@pytest.mark.parametrize("equal_pairs", [False, True])
@pytest.mark.parametrize(("crops", "seen"), [(6, 2), (2, 2), (4, 1), (5, 3)])
def test_the_dino_loss_is_the_mean_over_pairs(crops, seen, equal_pairs):
  s, q = normal(4, crops, 20), probabilities(4, seen, 20)
  pairs = [(g, c) for g in range(seen) for c in range(crops) if g != c or equal_pairs]
  value = {pair: np.mean([entropy(q[b, pair[0]], s[b, pair[1]]) for b in range(4)]) for pair in pairs}
  local = sum(value[pair] for pair in pairs if pair[1] >= seen) / len(pairs)
  across = sum(value[pair] for pair in pairs if pair[1] < seen) / len(pairs)
  result = losses.dino_loss(s, q, 0.1, equal_pairs)
  np.testing.assert_allclose(result, [local + across, local, across], rtol=2e-6, atol=1e-6)


def test_a_uniform_student_has_the_logarithm_of_the_prototypes():
  result = losses.dino_loss(jnp.zeros((2, 10, 4096)), probabilities(2, 2, 4096))
  np.testing.assert_allclose(result, np.log(4096) * np.array([1, 16 / 18, 2 / 18]), rtol=1e-5)


@pytest.mark.parametrize(("crops", "seen"), [(1, 1), (1, 2)])
def test_crops_without_a_pair_are_an_error(crops, seen):
  with pytest.raises(ValueError, match="one pair of different crops"):
    losses.dino_loss(normal(2, crops, 4), probabilities(2, seen, 4))


def test_the_patch_loss_counts_unmasked_crops_in_its_divisor():
  counts = [3, 0, 5, 1]  # masked patches of each crop
  s, q = normal(12, 20), probabilities(12, 20)
  weights = np.array([1 / count for count in counts for _ in range(count)] + [0] * 3, np.float32)
  rows = np.split(np.arange(9), np.cumsum(counts)[:-1])
  expected = sum(np.mean([entropy(q[i], s[i]) for i in part]) for part in rows if len(part)) / 4
  np.testing.assert_allclose(losses.patch_loss(s, q, weights, 4), expected, rtol=1e-6)
  stacked = losses.patch_loss(s.reshape(2, 6, 20), q.reshape(2, 6, 20), weights.reshape(2, 6), 4)
  np.testing.assert_allclose(stacked, expected, rtol=1e-6)


def torch_koleo(x):
  x = torch.nn.functional.normalize(x, dim=-1, eps=1e-8)
  with torch.no_grad():
    cosines = (x @ x.T).fill_diagonal_(-1)
    nearest = cosines.argmax(1)
  return -torch.log(torch.nn.PairwiseDistance(2, eps=1e-8)(x, x[nearest]) + 1e-8).mean()


def test_koleo_is_that_of_torch_in_each_group():
  x = normal(2, 3, 8, 5) + 0.5
  theirs = torch.tensor(x, dtype=torch.float64, requires_grad=True)
  expected = torch.stack([torch_koleo(group) for group in theirs.reshape(6, 8, 5)]).reshape(2, 3)
  expected.sum().backward()
  gradient = jax.grad(lambda x: losses.koleo(x).sum())(x)
  assert losses.koleo(x).shape == (2, 3)
  np.testing.assert_allclose(losses.koleo(x), expected.detach(), rtol=1e-5, atol=1e-6)
  np.testing.assert_allclose(gradient, theirs.grad, rtol=1e-4, atol=1e-5)


def test_koleo_is_finite_for_duplicates_and_zeros():
  for x in (np.ones((4, 6), np.float32), np.zeros((4, 6), np.float32)):
    value, gradient = jax.value_and_grad(losses.koleo)(x)
    assert np.isfinite(value) and np.isfinite(gradient).all()


def test_koleo_of_one_vector_is_an_error():
  with pytest.raises(ValueError, match="a group has one vector"):
    losses.koleo(normal(3, 1, 6))


@pytest.mark.parametrize("negatives", ["keep", "zero", "zero_in_teacher"])
def test_the_gram_loss_is_the_mean_over_pairs_of_patches(negatives):
  s, t = normal(3, 7, 5), normal(3, 7, 9)[..., :5]
  total = []
  for ours, theirs in zip(s.astype(float), t.astype(float), strict=True):
    ours, theirs = (np.array([[a @ b / np.sqrt(a @ a * (b @ b)) for a in x] for b in x]) for x in (ours, theirs))
    theirs = theirs if negatives == "keep" else theirs.clip(0)
    total.append(((ours.clip(0) if negatives == "zero" else ours) - theirs) ** 2)
  np.testing.assert_allclose(losses.gram_loss(s, t, negatives), np.mean(total), rtol=1e-5)


@pytest.mark.parametrize("negatives", ["keep", "zero", "zero_in_teacher"])
@pytest.mark.parametrize("across", [False, True])
def test_gram_loss_of_a_larger_teacher_and_its_gradient_equal_torch(negatives, across):
  s, t = normal(4, 16, 6), normal(4, 64, 6)
  together = 2 if across else 1

  def loss(student):
    teacher = resize.resize_patches(t, (8, 8), (4, 4)).reshape(-1, 16 * together, 6)
    return losses.gram_loss(student.reshape(teacher.shape), teacher, negatives)

  student = torch.tensor(s, dtype=torch.float64, requires_grad=True)
  grid = torch.tensor(t, dtype=torch.float64).reshape(4, 8, 8, 6).permute(0, 3, 1, 2)
  teacher = torch.nn.functional.interpolate(grid, size=(4, 4), mode="bicubic").flatten(2).transpose(1, 2)
  ours, theirs = (torch.nn.functional.normalize(x.reshape(-1, 16 * together, 6), dim=-1) for x in (student, teacher))
  ours, theirs = ours @ ours.mT, theirs @ theirs.mT
  theirs = theirs if negatives == "keep" else theirs.clamp(min=0)
  ours = ours.clamp(min=0) if negatives == "zero" else ours
  expected = torch.nn.functional.mse_loss(ours, theirs)
  expected.backward()
  value, gradient = jax.value_and_grad(loss)(s)
  assert float(value) == pytest.approx(expected.item(), rel=1e-5)
  largest = float(student.grad.abs().max())
  np.testing.assert_allclose(gradient, student.grad, rtol=0, atol=1e-5 * largest)


def test_the_gram_loss_of_a_group_compares_patches_of_different_images():
  s, t = normal(4, 7, 5), normal(4, 7, 5)
  whole = losses.gram_loss(s.reshape(1, 28, 5), t.reshape(1, 28, 5))
  assert abs(float(whole - losses.gram_loss(s, t))) > 1e-3
  assert not np.asarray(jax.grad(losses.gram_loss, argnums=1)(s, t)).any()


def test_results_are_equal_on_one_and_eight_devices():
  s, q = normal(16, 6, 40), probabilities(16, 2, 40)
  device_counts.compare(lambda s, q: losses.dino_loss(s, q), s, q)
  device_counts.compare(lambda s, q: jax.grad(lambda s: losses.dino_loss(s, q).total)(s), s, q)
  x = normal(8, 4, 10)
  device_counts.compare(lambda x: jax.value_and_grad(lambda x: losses.koleo(x).mean())(x), x)
  patches, teacher = normal(16, 9, 10), normal(16, 9, 10)
  device_counts.compare(lambda s, t: jax.value_and_grad(losses.gram_loss)(s, t), patches, teacher)
  weights = DRAW.random((16, 6)).astype(np.float32)
  device_counts.compare(
    lambda s, q, w: jax.value_and_grad(losses.patch_loss)(s, q, w, 16), s, probabilities(16, 6, 40), weights
  )


def test_the_backward_pass_stores_neither_logarithms_nor_exponentials():
  s, q = (jax.ShapeDtypeStruct((32, crops, 4096), jnp.float32) for crops in (6, 2))
  compiled = jax.jit(jax.grad(lambda s, q: losses.dino_loss(s, q).total)).lower(s, q).compile()
  logits = 32 * 6 * 4096 * 4
  assert compiled.memory_analysis().temp_size_in_bytes < 2.1 * logits

"""What stages cost, beside the sums of their matrices."""

import jax
import jax.numpy as jnp
import pytest

from tests import stages
from vit_jax import models
from vit_jax.models import flops
from vit_jax.schema import Choice
from vit_jax.tasks import cost
from vit_jax.tasks.masked_autoencoder import MaskedAutoencoder
from vit_jax.tasks.masked_patches import MaskedPatches

pytestmark = pytest.mark.heavy

N, P, D, H, L = 196, 16, 768, 3072, 12  # ViT-B/16


def of_blocks(tokens, width, hidden, depth):
  """FLOPs of so many blocks, two for each multiplication."""
  return depth * 2 * (4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * hidden)


CONTEXT = stages.CONTEXT._replace(step=jax.ShapeDtypeStruct((), jnp.int32))
EMBEDDING = 2 * N * 3 * P**2 * D


def measured(stage, **arguments):
  """FLOPs of one image's forward pass; nothing is computed."""
  model = models.functional(models.Description(Choice("ViT-B/16"), 224, 0))
  task = stage(stages.supplied(model, augment, pixels=lambda x: x), **arguments)
  batch = {"image": jax.ShapeDtypeStruct((8, 224, 224, 3), jnp.float32), "draw": jax.ShapeDtypeStruct((8,), "int32")}
  examples = jax.eval_shape(task.examples, batch, CONTEXT, jax.random.key(0))
  shapes = model.shapes() | jax.eval_shape(task.init, jax.random.key(0))
  return cost.count_forward_flops(task.objective, shapes, CONTEXT, examples)


def augment(key, images, targets, draws, step):
  return images, targets


def test_masked_patches_cost_their_model_and_a_linear_map_of_half_the_patches():
  expected = EMBEDDING + of_blocks(N + 1, D, H, L) + 2 * N // 2 * D * 512
  assert measured(MaskedPatches) == pytest.approx(expected, rel=1e-3)


def test_a_masked_autoencoder_costs_a_quarter_of_the_patches_and_its_decoder():
  encoder = EMBEDDING + of_blocks(N // 4 + 1, D, H, L)
  decoder = 2 * (N // 4 + 1) * D * 512 + of_blocks(N + 1, 512, 2048, 8) + 2 * N * 512 * 3 * P**2
  flops = measured(MaskedAutoencoder)
  assert flops == pytest.approx(encoder + decoder, rel=1e-3)
  assert flops < 0.6 * measured(MaskedPatches)


def test_e6_the_forward_cost_of_b16_matches_its_matrices_and_the_paper():
  model = models.Description(Choice("ViT-B/16"), 224, 1000).bind()
  tokens = N + 1  # with the class token
  by_hand = EMBEDDING + of_blocks(tokens, D, H, L) + 2 * D * 1000
  assert cost.count_model_flops(model) == by_hand
  assert by_hand / 2e9 == pytest.approx(17.6, abs=0.05)  # published in multiply-accumulates
  assert flops.format_flops(by_hand) == "35.1 GFLOP per image (forward pass)"

"""What stages cost, beside the sums of their matrices."""

import jax
import jax.numpy as jnp
import pytest

from tests import stages
from vit_jax import models
from vit_jax.models import flops
from vit_jax.schema import Choice
from vit_jax.tasks import cost
from vit_jax.tasks.classify import Classify
from vit_jax.tasks.dino import Dino
from vit_jax.tasks.masked_autoencoder import MaskedAutoencoder
from vit_jax.tasks.masked_patches import MaskedPatches
from vit_jax.tasks.task import Context, ContextShapes

pytestmark = pytest.mark.heavy

N, P, D, H, L = 196, 16, 768, 3072, 12  # ViT-B/16


def of_blocks(tokens, width, hidden, depth):
  """FLOPs of so many blocks, two for each multiplication."""
  return depth * 2 * (4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * hidden)


CONTEXT = ContextShapes(jax.ShapeDtypeStruct((), jnp.int32), {}, {})
EMBEDDING = 2 * N * 3 * P**2 * D


def measured(stage, **arguments):
  """FLOPs of one image's forward pass; nothing is computed."""
  model = models.make_functional(models.Description(Choice("ViT-B/16"), 224, 0))
  task = stage(stages.supplied(model, augment, pixels=lambda x: x), **arguments)
  batch = {"image": jax.ShapeDtypeStruct((8, 224, 224, 3), jnp.float32), "draw": jax.ShapeDtypeStruct((8,), "int32")}
  examples = jax.eval_shape(task.examples, batch, Context(*CONTEXT), jax.random.key(0))
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


def test_a_teacher_has_no_backward_pass():
  """Without local crops, student and teacher have equal forward passes: four of them instead of six in training."""
  choice = Choice("ViT-Ti/8", {"depth": 4, "width": 64, "heads": 2, "hidden": 128})
  model = models.make_functional(models.Description(choice, 64, 0))
  task = Dino(stages.supplied(model), local_crops=0, local_size=16, prototypes=64, bottleneck=16, hidden=32)
  params = model.shapes() | jax.eval_shape(task.init, jax.random.key(0))
  examples = {"global": jax.ShapeDtypeStruct((8, 2, 64, 64, 3), jnp.float32)}
  given = task.objective, params, CONTEXT._replace(average=params), examples
  assert cost.count_training_flops(*given) / cost.count_forward_flops(*given) == pytest.approx(2, rel=0.03)


def test_training_costs_three_forward_passes_without_a_teacher():
  model = models.make_functional(models.Description(Choice("ViT-B/16"), 224, 1000))
  task = Classify(stages.supplied(model))
  shape = jax.ShapeDtypeStruct
  examples = {"image": shape((8, 224, 224, 3), jnp.float32), "target": shape((8, 1000), jnp.float32)}
  given = task.objective, model.shapes(), CONTEXT, examples
  assert cost.count_training_flops(*given) / cost.count_forward_flops(*given) == pytest.approx(3, rel=0.02)

"""Paths of self-distillation against the states that the tasks create."""

import jax
import pytest

from tests import stages
from tests.tasks.test_dinov2 import MODEL, SMALL
from vit_jax.selfsup import paths
from vit_jax.tasks.dino import Dino
from vit_jax.tasks.dinov2 import Dinov2

DINO = {
  name: SMALL[name] for name in ("prototypes", "bottleneck", "hidden", "local_size", "local_crops", "temperature")
}


@pytest.mark.heavy
@pytest.mark.parametrize(
  ("create", "arguments", "expected"),
  [
    (Dino, DINO, {paths.HEAD, paths.CENTER}),
    (Dinov2, SMALL | {"centering": "sinkhorn"}, {paths.HEAD, paths.PATCH_HEAD, paths.TOKEN}),
    (
      Dinov2,
      SMALL | {"centering": "mean"},
      {paths.HEAD, paths.PATCH_HEAD, paths.CENTER, paths.PATCH_CENTER, paths.TOKEN},
    ),
  ],
)
def test_state_of_task_has_these_paths(create, arguments, expected):
  task = create(stages.supplied(MODEL, normalised={"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}), **arguments)
  names = jax.eval_shape(task.init, jax.random.key(0)).keys()
  assert {"/".join(name.split("/")[:2]) for name in names} == expected
  assert task.statistics <= names

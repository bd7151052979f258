"""Stages of training, by name.

A stage (task) is a value that is built from the objects that the run supplies and from the arguments of `config.task`.
The keyword-only fields of the classes in `TASKS` define these arguments. `Task` is the protocol that every stage
implements.
"""

from vit_jax.tasks.classify import Classify
from vit_jax.tasks.dino import Dino
from vit_jax.tasks.dinov2 import Dinov2
from vit_jax.tasks.distill import Distill
from vit_jax.tasks.masked_autoencoder import MaskedAutoencoder
from vit_jax.tasks.masked_patches import MaskedPatches
from vit_jax.tasks.task import Task

TASKS: dict[str, type[Task]] = {
  "classify": Classify,
  "distill": Distill,
  "masked_patches": MaskedPatches,
  "masked_autoencoder": MaskedAutoencoder,
  "dino": Dino,
  "dinov2": Dinov2,
}

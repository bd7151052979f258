"""vit_jax/models/published.py: a row of the table of models."""

import inspect

from vit_jax.models import published
from vit_jax.schema import Probability


def make(row, image_size, channels, classes, rngs, *, rate: Probability = 0.0, wide: bool = False):
  return row, image_size, channels, classes, rngs, rate, wide


def test_a_model_keeps_the_schema_of_its_function_and_brings_its_own_defaults():
  made = published.model(make, "row", sharding=(), image_size=96, wide=True)
  assert made.make(1, 2, 3, 4) == ("row", 1, 2, 3, 4, 0.0, True)
  assert made.make(1, 2, 3, 4, wide=False)[-1] is False
  assert made.make.__annotations__ == {"rate": Probability, "wide": bool}
  parameters = inspect.signature(made.make).parameters
  assert [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD] == [
    "image_size",
    "channels",
    "classes",
    "rngs",
  ]
  assert (made.image_size, made.classes, made.family) == (96, 1000, "test_published")

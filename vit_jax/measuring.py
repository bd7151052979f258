"""Assembly of a measurement: evaluations of a file's weights by their features, each with data of its own."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from vit_jax import evals, mesh, models
from vit_jax.config import Measurement
from vit_jax.data import catalog
from vit_jax.importers import surgery
from vit_jax.schema import Choice, ConfigError, at


class Parts(NamedTuple):
  """What a measurement is made of, on given devices."""

  params: dict[str, jax.Array]
  evals: dict[str, Callable]  # (params, poll) -> evals.Outcome
  notes: list[str]  # at which size images are measured, and what was done to the weights


def complete(measurement: Measurement, image_size: int | None) -> dict[str, Choice]:
  """The evaluations with every argument checked, for a model of images of this size; None: it is not known yet."""
  choices = {}
  for name, choice in measurement.evals.items():
    with at(f"config.evals.{name}"):
      if choice.name == "accuracy":
        raise ConfigError("'accuracy' needs the weights' own classes; use vit_jax.evaluate", "name")
      choices[name] = evals.bind(choice, evals.EVALS, {"image_size": image_size} if image_size else {})
      if choices[name].args.get("data", choice) is None:  # an evaluation of the weights alone takes no data
        raise ConfigError("missing; name a dataset: dict(name='cifar100')", "data")
  return choices


def build(
  measurement: Measurement,
  description: models.Description,
  arrays: dict[str, np.ndarray],
  devices,
  open_split: Callable = catalog.open_split,
  screen: evals.Screen | None = None,
) -> Parts:
  """Everything for a measurement on `devices`, of the weights of a file, which lose their head.

  Args:
    measurement: as the config says it.
    description: of the file's model.
    arrays: its parameters by path, layer by layer.
    devices: of the mesh.
    open_split: (data choice, split) -> the images.
    screen: where it is shown how many images are done.
  """
  size = measurement.image_size or description.image_size
  if not isinstance(size, int):
    raise ConfigError(f"config.image_size: missing; the weights are of images of {size}, and evaluations take squares")
  choices = complete(measurement, size)
  headless = description.replaced(image_size=size, classes=0).bound()
  arrays, notes = surgery.fit(arrays, description, headless)
  grid = mesh.make(measurement.mesh, devices)
  model = models.functional(headless).on(grid)
  shardings = mesh.parameters(models.sharding(headless.model.name), model.shapes(), grid)
  arrays = surgery.stack(arrays, tuple(shardings))
  params = {path: mesh.place(arrays[path], sharding) for path, sharding in shardings.items()}
  subject = evals.Subject(model, grid, None, measurement.batch, open_split, screen=screen)
  made = {}
  for name, choice in choices.items():
    with at(f"config.evals.{name}"):
      made[name] = evals.make(choice, subject)
  return Parts(params, made, [_size(measurement, size), *notes])


def _size(measurement, size):
  """A note of the side of images, and where it is the weights' own how another is taken."""
  if measurement.image_size:
    return f"images of {size} px (config.image_size)"
  return (
    f"images of {size} px, which is the weights' own size; another: --config.image_size={224 if size > 224 else 'N'}"
  )

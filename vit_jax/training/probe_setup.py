"""Assembly of a measurement: evaluations of the features of given weights, each with its own data."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from vit_jax import evals, models
from vit_jax.config import Measurement
from vit_jax.data import catalog, shared_data
from vit_jax.importers import surgery
from vit_jax.parallel import sharding
from vit_jax.schema import ConfigError, enter_key


class ProbeSetup(NamedTuple):
  """A measurement that is ready to run on its devices.

  Attributes:
    params: parameters by path.
    evals: {name: function (params, poll) -> `evals.Outcome`}.
    notes: lines on the image size, and on changes of the weights.
    splits: the splits that the evaluations read.
  """

  params: dict[str, jax.Array]
  evals: dict[str, evals.Measure]
  notes: list[str]
  splits: tuple[shared_data.OpenedSplit, ...]


def complete(measurement: Measurement, image_size: int | None) -> dict[str, evals.BoundEval]:
  """Checks every argument of the evaluations.

  Args:
    measurement: the measurement.
    image_size: image size of the model, or None if it is not known yet.

  Returns:
    The bound evaluations by name.

  Raises:
    ConfigError: an argument is invalid, or an evaluation has no data.
  """
  choices = {}
  for name, choice in measurement.evals.items():
    with enter_key(f"config.evals.{name}"):
      if choice.name == "accuracy":
        raise ConfigError("'accuracy' needs the weights' own classes. Use vit_jax.evaluate", "name")
      bound = evals.bind_evaluation(choice, evals.EVALS, {"image_size": image_size} if image_size else {})
      choices[name] = bound
      if bound.data is None and "data" in bound.args:  # an evaluation of the weights alone has no such key
        raise ConfigError("missing. Name a dataset: dict(name='cifar100')", "data")
  return choices


def build(
  measurement: Measurement,
  description: models.Description,
  arrays: dict[str, np.ndarray],
  devices: Sequence[jax.Device],
  open_split: evals.OpenSplit = catalog.open_split,
  screen: evals.ProgressFactory | None = None,
) -> ProbeSetup:
  """Builds a measurement for the weights of a file. The head of the weights is removed.

  Args:
    measurement: a resolved measurement.
    description: the model of the file.
    arrays: its parameters by path, layer by layer.
    devices: devices of the mesh.
    open_split: function (data choice, split) that opens the images.
    screen: display of the number of completed images.

  Raises:
    ConfigError: an argument is invalid, or the weights are for images that are not square.
  """
  size = measurement.image_size or description.image_size
  if not isinstance(size, int):
    raise ConfigError(
      f"config.image_size: missing. The weights are for images of {size}, but evaluations need square images. Set a "
      "size"
    )
  choices = complete(measurement, size)
  headless = description.replace(image_size=size, classes=0).bind()
  arrays, notes = surgery.fit(arrays, description, headless)
  grid = sharding.make_mesh(measurement.mesh, devices)
  model = models.make_functional(headless).place_on(grid)
  shardings = sharding.find_parameter_shardings(models.find_sharding(headless.model.name), model.shapes(), grid)
  arrays = surgery.stack(arrays, tuple(shardings))
  params = {path: sharding.place_array(arrays[path], target) for path, target in shardings.items()}
  splits = shared_data.SplitRecorder(open_split)
  subject = evals.EvalContext(model, grid, None, measurement.batch, splits, screen=screen)
  made = {}
  for name, choice in choices.items():
    with enter_key(f"config.evals.{name}"):
      made[name] = choice.build(subject)
  return ProbeSetup(params, made, [_describe_size(measurement, size), *notes], splits.opened)


def _describe_size(measurement: Measurement, size: int) -> str:
  """Returns a note on the image size. If it is the size of the weights, the note names the flag that changes it."""
  if measurement.image_size:
    return f"images of {size} px (config.image_size)"
  other = 224 if size > 224 else "N"
  return f"images of {size} px, which is the weights' own size. To change it: --config.image_size={other}"

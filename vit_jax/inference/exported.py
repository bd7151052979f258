"""A model as one file of StableHLO, weights inside, for any number of images on CPUs, CUDA and TPUs: `jax.export`."""

import json
import pathlib
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from vit_jax import files, models, schema
from vit_jax.data import augment
from vit_jax.inference.stored import Stored
from vit_jax.schema import Choice, ConfigError, arguments

SUFFIX, PLATFORMS = ".stablehlo", ("cpu", "cuda", "tpu")
CLOSE = 1e-4  # of the largest logit: how far those of the file may be from the model's
COMPARED = (1, 3)  # images at a time


def write(use: Stored, path: pathlib.Path) -> float:
  """Writes the model: uint8 images [B, S, S, 3] -> logits float32 [B, V], without a head features [B, D].

  The file is read again and compared with the model on this machine before it takes its name; how far they are apart,
  as a share of the largest value. `jax.export.deserialize(data).call(images)` runs it. What the squares are made of and
  the names of classes are in a JSON file of the same name. ConfigError where they differ by more than CLOSE.
  """
  compute = _function(use)
  size = use.description.image_size
  (batch,) = export.symbolic_shape("b")
  images = jax.ShapeDtypeStruct((batch, size, size, 3), np.uint8)
  data = export.export(compute, platforms=PLATFORMS)(images).serialize()
  with files.replacing(path) as partial:
    partial.write_bytes(data)
    apart = _apart(export.deserialize(bytearray(partial.read_bytes())).call, compute, size)
    if not apart <= CLOSE:
      raise ConfigError(
        f"{path}: the logits of what was exported differ by {apart:.2g} of the largest; nothing is kept"
      )
  files.write_text(beside(path), json.dumps(_about(use), indent=2) + "\n")
  return apart


def beside(path: pathlib.Path) -> pathlib.Path:
  """The JSON file of an exported model."""
  return path.with_suffix(".json")


def _function(use) -> Callable:
  """images -> logits, compiled by JAX; a kernel that one platform has alone is not taken."""
  choice = use.description.model
  if "attention" in choice.args:
    choice = Choice(choice.name, {**choice.args, "attention": "xla"})
  model = models.functional(use.description.replaced(model=choice))
  normalise = arguments(use.data, augment.normalise)
  params = {name: jnp.asarray(array) for name, array in use.arrays.items()}

  def logits(images):
    return model.outputs(params, augment.normalise(images, choice.args["dtype"], **normalise))[0].logits

  return jax.jit(logits)


def _apart(one, other, size) -> float:
  """The largest difference between two functions of random images, as a share of the largest value."""
  draw, largest, difference = np.random.default_rng(0), 1e-9, 0.0
  for count in COMPARED:
    images = draw.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    a, b = np.asarray(one(images)), np.asarray(other(images))
    largest, difference = np.maximum(largest, np.abs(b).max()), np.maximum(difference, np.abs(a - b).max())
  return float(difference / largest)


def _about(use):
  """What is to be known of images and classes, as JSON values."""
  keys = ("image_size", "test_crop", "mean", "std")
  return {
    "model": use.description.to_json(),
    "classes": list(use.classes),
    "probabilities": use.loss,
    "input": "uint8 [B, S, S, 3], RGB, cropped as test_crop says; mean and std are applied inside",
    **{key: schema.plain(use.data.args[key]) for key in keys},
  }

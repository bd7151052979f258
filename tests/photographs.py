"""A small image folder, and its description in a checkpoint."""

import dataclasses
import json

import jax

from tests import runs
from tests.image_files import image
from vit_jax import config
from vit_jax.checkpoints import provenance
from vit_jax.data import sources
from vit_jax.data.readers.folder import folder
from vit_jax.parallel import sharding


def write(path):
  """Writes two classes of 20 images to a folder, and returns it."""
  for number, name in enumerate(f"{label}/{i}.png" for label in "ab" for i in range(20)):
    file = path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(image(number))
  return path


def source(path, **changes):
  """Returns the training split of the folder."""
  return dataclasses.replace(folder("folder", sources.DatasetRow(folder), "train", path=str(path)), **changes)


def described(made, devices=8):
  """Returns the description that is read from a checkpoint."""
  grid = sharding.make_mesh(config.Mesh(), jax.devices()[:devices])
  return json.loads(json.dumps(provenance.describe_provenance(runs.run(), made, grid)))

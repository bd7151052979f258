"""Random weights of a small ViT, and a file that contains them."""

import json
import pathlib

import numpy as np
import safetensors.numpy

from vit_jax import importers
from vit_jax.importers import layout
from vit_jax.models import Description
from vit_jax.schema import Choice

CLASSES = ("=cat", "dog", "ant", "owl", "elk", "fox", "yak")


def described(classes=len(CLASSES), size=32, **arguments) -> Description:
  return Description(Choice("ViT-S/8", {"width": 64, "depth": 2, "heads": 2, "hidden": 96, **arguments}), size, classes)


def arrays(description) -> dict[str, np.ndarray]:
  """Returns parameters that are large enough to make classes differ by more than rounding."""
  draw = np.random.default_rng(0)
  shapes = layout.compute_shapes(description)
  return {path: draw.normal(0, 0.3, shape).astype(np.float32) for path, shape in shapes.items()}


def file(folder: pathlib.Path, description=None, **metadata) -> pathlib.Path:
  """Writes a file in timm's layout, and a config.json next to it if `beside` is not empty."""
  description = description or described()
  path = folder / "model.safetensors"
  safetensors.numpy.save_file(importers.export_tensors(arrays(description), description, "timm"), path)
  if metadata:
    (folder / "config.json").write_text(json.dumps(metadata))
  return path

"""Weights of a small ViT that nobody trained, as files and as a workdir that holds no run."""

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
  """Parameters large enough that classes differ by more than rounding."""
  draw = np.random.default_rng(0)
  shapes = layout.compute_shapes(description)
  return {path: draw.normal(0, 0.3, shape).astype(np.float32) for path, shape in shapes.items()}


def file(folder: pathlib.Path, description=None, **beside) -> pathlib.Path:
  """A file of timm's layout, and the config.json beside it, where anything is `beside`."""
  description = description or described()
  path = folder / "model.safetensors"
  safetensors.numpy.save_file(importers.export_tensors(arrays(description), description, "timm"), path)
  if beside:
    (folder / "config.json").write_text(json.dumps(beside))
  return path

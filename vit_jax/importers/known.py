"""All layouts of weight files, by name and by the models that they support."""

import functools
import importlib
from collections.abc import Iterable, Mapping

import numpy as np

from vit_jax import schema
from vit_jax.importers import layout
from vit_jax.importers.layout import Layout
from vit_jax.models import Description
from vit_jax.schema import ConfigError

# Modules of this directory that define layouts, in the order in which they are tried.
_FILES = (
  "vit_google",
  "vit_transformers",
  "swin_hf",
  "vit_siglip",
  "vit_hf",
  "vit_dino",
  "vit_originals",
  "vit_eva",
  "vit_parallel",
  "vit_torch",
  "compact",
  "mixer",
  "bit",
  "swin",
  "efficientnet",
)


@functools.cache
def load_layouts() -> tuple[Layout, ...]:
  """Returns all layouts. Their modules are imported at the first call."""
  return tuple(one for name in _FILES for one in importlib.import_module(f"vit_jax.importers.layouts.{name}").LAYOUTS)


def export_tensors(arrays: Mapping[str, np.ndarray], description: Description, name: str) -> dict[str, np.ndarray]:
  """Returns the tensors of a file in a given layout.

  Args:
    arrays: parameters by path.
    description: the model of the parameters.
    name: name of the layout, such as "timm".

  Returns:
    {name in the file: array}.

  Raises:
    ConfigError: if the layout is unknown or does not support the model.

  Example:
    from vit_jax import importers

    description, arrays = importers.load("model.npz")
    tensors = importers.export_tensors(arrays, description, "timm")
  """
  return layout.write(find_layout(description, name), arrays, description)


def find_layout(description: Description, name: str) -> Layout:
  """Returns the layout with a given name for a model.

  Args:
    description: the model.
    name: name of the layout, such as "timm".

  Raises:
    ConfigError: if the layout is unknown or does not support the model. The message lists the supported layouts.
  """
  family = [one for one in load_layouts() if one.family == description.published.family]
  if name not in (one.name for one in family):
    raise ConfigError(
      f"layout {name!r} is not known for "
      f"{description.model.name}.{schema.suggest_nearest(name, _list_names(description))}"
    )
  held = [one for one in family if one.name == name and one.holds(description)]
  why = layout.check_writable(held[-1], description) if held else f"layout {name!r} cannot store {description}"
  if why:
    raise ConfigError(
      f"{why}. Allowed: {', '.join(_list_names(description)) or 'only a directory, which becomes a workdir'}"
    )
  return held[-1]


def find_layouts(description: Description) -> list[Layout]:
  """Returns the layouts of the model's family that support this model."""
  family = [one for one in load_layouts() if one.family == description.published.family and one.holds(description)]
  return [one for one in family if layout.check_writable(one, description) is None]


def _list_names(description: Description) -> Iterable[str]:
  return dict.fromkeys(one.name for one in find_layouts(description))

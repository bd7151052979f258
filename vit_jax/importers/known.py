"""All layouts of weight files, by name and by the model that they have a place for."""

import functools
import importlib
from collections.abc import Mapping

import numpy as np

from vit_jax import schema
from vit_jax.importers import layout
from vit_jax.importers.layout import Layout
from vit_jax.models import Description
from vit_jax.schema import ConfigError

# Files of this folder that have layouts, in the order in which these are tried.
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
def layouts() -> tuple[Layout, ...]:
  """All layouts; their files are imported when they are first asked for."""
  return tuple(one for name in _FILES for one in importlib.import_module(f"vit_jax.importers.{name}").LAYOUTS)


def export(arrays: Mapping[str, np.ndarray], description: Description, name: str) -> dict[str, np.ndarray]:
  """The tensors of a file in the layout of that name."""
  return layout.write(layout_of(description, name), arrays, description)


def layout_of(description: Description, name: str) -> Layout:
  """The layout of that name for the described model, or a ConfigError with those that have a place for it."""
  family = [one for one in layouts() if one.family == description.published.family]
  if name not in (one.name for one in family):
    raise ConfigError(
      f"layout {name!r} is not known for {description.model.name}.{schema.nearest(name, _names(description))}"
    )
  held = [one for one in family if one.name == name and one.holds(description)]
  why = layout.refusal(held[-1], description) if held else f"layout {name!r} has no place for {description}"
  if why:
    raise ConfigError(f"{why}; allowed: {', '.join(_names(description)) or 'none but a directory, which is a workdir'}")
  return held[-1]


def layouts_of(description: Description) -> list[Layout]:
  """The layouts in which models of this family are published, and that have a place for this one."""
  family = [one for one in layouts() if one.family == description.published.family and one.holds(description)]
  return [one for one in family if layout.refusal(one, description) is None]


def _names(description):
  return dict.fromkeys(one.name for one in layouts_of(description))

"""A published model as a value: which function makes it, of what, and the sizes with which it was published."""

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax import schema


@dataclasses.dataclass(frozen=True)
class Published:
  """One name. Its family, a file of `vit_jax/models/`, is imported when its function or a table of it is asked for."""

  function: str  # "family:function"
  row: tuple  # positional arguments of the function, before what a run supplies
  defaults: Mapping[str, Any]  # arguments that differ from the function's own defaults
  image_size: int
  classes: int

  @property
  def family(self) -> str:
    """The file that the function is in; importers know the tensor names of a family."""
    return self.function.partition(":")[0]

  @property
  def make(self) -> Callable:
    """The function (image_size, channels, classes, rngs, *, ...) -> module."""
    return schema.preset(getattr(self._module(), self.function.partition(":")[2]), *self.row, **self.defaults)

  @property
  def sharding(self) -> tuple:
    """Rows (regular expression of a whole parameter path, mesh axis of each dimension): see `parameters`."""
    return self._module().SHARDING

  @property
  def order(self) -> tuple:
    """Where parameters stand between image and logits: see `parameters.Order`."""
    return self._module().ORDER

  def _module(self):
    return importlib.import_module(f"vit_jax.models.{self.family}")


@dataclasses.dataclass(frozen=True)
class Registered(Published):
  """A name that a user registered, with the tables that a family's module holds for other names.

  Its family is called "extension", of which importers know no layout: its weights are read and written as checkpoints.
  """

  maker: Callable
  rows: tuple
  parameters: tuple

  @property
  def make(self) -> Callable:
    """The registered function."""
    return self.maker

  @property
  def sharding(self) -> tuple:
    """The registered sharding table."""
    return self.rows

  @property
  def order(self) -> tuple:
    """The registered order of parameters."""
    return self.parameters


def published(function: str, *row, image_size: int = 224, classes: int = 1000, **defaults) -> Published:
  """The model that a "family:function" makes of a row and of defaults of its own."""
  return Published(function, row, defaults, image_size, classes)

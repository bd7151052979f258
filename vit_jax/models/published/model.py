"""Published models as values: the function that creates a model, its arguments and its published sizes."""

import dataclasses
import importlib
import types
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax import schema
from vit_jax.models.parameters import Order, ShardingRules


@dataclasses.dataclass(frozen=True)
class Published:
  """One published name. Its family, a file of `vit_jax/models/`, is imported when its function or a table is accessed.

  Args:
    function: "family:function".
    row: positional arguments of the function, before those that a run supplies.
    defaults: arguments that differ from the function's own defaults.
    image_size: published side of the images in pixels.
    classes: published number of classes.
  """

  function: str
  row: tuple[Any, ...]
  defaults: Mapping[str, Any]
  image_size: int
  classes: int

  @property
  def family(self) -> str:
    """The file that contains the function. Importers know the tensor names of each family."""
    return self.function.partition(":")[0]

  @property
  def make(self) -> Callable[..., Any]:
    """The function (image_size, channels, classes, rngs, *, ...) -> module."""
    return schema.preset(getattr(self._module(), self.function.partition(":")[2]), *self.row, **self.defaults)

  @property
  def sharding(self) -> ShardingRules:
    """The sharding table: rows (regular expression of a whole path, mesh axis of each dimension), see `parameters`."""
    return self._module().SHARDING

  @property
  def order(self) -> Order:
    """The order of parameters between image and logits, see `parameters.Order`."""
    return self._module().ORDER

  def _module(self) -> types.ModuleType:
    return importlib.import_module(f"vit_jax.models.{self.family}")


@dataclasses.dataclass(frozen=True)
class Registered(Published):
  """A name that a user registered, with its tables. Other names read these tables from the module of their family.

  The family is "extension". Importers have no tensor names for this family, so its weights are read and written as
  checkpoints.

  Args:
    maker: the registered function.
    rows: the sharding table.
    parameters: the order of parameters.
  """

  maker: Callable[..., Any]
  rows: ShardingRules
  parameters: Order

  @property
  def make(self) -> Callable[..., Any]:
    """The registered function."""
    return self.maker

  @property
  def sharding(self) -> ShardingRules:
    """The registered sharding table."""
    return self.rows

  @property
  def order(self) -> Order:
    """The registered order of parameters."""
    return self.parameters


def make_published(
  function: str, *row: object, image_size: int = 224, classes: int = 1000, **defaults: object
) -> Published:
  """Returns the published model for a function and its arguments.

  Args:
    function: "family:function".
    *row: positional arguments of the function, before those that a run supplies.
    image_size: published side of the images in pixels.
    classes: published number of classes.
    **defaults: arguments that differ from the function's own defaults.
  """
  return Published(function, row, defaults, image_size, classes)

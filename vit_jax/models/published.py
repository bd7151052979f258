"""A published model as a value: what makes it, how it is sharded, and the sizes with which it was published."""

import functools
from collections.abc import Callable
from typing import NamedTuple

Rows = tuple[tuple[str, tuple[str | None, ...]], ...]


class Published(NamedTuple):
  """One name of the table in `vit_jax.models`."""

  family: str  # the file that it comes from; importers know the tensor names of a family
  make: Callable  # (image_size, channels, classes, rngs, *, ...) -> module
  sharding: Rows  # (regular expression of a whole parameter path, mesh axis of each dimension)
  image_size: int
  classes: int


def model(
  function: Callable, *row, sharding: Rows, image_size: int = 224, classes: int = 1000, family: str = "", **defaults
) -> Published:
  """The model that `function` makes of a row, whose keyword defaults are replaced where given."""
  made = functools.partial(function, *row, **defaults)
  made.__annotations__ = function.__annotations__  # which a partial hides and `config.bind` reads
  return Published(family or function.__module__.rpartition(".")[2], made, sharding, image_size, classes)

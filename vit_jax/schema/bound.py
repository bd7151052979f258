"""Bound choices: their arguments are checked and complete."""

from collections.abc import Callable
from typing import Any, TypeVar

from vit_jax.schema.signatures import read_keywords
from vit_jax.schema.types import Choice

_Result = TypeVar("_Result")


class Bound(Choice):
  """A choice with a checked value for every argument. `bind` returns it.

  Subclasses have typed properties and methods for the arguments, such as `data.bound_data.EvalData`. Code that uses a
  choice calls them, and does not read arguments by name.
  """

  def select(self, *functions: Callable[..., object]) -> dict[str, Any]:
    """Returns the arguments that belong to the given functions, as {name: value}.

    Args:
      *functions: some of the functions with which the choice was bound.
    """
    return {name: self.args[name] for function in functions for name in read_keywords(function)}

  def call(self, function: Callable[..., _Result], *supplied: object) -> _Result:
    """Calls a function with the arguments that belong to it.

    Args:
      function: one of the functions with which the choice was bound.
      *supplied: positional arguments of the function.
    """
    return function(*supplied, **self.select(function))

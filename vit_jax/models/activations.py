"""Sharding of activations.

The code that traces a model on a mesh sets the sharding. Models therefore name no mesh axis.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from vit_jax import trees
from vit_jax.models.parameters import State
from vit_jax.shapes import Array, Float, Shaped


class Sharding(NamedTuple):
  """The sharding of activations while a model is traced.

  Attributes:
    stream: sharding of [B, ...], with the batch axis first.
    gather: function (path, parameter of one layer) -> the parameter. Parameters that are split only for storage are
      gathered.
    per_device: converts a function of one device's arrays [B, N, F] and [F] to a function of global arrays.
  """

  stream: jax.sharding.Sharding
  gather: Callable[[str, Shaped[Array, "..."]], Shaped[Array, "..."]]
  per_device: Callable[[Callable[..., Shaped[Array, "..."]]], Callable[..., Shaped[Array, "..."]]]


_sharding: contextvars.ContextVar[Sharding | None] = contextvars.ContextVar("sharding", default=None)


@contextlib.contextmanager
def shard_activations(
  stream: jax.sharding.Sharding,
  gather: Callable[[str, Shaped[Array, "..."]], Shaped[Array, "..."]],
  per_device: Callable[[Callable[..., Shaped[Array, "..."]]], Callable[..., Shaped[Array, "..."]]],
) -> Iterator[None]:
  """Constrains the activations of all models that are traced inside of this context.

  XLA does not propagate the batch axis into a scanned layer with split parameters. Without constraints the FLOPs of
  ViT-L/16 doubled.

  Args:
    stream: sharding of the activations [B, ...] after every layer.
    gather: function (path, parameter of one layer) -> the parameter with which the layer computes.
    per_device: converts a function of one device's arrays [B, N, F] and [F] to a function of global arrays.
  """
  token = _sharding.set(Sharding(stream, gather, per_device))
  try:
    yield
  finally:
    _sharding.reset(token)


def constrain(x: Float[Array, " B *x"]) -> Float[Array, " B *x"]:
  """Applies the sharding constraint to activations (B, ...). Without a mesh they are returned unchanged."""
  sharding = _sharding.get()
  return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding.stream)


def gather(prefix: str, params: State) -> State:
  """Returns the parameters of one layer in the form that its computation needs.

  Args:
    prefix: prefix of the paths of the layer.
    params: parameters of the layer.
  """
  sharding = _sharding.get()
  if sharding is None:
    return params
  return trees.map_named(lambda path, value: sharding.gather(prefix + path, value), params)


def run_per_device(function: Callable[..., Shaped[Array, "..."]]) -> Callable[..., Shaped[Array, "..."]]:
  """Returns a function of global arrays [B, N, F] and [F] that runs `function` on each device's part.

  Without a mesh, `function` itself is returned.
  """
  sharding = _sharding.get()
  return function if sharding is None else sharding.per_device(function)

"""Where activations live, said by whoever traces a model on a mesh. A model names no axis of it."""

import contextlib
import contextvars
from collections.abc import Callable
from typing import NamedTuple

import jax

from vit_jax import trees


class Placement(NamedTuple):
  """What a model may ask about the devices that it is traced for."""

  stream: jax.sharding.Sharding  # of [B, ...], the batch axis in front
  gather: Callable  # (path, parameter of one layer) -> the parameter, whole where it is split for storage only
  per_device: Callable  # function of one device's [B, N, F] and [F] arrays -> function of the global ones


_placement: contextvars.ContextVar[Placement | None] = contextvars.ContextVar("placement", default=None)


@contextlib.contextmanager
def placed(stream: jax.sharding.Sharding, gather: Callable, per_device: Callable):
  """While tracing inside, these hold: the stream [B, ...] is pinned to its sharding after every layer, the parameters
  of a layer are gathered where it begins, and kernels run by device.

  XLA does not carry the batch axis into a scanned layer whose parameters are split: ViT-L/16 doubled its FLOPs.
  """
  token = _placement.set(Placement(stream, gather, per_device))
  try:
    yield
  finally:
    _placement.reset(token)


def pin(x: jax.Array) -> jax.Array:
  """The stream [B, ...], its batch axis kept where it is split."""
  placement = _placement.get()
  return x if placement is None else jax.lax.with_sharding_constraint(x, placement.stream)


def gather(prefix: str, params):
  """The parameters of one layer, whose paths begin with `prefix`, as its computation wants them."""
  placement = _placement.get()
  if placement is None:
    return params
  return trees.map_named(lambda path, value: placement.gather(prefix + path, value), params)


def per_device(function: Callable) -> Callable:
  """The function for global arrays [B, N, F] and [F], run on each device's part; without a mesh the function itself."""
  placement = _placement.get()
  return function if placement is None else placement.per_device(function)

"""Sharding of activations: set by whoever traces a model on a mesh, read by the model, which names no axis of it."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
from flax import nnx

from vit_jax import trees
from vit_jax.shapes import Float, Tensor


class Sharding(NamedTuple):
  """How activations are sharded while a model is traced."""

  stream: jax.sharding.Sharding  # of [B, ...], the batch axis in front
  gather: Callable  # (path, parameter of one layer) -> the parameter, whole where it is split for storage only
  per_device: Callable  # function of one device's [B, N, F] and [F] arrays -> function of the global ones


_sharding: contextvars.ContextVar[Sharding | None] = contextvars.ContextVar("sharding", default=None)


@contextlib.contextmanager
def sharded(stream: jax.sharding.Sharding, gather: Callable, per_device: Callable) -> Iterator[None]:
  """A model that is traced inside constrains its activations.

  XLA does not carry the batch axis into a scanned layer whose parameters are split: ViT-L/16 doubled its FLOPs.

  Args:
    stream: sharding of the stream [B, ...] after every layer.
    gather: function (path, parameter of one layer) -> the parameter as the layer computes with it.
    per_device: function that makes of a function of one device's [B, N, F] and [F] arrays one of the global arrays.
  """
  token = _sharding.set(Sharding(stream, gather, per_device))
  try:
    yield
  finally:
    _sharding.reset(token)


def constrain(x: Float[Tensor, " B *x"]) -> Float[Tensor, " B *x"]:
  """The stream under the constraint of its sharding; without a mesh x itself."""
  sharding = _sharding.get()
  return x if sharding is None else jax.lax.with_sharding_constraint(x, sharding.stream)


def gather(prefix: str, params: nnx.State) -> nnx.State:
  """The parameters of one layer, whose paths begin with `prefix`, as its computation wants them."""
  sharding = _sharding.get()
  if sharding is None:
    return params
  return trees.map_named(lambda path, value: sharding.gather(prefix + path, value), params)


def per_device(function: Callable) -> Callable:
  """The function for global arrays [B, N, F] and [F], run on each device's part; without a mesh the function itself."""
  sharding = _sharding.get()
  return function if sharding is None else sharding.per_device(function)

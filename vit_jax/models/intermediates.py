"""Access to intermediates by name: models announce values with `record`, and `capture` returns selected ones.

`record` also names the value for rematerialisation policies. Inside a stack of layers, names are local
("attention/weights"). Outside of the stack, they have the layer's prefix ("blocks/3/attention/weights"), whether or not
the stack is scanned.
"""

import collections
import contextlib
import contextvars
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.extend.core
from jax.ad_checkpoint import checkpoint_name

from vit_jax import schema
from vit_jax.shapes import Array, Shaped, Tensor


class Recorder:
  """A collection of the requested values and of all names.

  Args:
    wanted: function that returns whether the value with a name is stored.
  """

  def __init__(self, wanted: Callable[[str], bool]) -> None:
    # An OrderedDict keeps its order. JAX sorts the keys of a dict that leaves a jit as text: 0, 1, 10, 2.
    self.wanted, self.names, self.values = wanted, [], collections.OrderedDict()
    self.trace = jax.extend.core.get_opaque_trace_state()

  def add(self, name: str, x: Shaped[Tensor, "..."] | None) -> None:
    """Adds a value.

    Args:
      name: name of the value, which must be unique.
      x: the value, or None if it was not requested.

    Raises:
      ConfigError: if the name was recorded before, or if the value belongs to an inner JAX transformation.
    """
    if name in self.names:
      raise schema.ConfigError(f"capture: {name!r} is recorded twice. Capture a function that calls the model once")
    # A value from an inner jit, grad or vmap would leak. JAX detects leaks much later, with an unclear message.
    if self.trace != jax.extend.core.get_opaque_trace_state():
      raise schema.ConfigError(
        f"capture: {name!r} is computed inside of a jit, grad or vmap of the captured function. "
        "Apply the transformation outside: jax.jit(capture(function, ...))"
      )
    self.names.append(name)
    if self.wanted(name):
      self.values[name] = x


_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("recorder", default=None)


def record(name: str, x: Shaped[Tensor, "*x"]) -> Shaped[Array, "*x"]:
  """Announces a value under a name to captures and to rematerialisation policies, and returns the value.

  Args:
    name: name of the value.
    x: the value.
  """
  named = checkpoint_name(x, name)
  if recorder := _recorder.get():
    recorder.add(name, named)
  return named


@contextlib.contextmanager
def _recording(recorder: Recorder) -> Iterator[Recorder]:
  token = _recorder.set(recorder)
  try:
    yield recorder
  finally:
    _recorder.reset(token)


@contextlib.contextmanager
def layer(prefixes: Iterable[str]) -> Iterator[Recorder]:
  """Provides a recorder for the local names of one layer.

  The caller must return the recorder's `values` from the scan or checkpoint that runs the layer, and pass them to
  `publish`.

  Args:
    prefixes: prefixes of the layers. A local name is requested if its global name is requested for any prefix.
  """
  outer = _recorder.get()
  if outer is None:
    yield Recorder(lambda name: False)
    return
  prefixes = tuple(prefixes)
  with _recording(Recorder(lambda name: any(outer.wanted(prefix + name) for prefix in prefixes))) as recorder:
    yield recorder


def publish(prefix: str, names: Iterable[str], values: dict[str, Shaped[Tensor, "..."]]) -> None:
  """Announces the values of a `layer` under their global names.

  Args:
    prefix: prefix of the layer.
    names: all local names.
    values: {local name: value} of the requested values.
  """
  if recorder := _recorder.get():
    for name in names:
      recorder.add(prefix + name, values.get(name))


@contextlib.contextmanager
def scope(prefix: str) -> Iterator[None]:
  """Adds a prefix to all names that are recorded inside."""
  with layer([prefix]) as recorder:
    yield
  publish(prefix, recorder.names, recorder.values)


def capture(function: Callable[..., object], *patterns: str) -> Callable[..., tuple[Any, dict[str, Any]]]:
  """Converts a function to one that returns both its output and its intermediates.

  Args:
    function: a model, or a function that calls one model once. Apply JAX transformations to the result:
      jax.jit(capture(...)).
    *patterns: regular expressions or globs for whole names. In a glob, * does not match a slash:
      "blocks/*/attention/weights".

  Returns:
    A function with the same arguments, which returns (output, intermediates). The intermediates are an `OrderedDict`
    {name: value} in the order of computation. Layer 2 therefore precedes layer 10, even if the function is compiled.

  Raises:
    ConfigError: when the returned function is called, if a pattern matches no name.

  Example:
    import jax.numpy as jnp
    from vit_jax import models

    model = models.create("ViT-Ti/16", image_size=64, classes=10, depth=2)
    logits, found = models.capture(model, "blocks/*/attention/weights")(jnp.zeros((1, 64, 64, 3)))
    found["blocks/0/attention/weights"].shape  # (1, 3, 17, 17)
  """
  expressions = {pattern: [_glob(pattern), *_regular(pattern)] for pattern in patterns}

  def matches(pattern: str, name: str) -> bool:
    return any(expression.fullmatch(name) for expression in expressions[pattern])

  def call_and_record(*args: object, **kwargs: object) -> tuple[Any, dict[str, Any]]:
    with _recording(Recorder(lambda name: any(matches(p, name) for p in patterns))) as recorder:
      output = function(*args, **kwargs)
    if not recorder.names:
      raise schema.ConfigError(
        "capture: the function recorded no intermediates. If it is already compiled, "
        "use jax.jit(capture(function, ...))"
      )
    for pattern in patterns:
      if not any(matches(pattern, name) for name in recorder.names):
        raise schema.ConfigError(
          f"capture: no intermediate is called {pattern!r}.{schema.suggest_nearest(pattern, recorder.names)}"
        )
    return output, recorder.values

  return call_and_record


def _glob(pattern: str) -> re.Pattern[str]:
  return re.compile(re.escape(pattern).replace(r"\*", "[^/]*"))


def _regular(pattern: str) -> list[re.Pattern[str]]:
  try:
    return [re.compile(pattern)]
  except re.error:  # valid only as a glob, such as "*/weights"
    return []

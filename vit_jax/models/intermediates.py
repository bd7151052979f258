"""Intermediates by name: the model announces them with `record`, whoever wants some of them wraps a call in `capture`.

`record` also gives the value its name for rematerialisation policies, so one name serves both. Inside a stack of layers
names are local ("attention/weights"); outside they are "blocks/3/attention/weights", scanned or not.
"""

import collections
import contextlib
import contextvars
import re
from collections.abc import Callable, Iterable, Iterator

import jax
import jax.extend.core
from jax.ad_checkpoint import checkpoint_name

from vit_jax import schema
from vit_jax.shapes import Shaped, Tensor


class Recorder:
  """Collects the values whose names are wanted, and all names."""

  def __init__(self, wanted: Callable[[str], bool]):
    # JAX sorts the keys of a dict as text when it leaves a jit: 0, 1, 10, 2. An OrderedDict keeps its order.
    self.wanted, self.names, self.values = wanted, [], collections.OrderedDict()
    self.trace = jax.extend.core.get_opaque_trace_state()

  def add(self, name: str, x: Shaped[Tensor, "..."] | None) -> None:
    if name in self.names:
      raise schema.ConfigError(f"capture: {name!r} is recorded twice; capture a function that calls the model once")
    # A value from an inner jit, grad or vmap would leak out of it; JAX itself notices much later, with a riddle.
    if self.trace != jax.extend.core.get_opaque_trace_state():
      raise schema.ConfigError(
        f"capture: {name!r} is computed inside a jit, grad or vmap inside the captured function; "
        "apply the transformation outside: jax.jit(capture(function, ...))"
      )
    self.names.append(name)
    if self.wanted(name):
      self.values[name] = x


_recorder: contextvars.ContextVar[Recorder | None] = contextvars.ContextVar("recorder", default=None)


def record(name: str, x: Shaped[Tensor, "*x"]) -> Shaped[Tensor, "*x"]:
  """The value itself, announced under `name` to captures and to rematerialisation policies."""
  x = checkpoint_name(x, name)
  if recorder := _recorder.get():
    recorder.add(name, x)
  return x


@contextlib.contextmanager
def _recording(recorder):
  token = _recorder.set(recorder)
  try:
    yield recorder
  finally:
    _recorder.reset(token)


@contextlib.contextmanager
def layer(prefixes: Iterable[str]) -> Iterator[Recorder]:
  """Recorder of one layer's local names, which are wanted if any prefix makes them so.

  The caller returns its `values` out of the scan or checkpoint that runs the layer, and hands them to `publish`.
  """
  outer = _recorder.get()
  if outer is None:
    yield Recorder(lambda name: False)
    return
  prefixes = tuple(prefixes)
  with _recording(Recorder(lambda name: any(outer.wanted(prefix + name) for prefix in prefixes))) as recorder:
    yield recorder


def publish(prefix: str, names: Iterable[str], values: dict[str, Shaped[Tensor, "..."]]) -> None:
  """Announces what a `layer` recorded, under global names."""
  if recorder := _recorder.get():
    for name in names:
      recorder.add(prefix + name, values.get(name))


@contextlib.contextmanager
def scope(prefix: str) -> Iterator[None]:
  """Puts `prefix` in front of every name recorded inside."""
  with layer([prefix]) as recorder:
    yield
  publish(prefix, recorder.names, recorder.values)


def capture(function: Callable, *patterns: str) -> Callable:
  """Returns `function` with another result: (output, intermediates).

  Args:
    function: a model, or a function that calls one model once. Transformations go outside: jax.jit(capture(...)).
    *patterns: regular expressions or globs of whole names. A * of a glob does not match a slash:
      "blocks/*/attention/weights".

  Returns:
    A function with the arguments of `function`. The intermediates are an `OrderedDict` {name: value} in the order in
    which the model computes them, so layer 2 precedes layer 10, also after jax.jit.

  Raises:
    ConfigError: when the returned function is called, if a pattern matches nothing.
  """
  expressions = {pattern: [_glob(pattern), *_regular(pattern)] for pattern in patterns}

  def matches(pattern, name):
    return any(expression.fullmatch(name) for expression in expressions[pattern])

  def captured(*args, **kwargs):
    with _recording(Recorder(lambda name: any(matches(p, name) for p in patterns))) as recorder:
      output = function(*args, **kwargs)
    if not recorder.names:
      raise schema.ConfigError(
        "capture: the function announced no intermediates; if it is compiled already, "
        "write jax.jit(capture(function, ...))"
      )
    for pattern in patterns:
      if not any(matches(pattern, name) for name in recorder.names):
        raise schema.ConfigError(
          f"capture: no intermediate is called {pattern!r}.{schema.nearest(pattern, recorder.names)}"
        )
    return output, recorder.values

  return captured


def _glob(pattern):
  return re.compile(re.escape(pattern).replace(r"\*", "[^/]*"))


def _regular(pattern):
  try:
    return [re.compile(pattern)]
  except re.error:  # only a glob, such as "*/weights"
    return []

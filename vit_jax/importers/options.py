"""The options with which a user selects weights, in the form of the running command."""

import contextlib
import contextvars
from collections.abc import Iterator

FLAGS, ARGUMENTS, CONVERT = "flags", "arguments", "convert"
_form = contextvars.ContextVar("form", default=FLAGS)


@contextlib.contextmanager
def use_form(chosen: str) -> Iterator[None]:
  """Selects the form in which messages name the options, inside a `with` block.

  Args:
    chosen: `FLAGS` for a command, `ARGUMENTS` for Python, or `CONVERT` for a command without these options. Otherwise
      the location of the keys in a config, such as "config.init".
  """
  token = _form.set(chosen)
  try:
    yield
  finally:
    _form.reset(token)


def ema_option(averaged: bool) -> str:
  """Returns the option that requires averaged or raw weights."""
  match chosen := _form.get():
    case "flags":
      return "--ema" if averaged else "--no-ema"
    case "arguments":
      return f"ema={averaged}"
    case "convert":
      return f"python -m vit_jax.convert {'--ema' if averaged else '--no-ema'} FILE NEW"
    case _:
      return f"--{chosen}.ema={str(averaged).lower()}"


def prefix_option() -> str:
  """Returns the option that selects a model by the prefix of its names."""
  match chosen := _form.get():
    case "flags":
      return "--prefix=NAME"
    case "arguments":
      return "prefix='NAME'"
    case "convert":
      return "python -m vit_jax.convert --prefix=NAME FILE NEW"
    case _:
      return f"--{chosen}.prefix=NAME"

"""Summaries of docstrings, as Markdown."""

import inspect
import re
from collections.abc import Callable

EARLY = "The page is generated from the code.\n"


def is_shipped(function: Callable[..., object]) -> bool:
  """Returns whether a function is part of the package, and not registered by an extension."""
  return unwrap(function).__module__.startswith("vit_jax.")


def unwrap(function: Callable[..., object]) -> Callable[..., object]:
  """Returns the function of a `functools.partial`, also of a nested one."""
  while hasattr(function, "func"):
    function = function.func
  return function


def read_summary(function: Callable[..., object]) -> str:
  """Returns the first paragraph of a docstring."""
  return escape(re.sub(r"\s+", " ", (inspect.getdoc(unwrap(function)) or "").partition("\n\n")[0]))


def escape(text: str) -> str:
  """Escapes characters that Markdown would interpret, outside of inline code."""
  parts = re.split(r"(`[^`]*`)", text)
  return "".join(part if part.startswith("`") else re.sub(r"([*_<>\[\]|#])", r"\\\1", part) for part in parts)

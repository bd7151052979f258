"""Mistakes of users: what is wrong, at which key of the config, and what is allowed instead."""

import contextlib
import contextvars
import difflib
from collections.abc import Iterable, Iterator

_PLACE = contextvars.ContextVar("place", default="")


def place(key: str = "") -> str:
  """Dotted keys of the config up to what `at` says, and `key` of it: "config.data.crop"; "" outside of a config."""
  around = _PLACE.get()
  if not around or not key or key.startswith("config."):
    return key or around
  return around + key if key.startswith("[") else f"{around}.{key}"


@contextlib.contextmanager
def at(key: str) -> Iterator[None]:
  """Errors inside are at this key of the place around; a key that begins with "config." is a whole place."""
  token = _PLACE.set(place(key))
  try:
    yield
  finally:
    _PLACE.reset(token)


class ConfigError(ValueError):
  """A mistake in a config, a flag or the environment that the user can mend: says what, value, allowed, what to do.

  Args:
    message: all but the place.
    key: what is wrong, seen from the place around (see `at`).
  """

  def __init__(self, message: str, key: str = ""):
    super().__init__(message)
    self.message, self.place = message, place(key)

  def __str__(self):
    return f"{self.place}: {self.message}" if self.place else self.message


def nearest(word: str, allowed: Iterable) -> str:
  """' Did you mean ...?' or nothing, and what is allowed: the end of every error about a name."""
  allowed = [str(a) for a in allowed]
  close = difflib.get_close_matches(str(word), allowed, n=1, cutoff=0.5)
  some = ", ".join(allowed[:40]) + (f", ... ({len(allowed)} in all)" if len(allowed) > 40 else "")
  return (f" Did you mean {close[0]!r}?" if close else "") + f" Allowed: {some or 'nothing'}."

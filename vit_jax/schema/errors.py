"""Mistakes of users: what is wrong, at which key of the config, and what is allowed instead."""

import contextlib
import contextvars
import difflib
from collections.abc import Iterable, Iterator

import ml_collections

_PLACE = contextvars.ContextVar("place", default="")
SHOWN, LONGEST = 200, 2000  # characters of a value in a message, and of a whole message


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

  Whatever is in it, a terminal shows it and does not obey it, and it can be read: see `readable`.

  Args:
    message: all but the place.
    key: what is wrong, seen from the place around (see `at`).
  """

  def __init__(self, message: str, key: str = ""):
    self.message, self.place = readable(message), readable(place(key), SHOWN)
    super().__init__(self.message)

  def __str__(self):
    return f"{self.place}: {self.message}" if self.place else self.message


class UnknownKeyError(ConfigError):
  """A key that nothing takes at its place.

  Args:
    message: with a suggestion of a key at the same place.
    key: as of ConfigError.
    bare: the message without that suggestion, for a caller that knows a better one.
  """

  def __init__(self, message: str, key: str = "", bare: str = ""):
    super().__init__(message, key)
    self.bare = readable(bare or message)


class NotFiniteError(ConfigError):
  """Weights, or outputs of a model, that contain NaN or an infinite value."""


def readable(text: str, most: int = LONGEST) -> str:
  """The text without the middle of what is too long, and with characters that are not printed as escapes."""
  if len(text) > most:
    text = f"{text[: most * 3 // 5]}... ({len(text):,} characters) ...{text[-most // 5 :]}"
  if text.isprintable():
    return text
  return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def show(value) -> str:
  """A value as messages have it: as Python writes it, with little of what is long."""
  if isinstance(value, ml_collections.ConfigDict):
    value = value.to_dict()  # which is written as lines of YAML with the names of our classes
  try:
    return readable(repr(value), SHOWN)
  except ValueError:  # of a number of more than 4,300 digits
    return f"a {type(value).__name__} that is too long to print"


def some(names: Iterable, most: int = 40) -> str:
  """Names with commas between; of many the first, and how many there are."""
  names = [readable(str(name), SHOWN).replace("\n", "\\n") for name in names]
  return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def nearest(word: str, allowed: Iterable) -> str:
  """Returns " Did you mean ...?" for a similar name, and the allowed names; "" if there is none to choose from."""
  allowed = [str(a) for a in allowed]
  if not allowed:
    return ""
  word = word[:SHOWN] if isinstance(word, str) else show(word)
  close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
  return (f" Did you mean {show(close[0])}?" if close else "") + f" Allowed: {some(allowed)}."

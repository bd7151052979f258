"""Errors of users: the problem, the key of the config, and the allowed values."""

import contextlib
import contextvars
import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import ml_collections

_PLACE = contextvars.ContextVar("place", default="")
SHOWN, LONGEST = 200, 2000  # maximum number of characters of a value in a message, and of a whole message


def get_current_key(key: str = "") -> str:
  """Returns the dotted key of the current position in the config, such as "config.data.crop".

  Args:
    key: a key relative to the current position, or a complete key that starts with "config.".

  Returns:
    The position set by `enter_key`, extended by `key`. Outside a config it is `key`.
  """
  around = _PLACE.get()
  if not around or not key or key.startswith("config."):
    return key or around
  return around + key if key.startswith("[") else f"{around}.{key}"


@contextlib.contextmanager
def enter_key(key: str) -> Iterator[None]:
  """Sets the position in the config for errors that are raised inside the context.

  Args:
    key: a key relative to the surrounding position, or a complete key that starts with "config.".

  Example:
    from vit_jax import schema

    with schema.enter_key("config.optim"), schema.enter_key("lr"):
      error = schema.ConfigError("expected a positive number, got -1.0. Use a value such as 1e-3.")
    assert str(error).startswith("config.optim.lr: expected")
  """
  token = _PLACE.set(get_current_key(key))
  try:
    yield
  finally:
    _PLACE.reset(token)


class ConfigError(ValueError):
  """An error in a config, a flag or the environment that the user can fix.

  The message contains the problem, the value, the allowed values and the fix. Control characters and long values are
  replaced so that a terminal displays the message safely, see `make_printable`.

  Args:
    message: the message without the position.
    key: the wrong key, relative to the current position (see `enter_key`).

  Attributes:
    message: the readable message without the position.
    place: the dotted key of the position, or "".
  """

  def __init__(self, message: str, key: str = "") -> None:
    self.message, self.place = make_printable(message), make_printable(get_current_key(key), SHOWN)
    super().__init__(self.message)

  def __str__(self) -> str:
    return f"{self.place}: {self.message}" if self.place else self.message


class AbsentError(ConfigError):
  """An error for missing data. The message explains how to get them."""


class UnreachableError(AbsentError):
  """An error for data in a bucket that does not exist, does not answer, or cannot be used."""


class UnknownKeyError(ConfigError):
  """An error for a key that is not accepted at its position.

  Args:
    message: the message, with a suggestion of a key at the same position.
    key: the wrong key, as for ConfigError.
    bare: the message without the suggestion, for a caller with a better suggestion.
  """

  def __init__(self, message: str, key: str = "", bare: str = "") -> None:
    super().__init__(message, key)
    self.bare = make_printable(bare or message)


class NotFiniteError(ConfigError):
  """An error for weights or outputs of a model that contain NaN or an infinite value."""


def make_printable(text: str, most: int | None = LONGEST) -> str:
  """Returns a text that can be printed safely.

  Args:
    text: any text.
    most: maximum number of characters, or None for any length.

  Returns:
    The text with the middle of a long text removed, and with characters that cannot be printed as escapes.
  """
  if most is not None and len(text) > most:
    text = f"{text[: most * 3 // 5]}... ({len(text):,} characters) ...{text[-most // 5 :]}"
  if text.isprintable():
    return text
  return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def escape_line(text: str, most: int | None = None) -> str:
  """Returns a text on one line. Escapes replace characters that cannot be printed.

  Args:
    text: any text, such as a file name from a dataset.
    most: maximum number of characters, or None for any length.
  """
  return make_printable(text, most).replace("\n", "\\n")


def show(value: object) -> str:
  """Returns the `repr` of a value, shortened for a message."""
  if isinstance(value, ml_collections.ConfigDict):
    value = value.to_dict()  # otherwise the text would be lines of YAML with the names of our classes
  try:
    return make_printable(repr(value), SHOWN)
  except ValueError:  # a number with more than 4,300 digits
    return f"a {type(value).__name__} that is too long to print"


def format_names(names: Iterable[Any], most: int = 40) -> str:
  """Returns names separated by commas. A long list is shortened and followed by the total number.

  Args:
    names: the names.
    most: maximum number of names in the text.
  """
  names = [escape_line(str(name), SHOWN) for name in names]
  return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")


def suggest_nearest(word: str, allowed: Iterable[Any]) -> str:
  """Returns " Did you mean ...?" for a similar name, and the allowed names.

  Args:
    word: the unknown name.
    allowed: the allowed names.

  Returns:
    A text for the end of a message, or "" if no names are allowed.
  """
  allowed = [str(a) for a in allowed]
  if not allowed:
    return ""
  word = word[:SHOWN] if isinstance(word, str) else show(word)
  close = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
  return (f" Did you mean {show(close[0])}?" if close else "") + f" Allowed: {format_names(allowed)}."

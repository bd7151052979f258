"""Search for the place in a config at which a misplaced key would be correct."""

from collections.abc import Iterator, Mapping
from typing import Any

import ml_collections

from vit_jax.schema.suggestions import format_typed
from vit_jax.schema.texts import quote_word

DEPTH = 16  # maximum depth of nested groups; configs have up to 7
MOST = 3  # maximum number of places that a message names


# Messages for a config of another command.
MEASURES = (
  "--config: this config evaluates existing weights and does not train. Use python -m vit_jax.fewshot with this "
  "--config and --weights=PATH"
)
TRAINS = (
  "--config: this config trains a model. Use python -m vit_jax.train with this --config and --workdir=DIR, or "
  "python -m vit_jax.evaluate with this --config and --weights=PATH"
)


def is_measurement(config: Mapping[str, object] | ml_collections.ConfigDict) -> bool:
  """Returns true if a config is for `vit_jax.fewshot`: it has a key that no training run has.

  Args:
    config: an editable config.
  """
  return "image_size" in config and "checkpoint" not in config


def find_other_places(config: Mapping[str, object] | ml_collections.ConfigDict, key: str) -> list[str]:
  """Returns other places in a config for a misplaced key.

  A place is a key with the same last words, or a key that could be added to a group of that name. For "data.path" the
  first result may be "evals.pets.data.path", even if the group "evals.pets.data" has no path yet. As many of the last
  words as possible must match. The word "name" alone does not count because every choice has it.

  Args:
    config: the config in which the key is sought.
    key: a dotted key.

  Returns:
    Dotted keys, at most `MOST`.
  """
  groups = dict(_iterate_keys(config))
  words = key.split(".")
  for first in range(len(words)):
    tail = words[first:]
    for end in range(len(tail), 0, -1):
      head, rest = tail[:end], tail[end:]
      if tail == ["name"] or len(words) > DEPTH:
        continue
      at = [place for place, is_group in groups.items() if place.split(".")[-end:] == head and is_group == bool(rest)]
      if found := [there for place in at if (there := ".".join([place, *rest])) != key]:
        return sorted(found, key=lambda place: place.count("."))[:MOST]
  return []


def suggest_places(config: Mapping[str, object] | ml_collections.ConfigDict, key: str, value: str | None = None) -> str:
  """Returns " Did you mean ...?" with flags for the places of `find_other_places`, or "".

  Args:
    config: the config in which the key is sought.
    key: the key as the user wrote it.
    value: the value of the key. The default is the value that the config contains at this key.
  """
  text = _format_value(config, key) if value is None else value
  ending = f"={quote_word(text)}" if text else ""
  places = find_other_places(config, key)
  return f" Did you mean {' or '.join(f'--config.{place}{ending}' for place in places)}?" if places else ""


def _format_value(config: object, key: str) -> str:
  """Returns the value of a dotted key as a user would type it, or "" if it is a group or absent."""
  for name in key.split("."):
    if not isinstance(config, Mapping | ml_collections.ConfigDict) or name not in config:
      return ""
    config = config[name]
  return format_typed(config)


def _iterate_keys(config: Any, above: str = "", depth: int = 0) -> Iterator[tuple[str, bool]]:
  """Yields (dotted key, true if it is a group) for all keys. Keys without a value are included."""
  if depth > DEPTH:
    return
  editable = isinstance(config, ml_collections.ConfigDict)
  for key, value in config.items(preserve_field_references=True) if editable else config.items():
    is_group = isinstance(value, Mapping | ml_collections.ConfigDict)
    yield f"{above}{key}", is_group
    if is_group:
      yield from _iterate_keys(value, f"{above}{key}.", depth + 1)

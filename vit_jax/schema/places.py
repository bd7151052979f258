"""Where in a config a key stands that was looked for in another place."""

import shlex
from collections.abc import Iterator, Mapping

import ml_collections

from vit_jax.schema.suggestions import typed

DEPTH = 16  # of groups in each other; configs have up to 7
MOST = 3  # places that a message names


# Messages for a config of another command.
MEASURES = (
  "--config: it measures given weights and trains nothing. Use python -m vit_jax.fewshot with this --config and "
  "--weights=PATH"
)
TRAINS = (
  "--config: it trains a model. Use python -m vit_jax.train with this --config and --workdir=DIR, or "
  "python -m vit_jax.evaluate with this --config and --weights=PATH"
)


def is_measurement(config: Mapping | ml_collections.ConfigDict) -> bool:
  """Returns whether a config is for `vit_jax.fewshot`: it has a key that no run has."""
  return "image_size" in config and "checkpoint" not in config


def elsewhere(config: Mapping | ml_collections.ConfigDict, key: str) -> list[str]:
  """Other keys of a config that end as a dotted key does, or that it would be in a group of that name; at most `MOST`.

  Of "data.path" the first may be "evals.pets.data.path", also where the group "evals.pets.data" has no path yet. As
  many of the last words as possible count; "name" alone, which every choice has, does not.
  """
  groups = dict(_items(config))
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


def advice(config: Mapping | ml_collections.ConfigDict, key: str, value: str | None = None) -> str:
  """Returns " Did you mean ...?" with flags for the places of `elsewhere`, or nothing.

  Args:
    config: in which the key is sought.
    key: as the user wrote it.
    value: of the key; by default the value that the config has there.
  """
  text = _value(config, key) if value is None else value
  ending = f"={shlex.quote(text)}" if text else ""
  places = elsewhere(config, key)
  return f" Did you mean {' or '.join(f'--config.{place}{ending}' for place in places)}?" if places else ""


def _value(config, key):
  """Returns the value of a dotted key as a user would type it; "" if it is a group, or absent."""
  for name in key.split("."):
    if not isinstance(config, Mapping | ml_collections.ConfigDict) or name not in config:
      return ""
    config = config[name]
  return typed(config)


def _items(config, above: str = "", depth: int = 0) -> Iterator[tuple[str, bool]]:
  """(dotted key, whether it is a group) of all keys; a value that is not given yet is a key too."""
  if depth > DEPTH:
    return
  editable = isinstance(config, ml_collections.ConfigDict)
  for key, value in config.items(preserve_field_references=True) if editable else config.items():
    is_group = isinstance(value, Mapping | ml_collections.ConfigDict)
    yield f"{above}{key}", is_group
    if is_group:
      yield from _items(value, f"{above}{key}.", depth + 1)

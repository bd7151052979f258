"""Changes of a config as flags, and the sweep that a config file gives."""

from collections.abc import Mapping
from typing import Any

from vit_jax.config import Changes, Sweep
from vit_jax.schema import ConfigError


def flags(changes: Changes, base: Mapping) -> dict[str, str]:
  """Changes as `--config.KEY=VALUE` has them, {key: text}, for a config whose own values are `base`.

  A choice replaces the one of the config: of that, keys which the new one does not give return to their defaults.
  """
  result = {}
  for key, value in changes.items():
    if not isinstance(value, Mapping):
      result[key] = _text(value)
      continue
    old = base
    for name in key.split("."):
      old = old.get(name, {}) if isinstance(old, Mapping) else {}
    old = old if isinstance(old, Mapping) else {}
    result |= {f"{key}.{name}": "default" for name in old if name not in value}
    result |= flags({f"{key}.{name}": part for name, part in value.items()}, base)
  return result


def _text(value):
  if value is None:
    return "none"
  return repr(tuple(value)) if isinstance(value, list | tuple | range) else str(value)


def of(found: Any, file: str) -> Sweep:
  """The sweep that a config file's `sweep()` returned; a list of changes is compared, and nothing chosen."""
  if isinstance(found, Sweep):
    return found
  if isinstance(found, list | tuple):
    return Sweep(found, decide=None)
  raise ConfigError(
    f"--config: sweep() of {file} returned {found!r}; allowed: a Sweep or a list of changes, see vit_jax/config.py"
  )

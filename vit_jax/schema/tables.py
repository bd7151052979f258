"""Tables of names that a config can choose from, and tables that are computed from another table."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vit_jax.schema.bound import Bound
from vit_jax.schema.errors import ConfigError, show, suggest_nearest
from vit_jax.schema.signatures import Functions

Table = Functions


class Variants(dict[str, Callable[..., Any]]):
  """A table whose names share arguments.

  If a config selects a name other than the default, the arguments of the default are kept. Arguments that the new name
  does not have are dropped. The published arguments of a model therefore survive `--config.model.attention=fused`.
  """


class DerivedTable(Mapping[str, Any]):
  """A table with one entry for each entry of another table, computed when it is read.

  A name that is added to the other table is immediately available in this table. Registration therefore needs one line.
  """

  def __init__(
    self,
    base: Mapping[str, object],
    make: Callable[[str, Any], object],
    without: tuple[str, ...] = (),
    kind: type[Bound] = Bound,
  ) -> None:
    """Derives a table.

    Args:
      base: the other table, which may grow.
      make: computes an entry from (name, entry of `base`).
      without: names of `base` that this table omits.
      kind: type of the bound choices of this table.
    """
    self.kind = kind
    self._base, self._make, self._without = base, make, frozenset(without)
    self._made: dict[str, tuple[Any, Any]] = {}  # name -> (entry of base, entry of this table)

  def __getitem__(self, name: str) -> Any:
    if name in self._without:
      raise KeyError(name)
    entry = self._base[name]
    if name not in self._made or self._made[name][0] is not entry:
      self._made[name] = entry, self._make(name, entry)
    return self._made[name][1]

  def __iter__(self) -> Iterator[str]:
    return (name for name in self._base if name not in self._without)

  def __len__(self) -> int:
    return sum(1 for _ in self)

  def __contains__(self, name: object) -> bool:
    return name in self._base and name not in self._without


def lookup(table: Table, name: str) -> tuple[Callable[..., Any], ...]:
  """Returns the functions of a name in a table.

  Args:
    table: {name: function or functions}.
    name: the name to look up.

  Raises:
    ConfigError: the name is unknown. The message contains the closest name.
  """
  if name not in table:
    raise ConfigError(f"unknown name {show(name)}.{suggest_nearest(name, table)}", "name")
  entry = table[name]
  return entry if isinstance(entry, tuple) else (entry,)

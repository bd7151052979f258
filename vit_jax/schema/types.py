"""Types that a signature may use: ranges of numbers, patterns, durations and choices."""

import dataclasses
import math
import re
import typing
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from vit_jax.schema.errors import ConfigError, show

_Self = TypeVar("_Self", bound="Choice")


class Range(NamedTuple):
  """An interval of numbers for annotations: `Annotated[float, Range(0, 1)]`.

  Attributes:
    low: the lower bound.
    high: the upper bound.
    open_low: true excludes the lower bound.
    open_high: true excludes the upper bound.
  """

  low: float = -math.inf
  high: float = math.inf
  open_low: bool = False
  open_high: bool = False

  def __contains__(self, value: object) -> bool:
    if not isinstance(value, int | float):
      raise TypeError(f"{value!r} is not a number")
    above = value > self.low if self.open_low else value >= self.low
    return above and (value < self.high if self.open_high else value <= self.high)

  def __str__(self) -> str:
    return f"{'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"


Count = Annotated[int, Range(1, 2**40)]
Positive = Annotated[float, Range(0, math.inf, open_low=True, open_high=True)]
NonNegative = Annotated[float, Range(0, math.inf, open_high=True)]
Fraction = Annotated[float, Range(0, 1)]
Probability = Annotated[float, Range(0, 1, open_high=True)]  # a probability of dropping: 1 would drop everything
# The momentum of a moving average: 1 would never change the average.
Momentum = Annotated[float, Range(0, 1, open_high=True)]
Pattern = typing.NewType("Pattern", str)  # a regular expression for a whole parameter path, see `patterns`


class Required(str):
  """A placeholder for a value that a recipe requires from its user. `resolve` reports the missing key by name."""


required = Required("required: no value yet")


class Duration(str):
  """A length of training: steps ("500", "10k"), epochs ("90ep"), examples ("2Mex") or a share of the run ("5%").

  Args:
    value: the text, or a number of steps.

  Attributes:
    amount: the number in the unit.
    unit: "st", "ep", "ex" or "%".

  Raises:
    ConfigError: the text is not a duration.

  Example:
    from vit_jax import schema

    assert schema.Duration("90ep").count_steps(batch=1024, examples=1_281_167) == 112_603
  """

  amount: float
  unit: str
  _FORM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([kM]?)(st|ep|ex|%)?")

  def __new__(cls, value: object) -> "Duration":
    text = value.strip() if isinstance(value, str) else show(value)
    match = cls._FORM.fullmatch(text)
    if isinstance(value, bool) or not match:
      raise ConfigError(
        f"{show(value)} is not a length of training. Write steps as 500 or '10k', epochs as '90ep', examples as "
        "'2Mex', or a percentage as '5%'"
      )
    self = super().__new__(cls, text)
    number, scale, unit = match.groups()
    self.amount = float(number) * {"": 1, "k": 1_000, "M": 1_000_000}[scale]
    self.unit = unit or "st"
    if self.amount > 2**53:
      raise ConfigError(f"{show(text)} is longer than any run. Allowed: up to 2**53 steps, epochs or examples")
    return self

  def count_steps(self, batch: int, examples: int, total: int | None = None) -> int:
    """Returns the nearest number of steps. It is at least one unless the duration is zero.

    Args:
      batch: examples in one step.
      examples: examples in one epoch.
      total: steps of the whole run. Required for a percentage.

    Raises:
      ConfigError: the duration is a percentage and `total` is None.
    """
    if self.unit == "%" and total is None:
      raise ConfigError(f"the length of the run cannot be a percentage ({self!s}). Use steps, 'ep' or 'ex'")
    scale = {"st": 1, "ep": examples / batch, "ex": 1 / batch, "%": (total or 0) / 100}[self.unit]
    return max(round(self.amount * scale), 1) if self.amount else 0


@dataclasses.dataclass(frozen=True)
class Choice:
  """A name from a table with keyword arguments for the function that it names.

  Args:
    name: a name in a table.
    args: {argument: value}.
  """

  name: str
  args: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Choice) and (self.name, self.args) == (other.name, other.args)

  def __repr__(self) -> str:
    # Digests of labels and of cached features contain this text, so it is the same for bound choices.
    return f"Choice(name={self.name!r}, args={self.args!r})"

  def replace(self: _Self, **args: object) -> _Self:
    """Returns the choice with some arguments replaced or added.

    Args:
      **args: the arguments.
    """
    return dataclasses.replace(self, args={**self.args, **args})

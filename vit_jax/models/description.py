"""Which model: a name with arguments, and the sizes it is made for."""

import dataclasses
from typing import Any

from vit_jax import renames, schema
from vit_jax.models import table
from vit_jax.models.published.model import Published
from vit_jax.schema import Choice, ConfigError, amount

# How a model is computed and regularised is not what it is, nor is how its weights are made to fit another resolution.
_BESIDE = (
  "resampling",
  *("scan", "remat", "dtype", "dropout", "attention_dropout", "stochastic_depth"),
  *("stochastic_depth_rates", "momentum", "head_bias", "head_std"),
)


def in_words(value: Any) -> str:
  """An argument in a line; of a choice its name, and its own in brackets."""
  if not isinstance(value, Choice):
    return str(value)
  own = " ".join(f"{key}={one}" for key, one in value.args.items())
  return f"{value.name} ({own})" if own else value.name


@dataclasses.dataclass(frozen=True)
class Description:
  """A model by name and arguments, for images of a size; no classes means no head."""

  model: Choice
  image_size: int | tuple[int, int]
  classes: int
  channels: int = 3

  def __hash__(self):
    # Of equal descriptions equal; arguments are a dict, which has none.
    return hash((self.model.name, tuple(self.model.args), self.image_size, self.classes, self.channels))

  @property
  def published(self) -> Published:
    """What the name stands for."""
    with schema.at("model"):
      return table.find(self.model.name)

  def replaced(self, **changes) -> "Description":
    """The description with other values."""
    return dataclasses.replace(self, **changes)

  def bound(self) -> "Description":
    """The description with every argument of the model checked and filled in; ConfigError for what is not allowed."""
    with schema.at("model"):
      return self.replaced(model=table.bind(self.model))

  def unscanned(self) -> "Description":
    """The same model with parameters layer by layer, as importers have them."""
    args = {key: value for key, value in self.model.args.items() if key != "scan"}
    return self.replaced(model=Choice(self.model.name, args))

  def arguments(self) -> dict[str, Any]:
    """All arguments of the model, with defaults filled in."""
    return dict(self.bound().model.args)

  def essential(self) -> dict[str, Any]:
    """The arguments that make another model than the name alone."""
    default = self.replaced(model=Choice(self.model.name)).arguments()
    return {key: value for key, value in self.arguments().items() if key not in _BESIDE and value != default[key]}

  def flags(self) -> str:
    """The flags that select the model in a config."""
    chosen = {"name": self.model.name}
    for key, value in self.essential().items():
      if isinstance(value, Choice):
        chosen |= {f"{key}.name": value.name} | {f"{key}.{inner}": one for inner, one in value.args.items()}
      else:
        chosen[key] = value
    return " ".join(schema.texts.flag(f"config.model.{key}", value) for key, value in chosen.items())

  def __str__(self):
    """One line: model, arguments, sizes."""
    size = self.image_size
    arguments = "".join(f", {key}={in_words(value)}" for key, value in self.essential().items())
    side = f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"
    classes = amount(self.classes, "class", "classes") if self.classes else "no classes"
    return f"{self.model.name}{arguments} ({side}, {classes})"

  def to_json(self) -> dict[str, Any]:
    """The description as JSON values."""
    return schema.plain(self)

  @classmethod
  def from_json(cls, values: Any) -> "Description":
    """The description that `to_json` gave these values for; ConfigError for others."""
    try:
      model, size = renames.model(values["model"]), values["image_size"]
      sides = [size] if isinstance(size, int) else list(size)
      classes, channels = values["classes"], values["channels"]
      if not all(type(number) is int for number in (*sides, classes, channels)):
        raise TypeError("a size is no whole number")
      in_range = 0 < min(sides) <= max(sides) < 2**16 and 0 <= classes < 2**31 and 0 < channels < 2**16
      if not in_range or len(sides) > 2:
        raise ValueError("a size is out of range")
      return cls(Choice(str(model.pop("name")), model), size if len(sides) == 1 else tuple(sides), classes, channels)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
      raise ConfigError(f"{schema.show(values)} does not describe a model: {error!r}") from error

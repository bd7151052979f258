"""Descriptions of models: a name with arguments, and the sizes of images and outputs."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax import schema
from vit_jax.config import migrations
from vit_jax.models import table
from vit_jax.models.published.model import Published
from vit_jax.schema import Choice, ConfigError, format_amount

# Arguments for computation, regularisation, initial values and resampling of weights do not identify a model.
_INESSENTIAL = (
  "resampling",
  *("scan", "remat", "dtype", "matmul", "dropout", "attention_dropout", "stochastic_depth"),
  *("attention.dropout", "stochastic_depth_rates", "momentum", "head.bias", "head.std"),
)


def format_argument(value: object) -> str:
  """Formats an argument. A Choice becomes `name (key=value ...)`."""
  if not isinstance(value, Choice):
    return str(value)
  own = " ".join(f"{key}={one}" for key, one in value.args.items())
  return f"{value.name} ({own})" if own else value.name


def _find_problem(values: object) -> str:
  """Returns the reason why JSON values do not describe a model, or ""."""
  if not isinstance(values, Mapping):
    return "it is not an object of names and values"
  if missing := [key for key in ("model", "image_size", "classes", "channels") if key not in values]:
    return f"{missing[0]} is missing"
  model, size, classes, channels = (values[key] for key in ("model", "image_size", "classes", "channels"))
  if not isinstance(model, Mapping) or not isinstance(model.get("name"), str):
    return f"model is {schema.show(model)}. Allowed: a name with arguments"
  sides = size if isinstance(size, list | tuple) else [size]
  for name, number in (("classes", classes), ("channels", channels)):
    low, high = (0, 2**31) if name == "classes" else (1, 2**16)
    if type(number) is not int or not low <= number < high:
      return f"{name} is {schema.show(number)}. Allowed: a whole number from {low} to {high - 1}"
  if len(sides) not in (1, 2) or not all(type(side) is int and 0 < side < 2**16 for side in sides):
    return f"image_size is {schema.show(size)}. Allowed: one or two whole numbers from 1 to {2**16 - 1}"
  return ""


@dataclasses.dataclass(frozen=True)
class Description:
  """A model by name and arguments, for images of a certain size.

  Args:
    model: name and arguments of the model.
    image_size: side of square images in pixels, or (height, width).
    classes: number of classes. 0 for a model without a head.
    channels: number of image channels.
  """

  model: Choice
  image_size: int | tuple[int, int]
  classes: int
  channels: int = 3

  def __hash__(self) -> int:
    # Equal descriptions have equal hashes. The arguments are a dict, which cannot be hashed, so their keys are used.
    return hash((self.model.name, tuple(self.model.args), self.image_size, self.classes, self.channels))

  @property
  def published(self) -> Published:
    """The row of the model table that the name selects."""
    with schema.enter_key("model"):
      return table.find(self.model.name)

  def replace(self, **changes: Any) -> "Description":
    """Returns the description with other values."""
    return dataclasses.replace(self, **changes)

  def change(self, settings: Mapping[str, Any]) -> "Description":
    """Returns the description with other settings.

    Args:
      settings: settings with dotted keys. The name of a choice keeps those of its arguments that the new name has.
    """
    settings = {**self.differences(self.model.name), **settings}
    return self.replace(model=Choice(self.model.name, schema.nest_choices(settings)))

  def bind(self) -> "Description":
    """Returns the description with all arguments of the model checked and filled in.

    Raises:
      ConfigError: if the name or an argument is invalid.
    """
    with schema.enter_key("model"):
      return self.replace(model=table.bind(self.model))

  def unscan(self) -> "Description":
    """Returns the same model with separate parameters for each layer, as importers require."""
    args = {key: value for key, value in self.model.args.items() if key != "scan"}
    return self.replace(model=Choice(self.model.name, args))

  def arguments(self) -> dict[str, Any]:
    """Returns all arguments of the model, including defaults."""
    return dict(self.bind().model.args)

  def settings(self) -> dict[str, Any]:
    """Returns all arguments of the model with dotted keys, such as "norm.eps", see `schema.flatten_choices`."""
    return schema.flatten_choices(self.arguments())

  def essential(self) -> dict[str, Any]:
    """Returns the settings with values that differ from those that the name implies."""
    return {key: value for key, value in self.differences(self.model.name).items() if key not in _INESSENTIAL}

  def differences(self, name: str) -> dict[str, Any]:
    """Returns the settings with which another name describes this model.

    Args:
      name: name of a model of the same family.
    """
    settings, choices = self.settings(), {key: one for key, one in self.arguments().items() if isinstance(one, Choice)}
    default = self.replace(model=Choice(name)).arguments()
    names = {key: one.name for key, one in choices.items() if one.name != default[key].name}
    implied = self.replace(model=Choice(name, names)).settings()
    return names | {key: value for key, value in settings.items() if value != implied[key]}

  def flags(self) -> str:
    """Returns the command-line flags that select the model in a config."""
    chosen = {"name": self.model.name} | schema.flatten_choices(self.essential())
    return " ".join(schema.texts.format_flag(f"config.model.{key}", value) for key, value in chosen.items())

  def __str__(self) -> str:
    """Formats the model, its essential arguments and its sizes in one line."""
    size = self.image_size
    arguments = "".join(f", {key}={format_argument(value)}" for key, value in self.essential().items())
    side = f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"
    classes = format_amount(self.classes, "class", "classes") if self.classes else "no classes"
    return f"{self.model.name}{arguments} ({side}, {classes})"

  def to_json(self) -> dict[str, Any]:
    """Returns the description as JSON values."""
    return schema.to_plain(self)

  @classmethod
  def from_json(cls, values: Any) -> "Description":
    """Inverts `to_json`.

    Args:
      values: JSON values, which may be from an older version.

    Raises:
      ConfigError: if the values do not describe a model.
    """
    if problem := _find_problem(values):
      raise ConfigError(f"{schema.show(values)} does not describe a model: {problem}")
    model, size = migrations.migrate_model(values["model"]), values["image_size"]
    shape = size if isinstance(size, int) else size[0] if len(size) == 1 else (size[0], size[1])
    return cls(Choice(model.pop("name"), model), shape, values["classes"], values["channels"])

"""Comparison of the JSON files next to weights with the model that the tensors describe."""

from collections.abc import Mapping
from typing import Any

from vit_jax.importers import layout
from vit_jax.importers.hints import Hints
from vit_jax.importers.hub import timm_names, transformers_config
from vit_jax.importers.layout import Layout
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError, format_amount, show

# model_type of Transformers -> `transformers_config.find_model_type` of the models with tensors of layout "hf".
_TYPES = {
  **dict.fromkeys(("vit", "deit", "vit_mae", "vit_msn"), None),
  **dict.fromkeys(("dinov2", "dinov2_with_registers"), "dinov2"),
  "dinov3_vit": "dinov3",
  **dict.fromkeys(("siglip", "siglip_vision_model"), "siglip"),
}
_ANY = "timm_wrapper"  # Transformers' wrapper of timm models, for any family


def check(description: Description, hints: Hints, chosen: Layout) -> list[str]:
  """Compares the statements of files next to weights with the model.

  Args:
    description: the model of the tensors.
    hints: the result of `metadata.read_hints`. "stated" contains the values that must be equal to those of the model.
      "architecture" and "model_type" are names of timm and Transformers. "derived" contains the sizes of the
      architecture. "prepared_side" is the size of the images that a preprocessor makes.
    chosen: the layout of the tensors.

  Returns:
    Notes for the user.

  Raises:
    ConfigError: for the first statement that is false.
  """
  stated, notes = hints.get("stated") or {}, []
  _check_names(description, hints, chosen)
  facts = collect_facts(description, stated) if stated or hints.get("derived") else {}
  for key, value in stated.items():
    if key == "classes" and value and not description.classes:
      notes.append(f"config.json states {format_amount(value, 'class', 'classes')}, but the weights have no head")
    elif facts.get(key) != value:
      raise _create_error(description, key, value, facts.get(key))
  if other := {key: value for key, value in hints.get("derived", {}).items() if facts[key] != value}:
    means, has = (", ".join(f"{key}={values[key]}" for key in other) for values in (other, facts))
    notes.append(
      f"config.json names the architecture {show(hints['architecture'])} with {means}, but the weights have {has}"
    )
  side = hints.get("prepared_side")
  if side not in (None, description.image_size) and (not isinstance(side, int) or _has_fixed_size(description)):
    raise ConfigError(
      f"preprocessor_config.json next to it makes images of {_format_pixels(side)}, but the tensors are those of a "
      f"model for {_format_pixels(description.image_size)}. Correct or remove preprocessor_config.json"
    )
  return notes


def _create_error(description: Description, key: str, value: object, fact: object = None) -> ConfigError:
  """Returns the error for a false statement in config.json."""
  instead = "" if fact is None else f" with {key}={show(fact)}"
  return ConfigError(
    f"config.json next to it states {key}={show(value)}, but the tensors are those of {description}{instead}. "
    "Correct or remove config.json"
  )


def _check_names(description: Description, hints: Hints, chosen: Any) -> None:
  """Raises ConfigError if an architecture or a model_type belongs to other models."""
  family = description.published.family
  if (kind := hints.get("model_type")) is not None:
    same = kind in _TYPES if family == "vit" else kind == family
    if same and (family, chosen.name) == ("vit", "hf"):
      same = _TYPES[kind] == transformers_config.find_model_type(description)
    if not same and kind != _ANY:
      raise _create_error(description, "model_type", kind)
  if (name := hints.get("architecture")) is not None:
    row = timm_names.find_published(name)
    if timm_names.find_family(name) != family or (row and family != "vit" and not _has_same_shapes(description, name)):
      raise _create_error(description, "architecture", name)


def collect_facts(description: Description, stated: Mapping[str, object]) -> dict[str, Any]:
  """Collects the true values of a model, under the keys of the statements.

  Args:
    description: the model.
    stated: statements about the model. If a value has several notations, the stated notation is returned.

  Returns:
    Values such as {"width": 192, "heads": 3}.
  """
  shapes, bound = layout.compute_shapes(description), description.settings()
  facts = {
    "channels": description.channels,
    "image_size": description.image_size,
    "pool": bound.get("head") or bound.get("pool") or "gap",
  }
  facts["classes"] = description.classes
  facts |= {key: bound[key] for key in ("gelu", "eps", "registers", "mlp") if key in bound}
  if facts["pool"] == "distilled":
    facts["pool"] = "cls"
  if "embedding/kernel" in shapes:
    facts |= {"patch": shapes["embedding/kernel"][0], "width": shapes["embedding/kernel"][-1]}
  if query := shapes.get("blocks/0/attention/query/kernel"):
    facts |= {"width": query[0], "heads": query[1], "hidden": shapes["blocks/0/mlp/up/kernel"][1]}
    facts["depth"] = len({path.split("/")[1] for path in shapes if path.startswith("blocks/")})
    facts["mlp_ratio"] = _find_ratio(facts, bound, stated)
  if description.published.family == "vit":
    facts["has_qkv_bias"], facts["has_qk_norm"] = (
      bound["attention.bias"] != "none",
      bound["attention.qk_norm"] != "none",
    )
    facts["has_class_token"] = facts["pool"] == "cls" or bool(bound.get("head.class_token"))
    facts["has_layer_scale"] = bound["layer_scale"] is not None
    facts |= {"eps": bound["norm.eps"], "qkv_bias": bound["attention.bias"]}
  facts["norm_order"] = bound.get("norm.order", bound.get("norm_order"))
  facts["rotary"] = _select_stated(bound.get("position.rotary"), stated.get("rotary"))
  return facts


def _find_ratio(facts: Mapping[str, Any], bound: Mapping[str, object], stated: Any) -> Any:
  """Returns the stated ratio if it gives the hidden width after timm's rounding. A gated MLP accepts any ratio."""
  ratio = stated.get("mlp_ratio", 0)
  same = bound.get("mlp", "gelu") != "gelu" or int(facts["width"] * ratio) == facts["hidden"]
  return ratio if same else facts["hidden"] / facts["width"]


def _select_stated(choice: Any, stated: Any) -> Any:
  """Removes the arguments of a choice that the statement does not contain, if both have the same name."""
  same = choice is not None and stated is not None and choice.name == stated.name
  return Choice(choice.name, {key: choice.args[key] for key in stated.args}) if same else choice


def _has_same_shapes(description: Description, name: str) -> bool:
  """Returns true if the model has the shapes of a published model, apart from the head."""
  try:
    other = Description(Choice(name), description.image_size, description.classes, description.channels)
    expected = layout.compute_shapes(other)
  except ConfigError:  # the published model does not support images of this size
    return False
  return expected == layout.compute_shapes(description)


def _has_fixed_size(description: Description) -> bool:
  """Returns true if Transformers rejects images of another size. Its DINOv2 and DINOv3 accept any size."""
  return description.published.family == "vit" and transformers_config.find_model_type(description) not in (
    "dinov2",
    "dinov3",
  )


def _format_pixels(size: int | tuple[int, int]) -> str:
  return f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"

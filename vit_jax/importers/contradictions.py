"""Comparison of the JSON files next to weights with the model that the tensors describe."""

from collections.abc import Mapping
from typing import Any

from vit_jax.importers import hub_transformers, layout
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError, show


def check(description: Description, hints: Mapping[str, Any]) -> None:
  """Compares what files next to weights state with the model.

  Args:
    description: the model of the tensors.
    hints: as from `hub.hints`. `said` are the values that must be true of the model, `prepared_side` is the size of
      the images that a preprocessor makes.

  Raises:
    ConfigError: for the first statement that is not true.
  """
  said = hints.get("said") or {}
  facts = _facts(description, said) if said else {}
  for key, value in said.items():
    if facts.get(key) != value:
      raise ConfigError(
        f"config.json next to it states {key}={show(value)}; the tensors are those of {description} with "
        f"{key}={show(facts.get(key))}. Correct or remove config.json"
      )
  side = hints.get("prepared_side")
  if side not in (None, description.image_size) and (not isinstance(side, int) or _fixed_size(description)):
    raise ConfigError(
      f"preprocessor_config.json next to it makes images of {_pixels(side)}; the tensors are those of a model for "
      f"{_pixels(description.image_size)}. Correct or remove preprocessor_config.json"
    )


def _facts(description, said) -> dict[str, Any]:
  """Returns what is true of the model, under the keys of `said`."""
  shapes, bound = layout.shapes(description), description.arguments()
  facts = {"channels": description.channels, "image_size": description.image_size, "pool": bound.get("pool") or "gap"}
  facts |= {key: bound[key] for key in ("gelu", "eps", "registers", "mlp", "qkv_bias") if key in bound}
  if facts["pool"] == "distilled":
    facts["pool"] = "cls"
  if "embedding/kernel" in shapes:
    facts["patch"] = shapes["embedding/kernel"][0]
  if query := shapes.get("blocks/0/attention/query/kernel"):
    facts |= {"width": query[0], "heads": query[1], "hidden": shapes["blocks/0/mlp/up/kernel"][1]}
    facts["depth"] = len({path.split("/")[1] for path in shapes if path.startswith("blocks/")})
  facts["norm_order"] = bound.get("norm_order")
  facts["rotary"] = _as_said(bound.get("rotary"), said.get("rotary"))
  return facts


def _as_said(choice, said):
  """Returns a choice with only the arguments that are stated too, if it has the same name."""
  same = choice is not None and said is not None and choice.name == said.name
  return Choice(choice.name, {key: choice.args[key] for key in said.args}) if same else choice


def _fixed_size(description):
  """Returns whether Transformers refuses images of another size: its DINOv2 and DINOv3 take any size."""
  return description.published.family == "vit" and hub_transformers.kind(description) not in ("dinov2", "dinov3")


def _pixels(size):
  return f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"

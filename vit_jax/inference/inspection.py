"""Descriptions of weight files as tables for the screen, and checks of the hints of users against the weights."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import importers, models
from vit_jax.importers import layout
from vit_jax.importers.formats import content
from vit_jax.importers.formats.lazy_tensors import Tensors
from vit_jax.importers.hints import Hints
from vit_jax.models import flops
from vit_jax.models.description import format_argument
from vit_jax.schema import ConfigError, format_amount
from vit_jax.storage import hub_files
from vit_jax.tasks import cost


def inspect_weights(path: pathlib.Path, hints: Hints, ema: bool | None = None, prefix: str | None = None) -> str:
  """Describes a weight file as a table for the screen.

  The table contains layout, family, model, sizes, head, resolution, classes, number of parameters, and flags for a
  config.

  Args:
    path: a workdir or a weight file.
    hints: facts that the file does not contain: `heads`, `image_size` and `resampling`.
    ema: selects averaged or raw weights.
    prefix: selects one of several models in a file.

  Raises:
    ConfigError: the file cannot be read or is not recognised.
  """
  path = hub_files.resolve_weights(path)
  if importers.is_workdir(path):
    description, arrays = importers.load(path, hints, ema, prefix)
    kind, stored, notes, images = "checkpoint of vit_jax", format_amount(len(arrays), "array"), [], []
  else:
    recognised = importers.inspect(path, hints, ema=ema, prefix=prefix)
    description, kind = (
      recognised.description,
      f"{recognised.layout.name} names ({content.find_suffix(path) or path.suffix})",
    )
    stored, notes, images = format_amount(len(recognised.tensors), "tensor"), recognised.notes, recognised.image_notes()
    recognised.check()
  shapes, bound = layout.compute_shapes(description), description.settings()
  check_hints(description, hints)
  rows = {
    "layout": f"{kind}, {stored}",
    "family": description.published.family,
    "model": description.model.name,
    **describe_transformer(shapes, bound),
    "resolution": _format_pixels(description.image_size) + f", {format_amount(description.channels, 'channel')}",
    "classes": str(description.classes or "none: no head"),
    "parameters": f"{sum(int(np.prod(shape)) for shape in shapes.values()):,}",
    "arithmetic": flops.format_flops(cost.count_model_flops(description)),
    "config": description.flags(),
    **({"images": "; ".join(images)} if images else {}),
  }
  return "\n".join([*(f"{key:<11} {value}" for key, value in rows.items()), *(f"note: {note}" for note in notes)])


def describe_transformer(shapes: Mapping[str, tuple[int, ...]], bound: Mapping[str, Any]) -> dict[str, str]:
  """Returns facts about a transformer as text: patch, size, pooling and positions. Returns {} for other models.

  Args:
    shapes: maps the path of each parameter to its shape.
    bound: arguments of the model.
  """
  result = {}
  if "embedding/kernel" in shapes:
    result["patch"] = str(shapes["embedding/kernel"][0])
  query = next((shape for path, shape in shapes.items() if path.endswith("blocks/0/attention/query/kernel")), None)
  depth = len({path.split("/")[1] for path in shapes if path.startswith("blocks/")})
  if query and depth:
    hidden = shapes["blocks/0/mlp/up/kernel"][1]
    result["size"] = f"width {query[0]}, depth {depth}, heads {query[1]}, hidden {hidden}"
  tokens = {"pool/score/kernel": "seqpool", "pool/probe": "map", "distillation": "distilled", "cls": "cls"}
  result["pool"] = (
    bound.get("head") or bound.get("pool") or next((word for path, word in tokens.items() if path in shapes), "gap")
  )
  words = ["registers", "position", "head.pre_logits", "gelu", "eps", "norm.eps", "norm_order", "norm.order"]
  words += ["stages", "padding", "resampling"]
  result |= {word: str(bound[word]) for word in words if bound.get(word) not in (None, 0)}
  if "position.rotary" in bound and bound["position.rotary"].name != "none":
    result["position.rotary"] = format_argument(bound["position.rotary"])
  return result


def _format_pixels(size: int | tuple[int, int]) -> str:
  return f"{size} px" if isinstance(size, int) else f"{size[0]} x {size[1]} px"


def check_hints(description: models.Description, hints: Hints) -> None:
  """Checks the hints against the weights.

  Args:
    description: the model of the weights.
    hints: values of flags by name.

  Raises:
    ConfigError: a flag contradicts the weights or does not apply to them.
  """
  facts = {"heads": count_heads(description), "image_size": description.image_size}
  facts["resampling"] = description.arguments().get("resampling")
  for key, value in hints.items():
    if _as_pair(facts[key]) != _as_pair(value):
      flag = f"--{key.replace('_', '-')}"
      known = "no packed heads" if facts[key] is None else f"{key}={facts[key]}"
      shown = ",".join(map(str, value)) if isinstance(value, tuple) else value
      raise ConfigError(f"{flag}={shown}: the weights are of {description}, which has {known}. Leave {flag} out")


def _as_pair(value: object) -> Any:
  return tuple(value) if isinstance(value, list | tuple) else (value, value)


def count_heads(description: models.Description) -> int | None:
  """Returns the number of attention heads, or None if the parameters do not determine it."""
  return next(
    (s[1] for path, s in layout.compute_shapes(description).items() if path.endswith("/0/attention/query/kernel")), None
  )


def count_values(arrays: Tensors) -> int:
  """Returns the number of values in all arrays."""
  return sum(math.prod(array.shape) for array in arrays.values())

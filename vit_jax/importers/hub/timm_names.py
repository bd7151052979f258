"""Names of timm's architectures: the family and the sizes of the model that a name describes."""

import re
from collections.abc import Mapping

from vit_jax.models import table
from vit_jax.models.published.model import Published
from vit_jax.schema import ConfigError, show

# Prefixes of names that our table does not contain, with the family that has the same tensors.
_FAMILIES = (
  (r"(test_|naflex)?vit\d?(_|$)|deit3?_|eva\d*_|beit\w*_|flexivit_|aimv2_", "vit"),
  (r"swin_", "swin"),
  (r"mixer_", "mixer"),
  (r"resnetv2_", "bit"),
  (r"(tf_|test_)?efficientnet_", "efficientnet"),
)


def find_published(architecture: str) -> Published | None:
  """Returns the row of our table for a name, which may have a tag, as in "vit_tiny_patch16_224.augreg_in21k"."""
  return table.TABLE.get(_normalise_name(architecture))


def find_family(architecture: str) -> str | None:
  """Returns the family of the models with this name, or None if the name is not supported."""
  if row := find_published(architecture):
    return row.family
  return next((family for start, family in _FAMILIES if re.match(start, _normalise_name(architecture))), None)


def find_sizes(config: Mapping[str, object], arguments: Mapping[str, object]) -> dict[str, int]:
  """Returns the sizes of a ViT from the name of its architecture.

  Args:
    config: the JSON values of a config.json.
    arguments: its `model_args`, which override sizes.

  Returns:
    {"width", "depth", "heads", "hidden", "patch"}. "hidden" is missing if an argument overrides it. Unknown names
    return {}.

  Raises:
    ConfigError: if the architecture is not a string.
  """
  name = config.get("architecture")
  if not isinstance(name, str | None):
    raise ConfigError(f"architecture is {show(name)}. Allowed: a name of timm")
  row = find_published(name) if name else None
  if row is None or row.family != "vit":
    return {}
  result = dict(zip(("width", "depth", "heads", "hidden"), row.row[0], strict=True)) | {"patch": row.row[1]}
  if {"embed_dim", "mlp_ratio"} & arguments.keys():
    del result["hidden"]
  return result


def _normalise_name(architecture: str) -> str:
  return architecture.removeprefix("timm/").partition(".")[0]

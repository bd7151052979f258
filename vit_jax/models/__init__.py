"""Models by name. `lookup` gives the function of a name: f(image_size, channels, classes, rngs, *, ...) -> module.

A model maps images [B, H, W, C], normalised, and a random key (None: evaluation) to logits [B, V] in float32; with no
classes, to features. Its state is `nnx.Param`, and `nnx.BatchStat` for averages that training keeps beside gradients.
Each family lists its models in `PUBLISHED`, with their sharding tables; `capture` gives access to intermediates.
"""

import difflib
import re
from collections.abc import Callable

import jax
from flax import nnx

from vit_jax import rng, schema
from vit_jax.models import bit, compact, efficientnet, mixer, swin, vit
from vit_jax.models.description import Description
from vit_jax.models.functional import Model, functional
from vit_jax.models.intermediates import capture
from vit_jax.models.output import Output
from vit_jax.models.published import Published, Rows

__all__ = [
  "Description",
  "Model",
  "Output",
  "capture",
  "create",
  "find",
  "functional",
  "lookup",
  "names",
  "sharding",
]

TABLE: dict[str, Published] = {}
for _family in (vit, compact, mixer, bit, swin, efficientnet):
  TABLE |= _family.PUBLISHED

# Other spellings under which a model is published -> the name here: files of vit_jax, AugReg and BiT, hubs.
_SPELLINGS = (
  (r"(?:ViT-)?(mu|Ti|S|M|B|L|So400m|H|g|g-opt|G|G-opt|e)_(\d+)", r"ViT-\1/\2"),
  (r"R(\d*)\+?(?:ViT-|_)(Ti|S|B|L)_(\d+)", r"R\1+\2/\3"),
  (r"Mixer-([A-Z])_(\d+)", r"Mixer-\1/\2"),
  (r"BiT-(?:[SM]-)?(R\d+x\d+)(?:-.*)?", r"\1"),
  (r"EfficientNet-([BL]\d)", lambda match: f"tf_efficientnet_{match[1].lower()}"),
  (r"(?:timm/)?([a-z][a-z0-9_]*)\.[a-z0-9_]+", r"\1"),
  (r"timm/(.*)", r"\1"),
)


def names() -> list[str]:
  """All names; "ViT-<size>/<patch>" exists for every patch size, of which only the usual ones are listed."""
  return list(TABLE)


def find(name: str) -> Published:
  """The row of a name, or a ConfigError that says what there is."""
  for pattern, spelling in _SPELLINGS:
    if name not in TABLE and re.fullmatch(pattern, name):
      name = re.sub(pattern, spelling, name)
  if name in TABLE:
    return TABLE[name]
  made = vit.any_patch(name)
  if made is None:
    near = difflib.get_close_matches(name, TABLE, n=8, cutoff=0.0)
    raise schema.ConfigError(
      f"unknown name {name!r}. Did you mean {near[0]!r}? Near it: {', '.join(near)}. Others of the "
      f"{len(TABLE)}: ViT-S/16, R50+B/16, deit_tiny_patch16_224, cct_7_3x1_32, Mixer-B/16, R50x1, efficientnet_b0, "
      "swin_tiny_patch4_window7_224",
      "name",
    )
  return made


def lookup(name: str) -> Callable[..., nnx.Module]:
  """The function of a name, or a ConfigError that says what there is."""
  return find(name).make


def sharding(name: str) -> Rows:
  """Rows (regular expression, mesh axis of each dimension) for the parameters of a model; one row fits each whole path.

  A row is written for one layer. In a scanned stack a parameter has one more dimension, in front, which is not split.
  """
  return find(name).sharding


def create(
  name: str,
  image_size: int | tuple[int, int] | None = None,
  channels: int = 3,
  classes: int | None = None,
  rngs: rng.Keys | None = None,
  **arguments,
) -> nnx.Module:
  """A model for interactive use; image size and classes are the published ones unless given.

  Args:
    name: one of `names()`, or another spelling under which the model is published.
    image_size: side of square images in pixels, or (height, width) for the families that allow it.
    channels: of the images.
    classes: number of classes; 0 leaves the head out, and the model gives what would go into it.
    rngs: the source of initial values.
    **arguments: of the model, as in `config.model`.
  """
  with schema.at("model"):
    row = find(name)
    choice = schema.bind(schema.Choice(name, arguments), (row.make,))
  classes = row.classes if classes is None else classes
  return row.make(image_size or row.image_size, channels, classes, rngs or rng.Keys(jax.random.key(0)), **choice.args)

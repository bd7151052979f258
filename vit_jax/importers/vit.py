"""What the tensors of a Vision Transformer say of it, however they are named: size, heads, image size, positions."""

import math
import re
from collections.abc import Mapping

import numpy as np

from vit_jax.importers.layout import Tensor, Tensors, named
from vit_jax.models import Description
from vit_jax.models.vit import HYBRIDS, SIZES
from vit_jax.schema import Choice, ConfigError

ATTENTION = ("query", "key", "value")
_SIZE = ("width", "depth", "heads", "hidden")


def counting_tokens(tensors: Tensors, table: str, tokens: tuple, pixels: int, hints: Mapping, usually: bool) -> Tensors:
  """The tensors with a position table that has places for the tokens before the patches, as ours has.

  Places of zeros are the same as none. Whether a table has places shows by the image size, else by which number of
  patches is a square, else it is as `usually` in the format.
  """
  tokens = sum(name in tensors for name in tokens)
  if table not in tensors or not tokens:
    return tensors
  places = tensors[table].shape[1]
  known, square = _grid_of_hint(hints, pixels), [math.isqrt(n) ** 2 == n for n in (places - tokens, places)]
  if known in (places - tokens, places):
    counted = known == places - tokens
  else:
    counted = square[0] if square[0] != square[1] else usually
  return tensors if counted else {**tensors, table: with_leading_zeros(tensors[table], tokens)}


def with_leading_zeros(table, count: int) -> Tensor:
  """A table [1, N, D] with `count` rows of zeros in front, read when needed."""
  _, tokens, width = table.shape

  def read():
    return np.pad(np.asarray(table), ((0, 0), (count, 0), (0, 0)))

  return Tensor((1, tokens + count, width), table.dtype, read)


def describe(
  patches, found, table, classes, hints, *, leading, stages=None, channels=None, head=None, gelu=None, eps=None, **rest
) -> Description:
  """The model with kernel `patches` [P, P, C, D] and (width, depth, heads, hidden) `found`."""
  key, overrides = named(SIZES, found, _SIZE)
  patch = patches[0]
  name = f"ViT-{key}/{patch}"
  hybrid = {row: name for name, row in HYBRIDS.items()}.get((key, patch, stages))
  said = {"head": head or {0: "gap", 1: "cls", 2: "distilled"}[leading], "position": "learned", "gelu": "tanh"}
  said |= {"stages": None if hybrid else stages, "gelu": gelu or hints.get("gelu", "tanh"), "pre_logits": None}
  said |= {"eps": float(eps or hints.get("norm_eps", 1e-6)), "layer_scale": None} | rest | overrides
  if table is None:
    said["position"] = "sincos2d"
  standard = {"head": "cls", "position": "learned", "gelu": "tanh", "eps": 1e-6}
  said = {k: v for k, v in said.items() if v is not None and standard.get(k) != v}
  return Description(
    Choice(hybrid or name, said),
    _image_size(table, leading, patch * reduction(stages), hints),
    0 if classes is None else classes.shape[0],
    channels or patches[2],
  )


def count(pattern, tensors):
  return 1 + max((int(match[1]) for name in tensors if (match := re.match(pattern, name))), default=-1)


def reduction(stages):
  """How much smaller the ResNet's map is: root 4, and 2 for each stage after the first."""
  return 1 if stages is None else 4 * 2 ** max(len(stages) - 1, 0)


def heads_of(width, depth, hidden, hints):
  """The number of heads, which packed matrices do not show: of the hint, the published size, else of width 64."""
  if hints.get("heads") and hints.get("width", width) == width:
    return int(hints["heads"])
  near = [row for row in SIZES.values() if (row[0], row[1], row[3]) == (width, depth, hidden)]
  near += [row for row in SIZES.values() if row[0] == width]
  return near[0][2] if near else max(width // 64, 1)


def _image_size(table, leading, pixels, hints):
  """Image size of a table [1, leading + N, D], an entry for `pixels` x `pixels`: square unless the hint says so."""
  hint = hints.get("image_size")
  if table is None:
    return hint or 224
  tokens = table.shape[1] - leading
  if _grid_of_hint(hints, pixels) == tokens:
    return hint
  side = math.isqrt(tokens)
  if side * side != tokens:
    raise ConfigError(
      f"the position table has {tokens} patches, which are no square; give the image size: --image-size=HEIGHT,WIDTH"
    )
  return side * pixels


def _grid_of_hint(hints, pixels):
  """Patches of `pixels` x `pixels` in an image of the size that the hints say; None where they say none."""
  hint = hints.get("image_size")
  sides = (hint, hint) if isinstance(hint, int) else hint
  return math.prod(side // pixels for side in sides) if sides else None

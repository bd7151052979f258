"""What the tensors of a Vision Transformer say of it, however they are named: size, heads, image size, positions."""

import math
import re
from collections.abc import Mapping

import numpy as np

from vit_jax.importers.layout import Tensor, Tensors, named
from vit_jax.models import Description
from vit_jax.models.published.vit import HYBRIDS, SIZES
from vit_jax.schema import Choice, ConfigError

ATTENTION = ("query", "key", "value")
_SIZE = ("width", "depth", "heads", "hidden")


def counting_tokens(tensors: Tensors, table: str, tokens: tuple, pixels: int, hints: Mapping, usually: bool) -> Tensors:
  """The tensors with a position table that has a row for each token before the patches, as ours has.

  Args:
    tensors: of a file.
    table: name of the position table [1, T, D].
    tokens: names that the tokens [1, 1, D] may have.
    pixels: side of the square of pixels that a row of the table stands for.
    hints: of the image size.
    usually: whether tables have such rows where neither image size nor length decide.
  """
  count = sum(name in tensors for name in tokens)
  if table not in tensors or not count or has_rows(tensors[table], count, pixels, hints, usually):
    return tensors
  return {**tensors, table: with_leading_zeros(tensors[table], count)}  # which add nothing to the tokens


def has_rows(table, count: int, pixels: int, hints: Mapping, usually: bool) -> bool:
  """Whether a table [1, T, D] has a row for each of `count` tokens before the patches.

  It shows by the image size, else by which number of patches is a square, else it is as `usually` in the format.
  """
  rows = table.shape[1]
  patches, square = _grid_of_hint(hints, pixels), [math.isqrt(n) ** 2 == n for n in (rows - count, rows) if n >= 0]
  if patches in (rows - count, rows):
    return patches == rows - count
  return square[0] if square[0] != square[-1] else usually


def fold_token(token: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """(token [1, 1, D] plus the first row of the table [1, 1 + N, D], the other rows): the same model."""
  position, rest = table[:, :1], table[:, 1:]
  return (token + position if np.any(position) else token), rest


def with_leading_zeros(table, count: int) -> Tensor:
  """A table [1, N, D] with `count` rows of zeros in front, read when needed."""
  _, tokens, width = table.shape

  def read():
    return np.pad(np.asarray(table), ((0, 0), (count, 0), (0, 0)))

  return Tensor((1, tokens + count, width), table.dtype, read)


def describe(
  patches, row, table, classes, hints, *, leading, stages=None, channels=None, pool=None, gelu=None, eps=None, **rest
) -> Description:
  """The model of a file.

  Args:
    patches: shape [P, P, C, D] of the embedding's kernel.
    row: width, depth, heads, hidden.
    table: position table [1, T, D], or None.
    classes: bias [V] of the head, or None.
    hints: of what tensors do not say.
    leading: class and distillation tokens, 0 to 2.
    stages: units in each stage of a ResNet in front.
    channels: of the images, where a ResNet reads them.
    pool: what the head reads, where tokens do not say it.
    gelu: how it is computed, where no hint says it.
    eps: of the layer norms, where no hint says it.
    **rest: other arguments of the model; None stands for the default.
  """
  key, overrides = named(SIZES, row, _SIZE)
  patch = patches[0]
  hybrid = {sizes: name for name, sizes in HYBRIDS.items()}.get((key, patch, stages))
  arguments = {
    "pool": pool or {0: "gap", 1: "cls", 2: "distilled"}[leading],
    "position": "sincos2d" if table is None else "learned",
    "stages": None if hybrid else stages,
    "gelu": gelu or hints.get("gelu", "tanh"),
    "eps": float(eps or hints.get("norm_eps", 1e-6)),
    **rest,
    **overrides,
  }
  default = {"pool": "cls", "position": "learned", "gelu": "tanh", "eps": 1e-6}
  return Description(
    Choice(
      hybrid or f"ViT-{key}/{patch}",
      {k: value for k, value in arguments.items() if value is not None and value != default.get(k)},
    ),
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
  if "heads" in hints and hints.get("width", width) == width:
    return hints["heads"]
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

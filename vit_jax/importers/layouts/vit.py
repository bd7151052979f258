"""Facts about a Vision Transformer that its tensors determine in any layout: size, heads, image size and positions."""

import math
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vit_jax import models, schema
from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Tensor, Tensors
from vit_jax.importers.layouts import published_sizes
from vit_jax.models import Description
from vit_jax.models.published import modern
from vit_jax.models.published.model import Published
from vit_jax.models.published.vit import HYBRIDS, SIZES
from vit_jax.schema import Choice, ConfigError

ATTENTION = ("query", "key", "value")
_SIZE = ("width", "depth", "heads", "hidden")
Sizes = tuple[int, int, int, int]  # in the order of `_SIZE`


def add_token_rows(
  tensors: Tensors, table: str, tokens: tuple[object, ...], pixels: int, hints: Hints, usually: bool
) -> Tensors:
  """Returns tensors with a position table that has a row for each token before the patches.

  Args:
    tensors: tensors of a file.
    table: name of the position table (1, T, D).
    tokens: possible names of the tokens (1, 1, D).
    pixels: side in pixels of the square that a row of the table represents.
    hints: hints that may contain the image size.
    usually: true if tables in this format usually have rows for the tokens. Used if neither the image size nor the
      length determines the result.
  """
  count = sum(name in tensors for name in tokens)
  if table not in tensors or not count or has_token_rows(tensors[table], count, pixels, hints, usually):
    return tensors
  return {**tensors, table: add_leading_zeros(tensors[table], count)}  # rows of zeros do not change the tokens


def has_token_rows(table: np.ndarray | Tensor, count: int, pixels: int, hints: Hints, usually: bool) -> bool:
  """Returns true if a position table has a row for each token before the patches.

  The image size in the hints determines the result. If the image size is unknown, the patches are assumed to form a
  square. If the length of the table allows both forms or neither, the result is `usually`.

  Args:
    table: position table (1, T, D).
    count: number of tokens before the patches.
    pixels: side in pixels of the square that a row of the table represents.
    hints: hints that may contain the image size.
    usually: the result if no other fact determines it.
  """
  rows = table.shape[1]
  patches, square = _find_hint_grid(hints, pixels), [math.isqrt(n) ** 2 == n for n in (rows - count, rows) if n >= 0]
  if patches in (rows - count, rows):
    return patches == rows - count
  return square[0] if square[0] != square[-1] else usually


def fold_token(token: np.ndarray | Tensor, table: np.ndarray | Tensor) -> tuple[np.ndarray | Tensor, np.ndarray]:
  """Returns a token with the first row of the position table added to it, and the other rows. The model is unchanged.

  Args:
    token: token (1, 1, D).
    table: position table (1, 1 + N, D).
  """
  position, rest = table[:, :1], table[:, 1:]
  return (np.asarray(token) + position if np.any(position) else token), rest


def add_leading_zeros(table: np.ndarray | Tensor, count: int) -> Tensor:
  """Returns a position table (1, N, D) with additional rows of zeros in front. The table is read lazily.

  Args:
    table: position table.
    count: number of additional rows.
  """
  _, tokens, width = table.shape

  def read() -> np.ndarray:
    return np.pad(np.asarray(table), ((0, 0), (count, 0), (0, 0)))

  return Tensor((1, tokens + count, width), table.dtype, read)


def find_description(hints: Hints) -> Description | None:
  """Returns the description that this project stored next to the tensors, or None."""
  return Description.from_json(hints["description"]) if "description" in hints else None


def find_position(
  table: np.ndarray | Tensor | None, tokens: int, registers: int, patch: int, hints: Hints
) -> tuple[str, int]:
  """Returns the tokens that have a row in a position table of timm.

  Args:
    table: position table (1, T, D), or None.
    tokens: number of class and distillation tokens.
    registers: number of registers.
    patch: side of a patch in pixels.
    hints: hints that may contain the image size.

  Returns:
    The argument `position` of the model, and the number of rows before those of the patches.
  """
  if table is None:
    return "none", 0
  if (tokens or registers) and not has_token_rows(table, tokens + registers, patch, hints, usually=not registers):
    return "learned_patches", 0
  return ("learned_all" if registers else "learned"), tokens + registers


def find_stated_model(hints: Hints) -> tuple[str, Published] | None:
  """Returns the name of timm that a file states, and the published model of this name.

  hints["name"] is the name of the file or of its architecture. It may end with another image size. The sizes may
  differ, because the JSON file of timm next to the weights may override any size.
  """
  return next(((name, modern.NAMES[name]) for name in _match_file_name(hints)), None)


def find_gelu(hints: Hints) -> str:
  """Returns the form of GELU in timm: "erf", except for a few names."""
  return known[1].defaults["gelu"] if (known := find_stated_model(hints)) else "erf"


def _match_file_name(hints: Hints) -> list[str]:
  """Returns the published names that match the name of a file, the most likely first. The image size may differ."""
  name = str(hints.get("name", "")).removeprefix("timm/").partition(".")[0]
  bare = _remove_size(name)
  alike = [other for other in modern.NAMES if bare in (other, _remove_size(other))]
  return [name, *alike] if name in modern.NAMES else alike


def _remove_size(name: str) -> str:
  return re.sub(r"_\d+$", "", name)


def describe_vit(
  patches: tuple[int, ...],
  row: Sizes,
  table: np.ndarray | Tensor | None,
  classes: np.ndarray | Tensor | None,
  hints: Hints,
  *,
  leading: int,
  before: int | None = None,
  stages: tuple[int, ...] | None = None,
  channels: int | None = None,
  pool: str | None = None,
  gelu: str | None = None,
  eps: float | None = None,
  position: str | None = None,
  settings: Mapping[str, object] = {},
) -> Description:
  """Returns the model of a file.

  Args:
    patches: shape (P, P, C, D) of the embedding kernel.
    row: width, depth, heads and hidden width.
    table: position table (1, T, D), or None.
    classes: bias (V,) of the head, or None.
    hints: facts that the tensors do not determine.
    leading: number of class and distillation tokens, 0 to 2.
    before: rows of the table before those of the patches. None means one row for each class and distillation token.
    stages: units in each stage of a ResNet in front of the model.
    channels: channels of the images, if the model has a ResNet stem.
    pool: input of the head, if the tokens do not determine it.
    gelu: form of GELU. None uses the hint.
    eps: epsilon of the layer norms. None uses the hint.
    position: form of the positions, if the model may have no table.
    settings: other settings of the model, with dotted keys. None means the default.
  """
  key, overrides = published_sizes.find_nearest_size(SIZES, row, _SIZE)
  patch = patches[0]
  hybrid = None
  if stages is not None:
    hybrid = {sizes: name for name, sizes in HYBRIDS.items()}.get((key, patch, stages))
  arguments = {
    "head": pool or {0: "gap", 1: "cls", 2: "distilled"}[leading],
    "position": position or ("sincos2d" if table is None else "learned"),
    "stages": None if hybrid else stages,
    "gelu": gelu or hints.get("gelu", "tanh"),
    "norm.eps": float(eps or hints.get("norm_eps", 1e-6)),
    **settings,
  }
  arguments = {key: value for key, value in arguments.items() if value is not None}
  plain = Choice(hybrid or f"ViT-{key}/{patch}", schema.nest_choices(arguments) | overrides)
  model = _choose_shortest(plain, row, patch, {} if stages else hints, not stages)
  return Description(
    model,
    _find_image_size(
      table, leading if before is None else before, patch * compute_reduction(stages), hints, model.name
    ),
    0 if classes is None else classes.shape[0],
    channels or patches[2],
  )


def _choose_shortest(plain: Choice, row: Sizes, patch: int, hints: Hints, others: bool) -> Choice:
  """Returns the model under the name that the file states, or under the name that needs the fewest other arguments.

  Args:
    plain: the model under its plain name.
    row: width, depth, heads and hidden width.
    patch: side of the patches.
    hints: facts that the tensors do not determine.
    others: whether other names than the plain name are allowed.
  """
  model = Description(plain, 1, 0)
  settings = model.settings()

  def make_choice(name: str, sizes: Sizes) -> Choice:
    changes = {key: value for key, value in model.differences(name).items() if key not in _SIZE}
    if name in modern.NAMES and settings["layer_scale"] and modern.NAMES[name].defaults.get("layer_scale"):
      changes.pop("layer_scale", None)  # tensors do not determine the initial value
    return Choice(name, changes | {key: b for key, a, b in zip(_SIZE, sizes, row, strict=True) if a != b})

  def rank_choice(choice: Choice) -> tuple[bool, int, bool, bool, bool]:
    other = modern.NAMES[choice.name]
    stated = known is not None and choice.name == known[0]
    return (
      not (stated and other.row == (row, patch)),
      len(choice.args),
      not stated,
      "registers" in choice.args,  # prefers names with "reg4"
      other.image_size != hints.get("image_size"),
    )

  known = find_stated_model(hints) if others else None
  names = [known[0]] if known and known[1].row[1] == patch else []
  names += [name for name, other in modern.NAMES.items() if other.row == (row, patch) and "siglip" not in name]
  own = make_choice(plain.name, models.find(plain.name).row[0])
  best = min((make_choice(name, modern.NAMES[name].row[0]) for name in names if others), key=rank_choice, default=own)
  chosen = best if best is own or not rank_choice(best)[0] or len(best.args) < len(own.args) else own
  return Choice(chosen.name, schema.nest_choices(chosen.args))


def count_layers(pattern: str, tensors: Tensors) -> int:
  """Returns the number of layers, from the largest number in names of tensors.

  Args:
    pattern: pattern with the number as its first group.
    tensors: tensors by name.
  """
  return 1 + max((int(match[1]) for name in tensors if (match := re.match(pattern, name))), default=-1)


def compute_reduction(stages: Sequence[int] | None) -> int:
  """Returns the factor by which a ResNet reduces the image: 4 for the root, and 2 for each stage after the first."""
  return 1 if stages is None else 4 * 2 ** max(len(stages) - 1, 0)


def find_heads(width: int, depth: int, hidden: int, hints: Hints, gated: bool = False) -> int:
  """Returns the number of heads, which packed matrices do not determine.

  The hint is used if present, otherwise the published size with the same width. Without both, heads have width 64.

  Args:
    width: width of the model.
    depth: number of blocks.
    hidden: hidden width of the MLP.
    hints: hints that may contain "heads" and "width".
    gated: true if the MLP is a SwiGLU, which distinguishes sizes of equal width.
  """
  if "heads" in hints and hints.get("width", width) == width:
    return hints["heads"]
  sizes = [*SIZES.values()] if not gated else []
  sizes += [known.row[0] for known in modern.NAMES.values() if ("mlp" in known.defaults) == gated]
  near = [row for row in sizes if (row[0], row[1], row[3]) == (width, depth, hidden)]
  near += [row for row in sizes if row[0] == width]
  return near[0][2] if near else max(width // 64, 1)


def _find_image_size(
  table: np.ndarray | Tensor | None, leading: int, pixels: int, hints: Hints, name: str
) -> int | tuple[int, int]:
  """Returns the image size of a position table. Images are square unless the hint is different.

  Each row of the table represents `pixels` x `pixels` pixels. Without a table, the size comes from a config next to the
  weights, or from the name.
  """
  hint = hints.get("image_size")
  if table is None:
    return hint or hints.get("input_size") or models.find(name).image_size
  tokens = table.shape[1] - leading
  if hint is not None and _find_hint_grid(hints, pixels) == tokens:
    return hint
  side = math.isqrt(tokens)
  if side * side != tokens:
    raise ConfigError(
      f"the position table has {tokens} patches, which do not form a square. Give the image size: "
      f"--image-size=HEIGHT,WIDTH"
    )
  return side * pixels


def _find_hint_grid(hints: Hints, pixels: int) -> int | None:
  """Returns the number of patches in an image of the size in the hints, or None if the hints contain no size."""
  hint = hints.get("image_size")
  sides = (hint, hint) if isinstance(hint, int) else hint
  return math.prod(side // pixels for side in sides) if sides else None


# Helpers for layouts.


def list_block_names(tensors: Tensors) -> set[str]:
  """Returns the names inside the first block, without its prefix."""
  return {name.removeprefix("blocks.0.") for name in tensors if name.startswith("blocks.0.")}


def replace_words(tensors: Tensors, words: Mapping[str, str]) -> Tensors:
  """Returns the tensors with parts of their names replaced.

  Args:
    tensors: tensors by name.
    words: {part between dots: replacement}.
  """
  pattern = re.compile("|".join(rf"(?<![^.]){re.escape(word)}(?![^.])" for word in words))
  return {pattern.sub(lambda match: words[match[0]], name): tensor for name, tensor in tensors.items()}


def invert_names(words: Mapping[str, str]) -> dict[str, str]:
  """Returns the inverse of a dictionary of names."""
  return {ours: theirs for theirs, ours in words.items()}


def create_check(wanted: Mapping[str, object], *kinds: Choice) -> Callable[[Description], bool]:
  """Returns a function that checks the rotary positions and other settings of a model.

  Args:
    wanted: required settings of the model. A tuple lists several allowed values.
    *kinds: allowed rotary positions.
  """

  def holds(description: Description) -> bool:
    bound = description.settings()
    own = bound["position.rotary"]
    turns = any(own.name == kind.name and own.args.items() >= kind.args.items() for kind in kinds)
    return turns and all(bound[key] in (v if isinstance(v, tuple) else (v,)) for key, v in wanted.items())

  return holds

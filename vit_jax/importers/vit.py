"""What the tensors of a Vision Transformer say of it, however they are named: size, heads, image size, positions."""

import functools
import inspect
import math
import re
from collections.abc import Callable, Mapping

import numpy as np

from vit_jax import models
from vit_jax.importers import published_sizes
from vit_jax.importers.layout import Tensor, Tensors
from vit_jax.models import Description
from vit_jax.models.published import modern
from vit_jax.models.published.model import Published
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


def described(hints: Mapping) -> Description | None:
  """The description that a file of ours has beside its tensors."""
  return Description.from_json(hints["description"]) if "description" in hints else None


def position_of(table, tokens: int, registers: int, patch: int, hints: Mapping) -> tuple[str, int]:
  """Which tokens have a row each in a table [1, T, D] as timm has them, as (position, rows before those of patches)."""
  if table is None:
    return "none", 0
  if (tokens or registers) and not has_rows(table, tokens + registers, patch, hints, usually=not registers):
    return "learned_patches", 0
  return ("learned_all" if registers else "learned"), tokens + registers


def published_as(hints: Mapping) -> tuple[str, Published] | None:
  """The name of timm that a file says it has, and what it stands for.

  hints["name"] is that of the file or of its architecture, maybe with another number of pixels at the end. Its sizes
  may be others: what is beside timm's files may change any.
  """
  return next(((name, modern.NAMES[name]) for name in _called(hints)), None)


def gelu_of(hints: Mapping) -> str:
  """How timm computes GELU: in the erf form but under a few names, whatever the sizes."""
  return known[1].defaults["gelu"] if (known := published_as(hints)) else "erf"


def _called(hints):
  """Published names that the name of a file may mean, which may have other pixels at its end; the likeliest first."""
  name = str(hints.get("name", "")).removeprefix("timm/").partition(".")[0]
  bare = _without_size(name)
  alike = [other for other in modern.NAMES if bare in (other, _without_size(other))]
  return [name, *alike] if name in modern.NAMES else alike


def _without_size(name):
  return re.sub(r"_\d+$", "", name)


def describe(
  patches,
  row,
  table,
  classes,
  hints,
  *,
  leading,
  before=None,
  stages=None,
  channels=None,
  pool=None,
  gelu=None,
  eps=None,
  position=None,
  **rest,
) -> Description:
  """The model of a file.

  Args:
    patches: shape [P, P, C, D] of the embedding's kernel.
    row: width, depth, heads, hidden.
    table: position table [1, T, D], or None.
    classes: bias [V] of the head, or None.
    hints: of what tensors do not say.
    leading: class and distillation tokens, 0 to 2.
    before: rows of the table before those of patches; None: one for each of these.
    stages: units in each stage of a ResNet in front.
    channels: of the images, where a ResNet reads them.
    pool: what the head reads, where tokens do not say it.
    gelu: how it is computed, where no hint says it.
    eps: of the layer norms, where no hint says it.
    position: how positions are known, where there need be no table.
    **rest: other arguments of the model; None stands for the default.
  """
  key, overrides = published_sizes.nearest(SIZES, row, _SIZE)
  patch = patches[0]
  hybrid = {sizes: name for name, sizes in HYBRIDS.items()}.get((key, patch, stages))
  arguments = {
    "pool": pool or {0: "gap", 1: "cls", 2: "distilled"}[leading],
    "position": position or ("sincos2d" if table is None else "learned"),
    "stages": None if hybrid else stages,
    "gelu": gelu or hints.get("gelu", "tanh"),
    "eps": float(eps or hints.get("norm_eps", 1e-6)),
    **rest,
  }
  arguments = {key: value for key, value in arguments.items() if value is not None and value != _defaults().get(key)}
  plain = Choice(hybrid or f"ViT-{key}/{patch}", arguments | overrides)
  model = plain if stages else _shortest(plain, arguments, row, patch, hints)
  return Description(
    model,
    _image_size(table, leading if before is None else before, patch * reduction(stages), hints, model.name),
    0 if classes is None else classes.shape[0],
    channels or patches[2],
  )


@functools.cache
def _defaults():
  """All arguments of a ViT by their defaults."""
  return {name: one.default for name, one in inspect.signature(models.lookup("ViT-Ti/16")).parameters.items()}


def _shortest(plain: Choice, arguments: Mapping, row: tuple, patch: int, hints: Mapping) -> Choice:
  """The model by the name that the file says it has, or else by the one that needs the fewest other arguments."""
  known = published_as(hints)
  names = [known[0]] if known and known[1].row[1] == patch else []
  names += [name for name, other in modern.NAMES.items() if other.row == (row, patch) and "siglip" not in name]
  have = _defaults() | arguments

  def by(name):
    there, sizes = _defaults() | modern.NAMES[name].defaults, modern.NAMES[name].row[0]
    said = {key: value for key, value in have.items() if value != there[key]}
    if have["layer_scale"] and there["layer_scale"]:  # the initial value, which no tensor shows
      said.pop("layer_scale", None)
    if have["pool"] in ("cls", "distilled"):  # which need the token
      said.pop("class_token", None)
    return Choice(name, said | {key: b for key, a, b in zip(_SIZE, sizes, row, strict=True) if a != b})

  def length(choice):
    other = modern.NAMES[choice.name]
    its_own = bool(known) and choice.name == known[0] and other.row == (row, patch)
    return (
      not its_own,
      len(choice.args),
      not known or choice.name != known[0],
      other.image_size != hints.get("image_size"),
    )

  best = min(map(by, names), key=length, default=plain)
  return best if best is plain or not length(best)[0] or len(best.args) < len(plain.args) else plain


def count(pattern, tensors):
  return 1 + max((int(match[1]) for name in tensors if (match := re.match(pattern, name))), default=-1)


def reduction(stages):
  """How much smaller the ResNet's map is: root 4, and 2 for each stage after the first."""
  return 1 if stages is None else 4 * 2 ** max(len(stages) - 1, 0)


def heads_of(width, depth, hidden, hints, gated=False):
  """The number of heads, which packed matrices do not show: of the hint, the published size, else of width 64.

  `gated` says that the MLP is a SwiGLU, by which sizes of one width differ.
  """
  if "heads" in hints and hints.get("width", width) == width:
    return hints["heads"]
  sizes = [*SIZES.values()] if not gated else []
  sizes += [known.row[0] for known in modern.NAMES.values() if ("mlp" in known.defaults) == gated]
  near = [row for row in sizes if (row[0], row[1], row[3]) == (width, depth, hidden)]
  near += [row for row in sizes if row[0] == width]
  return near[0][2] if near else max(width // 64, 1)


def _image_size(table, leading, pixels, hints, name):
  """Image size of a table [1, leading + N, D], an entry for `pixels` x `pixels`: square unless the hint says so.

  Without a table it is what a config beside it says, or that of the name.
  """
  hint = hints.get("image_size")
  if table is None:
    return hint or hints.get("input_size") or models.find(name).image_size
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


# What layouts are made with.


def first_block(tensors: Tensors) -> set[str]:
  """Names inside the first block."""
  return {name.removeprefix("blocks.0.") for name in tensors if name.startswith("blocks.0.")}


def with_words(tensors: Mapping, words: Mapping[str, str]) -> dict:
  """The tensors with words of their names, between dots, replaced."""
  pattern = re.compile("|".join(rf"(?<![^.]){re.escape(word)}(?![^.])" for word in words))
  return {pattern.sub(lambda match: words[match[0]], name): tensor for name, tensor in tensors.items()}


def back(words: Mapping[str, str]) -> dict[str, str]:
  """Words the other way round."""
  return {ours: theirs for theirs, ours in words.items()}


def holding(*kinds: Choice, **wanted) -> Callable[[Description], bool]:
  """Whether a model turns in one of these ways and has these arguments; of a tuple any will do."""

  def holds(description):
    bound = description.arguments()
    own = bound["rotary"]
    turns = any(own.name == kind.name and own.args.items() >= kind.args.items() for kind in kinds)
    return turns and all(bound[key] in (v if isinstance(v, tuple) else (v,)) for key, v in wanted.items())

  return holds

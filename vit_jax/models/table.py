"""Models by name: the published names of all families, other spellings of them, and what a name stands for."""

import difflib
import fnmatch
import re
from collections.abc import Callable, Mapping

from flax import nnx

from vit_jax import schema
from vit_jax.models import spellings
from vit_jax.models.parameters import Rows
from vit_jax.models.published import bit, compact, efficientnet, mixer, modern, swin, vit
from vit_jax.models.published.model import Published

TABLE: dict[str, Published] = {
  name: row for family in (vit, modern, compact, mixer, bit, swin, efficientnet) for name, row in family.NAMES.items()
}

_FAMILY = "'s family"  # in errors, behind one of its names
ALIKE = 0.75  # share of the letters of two names that one has made the other by mistake

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


def names(pattern: str = "*") -> list[str]:
  """The names that a pattern such as "*cct*" fits, with * and ? for any letters, in order of the table.

  "ViT-<size>/<patch>" exists for every patch size, of which only the usual ones are listed.
  """
  return [name for name in TABLE if fnmatch.fnmatchcase(name, pattern)]


def find(name: str) -> Published:
  """The row of a name, or a ConfigError with the nearest names."""
  for pattern, spelling in _SPELLINGS:
    if name not in TABLE and re.fullmatch(pattern, name):
      name = re.sub(pattern, spelling, name)
  if name in TABLE:
    return TABLE[name]
  made = vit.any_patch(name)
  if made is None:
    guess = spellings.nearest(name, TABLE)
    near = list(dict.fromkeys([guess, *similar(name)] if guess else similar(name)))
    advice = f"Did you mean {near[0]!r}? Similar: {', '.join(near)}." if near else "There is no similar name."
    raise schema.ConfigError(
      f"unknown name {name!r}. {advice} All {len(TABLE)}: python -c 'import vit_jax; print(*vit_jax.models.names())'; "
      "among them ViT-S/16, R50+B/16, deit_tiny_patch16_224, cct_7_3x1_32, Mixer-B/16, R50x1, efficientnet_b0, "
      "swin_tiny_patch4_window7_224",
      "name",
    )
  return made


def similar(name: str, most: int = 8) -> list[str]:
  """Names of the same family, as their first word says it, or spelt almost alike: the nearest first."""
  spelt = name.lower()

  def likeness(other):
    return difflib.SequenceMatcher(None, spelt, other.lower()).ratio()

  word = _first_word(name)
  allowed = [(likeness(other), other) for other in TABLE]
  allowed = [(share, other) for share, other in allowed if share >= ALIKE or (word and word == _first_word(other))]
  return [other for _, other in sorted(allowed, key=lambda pair: -pair[0])[:most]]


def _first_word(name):
  """The letters with which a name begins, if they are enough to name a family."""
  letters = re.match("[a-z]*", name.lower().removeprefix("timm/").removeprefix("tf_"))[0]
  return letters if len(letters) > 2 else ""


def lookup(name: str) -> Callable[..., nnx.Module]:
  """The function of a name, or a ConfigError with the nearest names."""
  return find(name).make


def bind(choice: schema.Choice) -> schema.Choice:
  """The choice with every argument of the model checked and filled in; ConfigError for what is not allowed.

  Of an argument that other families have the error says which.
  """
  return schema.bind(choice, (lookup(choice.name),), _Families())


class _Families(Mapping):
  """{"ViT-mu/8's family": function} with the first name of each; it is imported where it is asked for."""

  def __getitem__(self, family):
    return lookup(family.removesuffix(_FAMILY))

  def __iter__(self):
    first = {row.function: name for name, row in reversed(TABLE.items())}
    return (name + _FAMILY for name in reversed(first.values()))

  def __len__(self):
    return len(list(iter(self)))


def sharding(name: str) -> Rows:
  """Rows (regular expression, mesh axis of each dimension) for the parameters of a model; one row fits each whole path.

  A row is written for one layer. In a scanned stack a parameter has one more dimension, in front, which is not split.
  """
  return find(name).sharding

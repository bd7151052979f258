"""Lookup of models by name: the published names of all families, and their other spellings."""

import difflib
import fnmatch
import re
from collections.abc import Callable, Iterator, Mapping

from flax import nnx

from vit_jax import schema
from vit_jax.config import migrations
from vit_jax.models import spellings
from vit_jax.models.parameters import ShardingRules
from vit_jax.models.published import bit, compact, efficientnet, mixer, modern, swin, vit
from vit_jax.models.published.model import Published

TABLE: dict[str, Published] = {
  name: row for family in (vit, modern, compact, mixer, bit, swin, efficientnet) for name, row in family.NAMES.items()
}

_FAMILY = "the family of "  # prefix of a model's name in error messages
# Usual names, which represent their families in error messages.
_USUAL = ("ViT-S/16", "cct_7_3x1_32", "Mixer-B/16", "R50x1", "efficientnet_b0", "swin_tiny_patch4_window7_224")
ALIKE = 0.75  # names with at least this similarity ratio are considered typing errors of each other

# Other published spellings -> the name here: files of vit_jax, AugReg and BiT, and model hubs.
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
  """Returns the names that match a pattern, in the order of the table.

  "ViT-<size>/<patch>" exists for every patch size. The list contains only the usual ones.

  Args:
    pattern: pattern with * and ? for any letters, such as "*cct*".

  Example:
    from vit_jax import models

    models.names("cct_14*")  # ["cct_14_7x2_224", "cct_14_7x2_384", "cct_14_7x2_384_fl"]
  """
  return [name for name in TABLE if fnmatch.fnmatchcase(name, pattern)]


def find(name: str) -> Published:
  """Returns the published model of a name.

  Args:
    name: a name in the table, or another spelling of it.

  Raises:
    ConfigError: if the name is unknown. The message contains the most similar names.
  """
  for pattern, spelling in _SPELLINGS:
    if name not in TABLE and re.fullmatch(pattern, name):
      name = re.sub(pattern, spelling, name)
  if name in TABLE:
    return TABLE[name]
  made = vit.find_any_patch(name)
  if made is None:
    guess = spellings.find_nearest(name, TABLE)
    near = list(dict.fromkeys([guess, *find_similar(name)] if guess else find_similar(name)))
    advice = f"Did you mean {near[0]!r}? Similar: {', '.join(near)}." if near else "No similar name."
    raise schema.ConfigError(
      f"unknown name {name!r}. {advice} All {len(TABLE)}: python -c 'import vit_jax; print(*vit_jax.models.names())'; "
      f"among them R50+B/16, deit_tiny_patch16_224, {', '.join(_USUAL)}",
      "name",
    )
  return made


def find_similar(name: str, most: int = 8) -> list[str]:
  """Returns names that belong to the same family or have almost the same spelling, the most similar first.

  Names belong to the same family if they begin with the same letters.

  Args:
    name: an unknown name.
    most: largest number of results.
  """
  spelt = name.lower()[:100]  # no name in the table is longer, and the comparison is quadratic

  def likeness(other: str) -> float:
    return difflib.SequenceMatcher(None, spelt, other.lower()).ratio()

  word = _first_word(name)
  allowed = [(likeness(other), other) for other in TABLE]
  allowed = [(share, other) for share, other in allowed if share >= ALIKE or (word and word == _first_word(other))]
  return [other for _, other in sorted(allowed, key=lambda pair: -pair[0])[:most]]


def _first_word(name: str) -> str:
  """Returns the letters at the start of a name if there are enough of them to identify a family, otherwise ""."""
  match = re.match("[a-z]{3,}", name.lower().removeprefix("timm/").removeprefix("tf_"))
  return match[0] if match else ""


def lookup(name: str) -> Callable[..., nnx.Module]:
  """Returns the function that creates the model of a name. Raises a ConfigError if the name is unknown."""
  return find(name).make


def bind(choice: schema.Choice) -> schema.Choice:
  """Returns the choice with all arguments of the model checked and filled in.

  Args:
    choice: name and arguments of the model.

  Raises:
    ConfigError: if the name or an argument is invalid. For an argument of other families, the message lists them.
  """
  return schema.bind(migrate(choice), (lookup(choice.name),), _Families())


def migrate(choice: schema.Choice) -> schema.Choice:
  """Returns the choice with the current names of arguments.

  Args:
    choice: name and arguments of the model, possibly from a file of an older version.

  Raises:
    ConfigError: if the name is unknown, or if an old and a current argument contradict each other.
  """
  row = find(choice.name)
  return schema.Choice(choice.name, migrations.nest_vit(choice.args, row.defaults)) if row.family == "vit" else choice


class _Families(Mapping[str, Callable[..., nnx.Module]]):
  """A mapping with one entry per family: {"the family of ViT-S/16": function}.

  A family is imported when it is accessed.
  """

  def __getitem__(self, family: str) -> Callable[..., nnx.Module]:
    return lookup(family.removeprefix(_FAMILY))

  def __iter__(self) -> Iterator[str]:
    first = {row.function: name for name, row in reversed(TABLE.items())}
    usual = {TABLE[name].function: name for name in _USUAL}
    return (_FAMILY + usual.get(function, name) for function, name in reversed(first.items()))

  def __len__(self) -> int:
    return len(list(iter(self)))


def find_sharding(name: str) -> ShardingRules:
  """Returns the sharding table of a model: rows (regular expression, mesh axis of each dimension).

  Exactly one row matches each whole parameter path. A row is written for one layer. In a scanned stack, a parameter has
  one more dimension in front, which is not split.
  """
  return find(name).sharding

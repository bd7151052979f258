"""Models by name. `lookup` gives the function of a name: f(image_size, channels, classes, rngs, *, ...) -> module.

A model maps images [B, H, W, C], normalised, and a random key (None: evaluation) to logits [B, V] in float32. All its
state is `nnx.Param`. Beside each family stands its sharding table; `capture` gives access to intermediates.
"""

import functools
import re
from collections.abc import Callable

from flax import nnx

from vit_jax import config
from vit_jax.models import compact, vit
from vit_jax.models.intermediates import capture
from vit_jax.models.stack import pinned

__all__ = ["capture", "create", "lookup", "names", "pinned", "sharding"]

PATCHES = (8, 14, 16, 32)  # listed; any other works too
_VIT = re.compile(r"ViT-([A-Za-z]+)/(.*)")


def _named(function, *row, **defaults):
  """`function` with its row filled in; keeps the annotations, which a partial hides and `config.bind` reads."""
  made = functools.partial(function, *row, **defaults)
  made.__annotations__ = function.__annotations__
  return made


TABLE = {
  **{name: _named(compact.compact, variant, position=table) for name, (variant, table) in compact.VARIANTS.items()},
  **{f"ViT-{size}/{patch}": _named(vit.vit, row, patch) for size, row in vit.SIZES.items() for patch in PATCHES},
}


def names() -> list[str]:
  """All names; "ViT-<size>/<patch>" exists for every patch size, of which only the usual ones are listed."""
  return list(TABLE)


def lookup(name: str, where: str = "config.model") -> Callable[..., nnx.Module]:
  """The function of a name, or a ConfigError that says what there is."""
  match = _VIT.fullmatch(name)
  if name in TABLE or not match:
    return config.lookup(TABLE, name, where)
  size, patch = match.groups()
  if size not in vit.SIZES:
    raise config.ConfigError(f"{where}.name: {name!r} has unknown size {size!r}.{config.nearest(size, vit.SIZES)}")
  if not re.fullmatch("[1-9][0-9]{0,5}", patch):
    raise config.ConfigError(
      f"{where}.name: {name!r} has patch {patch!r}; allowed: a whole number from 1, as in ViT-S/16"
    )
  return _named(vit.vit, vit.SIZES[size], int(patch))


def sharding(name: str) -> tuple[tuple[str, tuple[str | None, ...]], ...]:
  """Rows (regular expression, mesh axis of each dimension) for the parameters of a model; one row fits each whole path.

  A row is written for one layer. In a scanned stack a parameter has one more dimension, in front, which is not split.
  """
  lookup(name)
  return compact.SHARDING if name in compact.VARIANTS else vit.SHARDING


def create(
  name: str,
  image_size: int | None = None,
  channels: int = 3,
  classes: int | None = None,
  rngs: nnx.Rngs | None = None,
  **arguments,
) -> nnx.Module:
  """A model for interactive use; image size and classes are the published ones unless given."""
  function = lookup(name, "model")
  choice = config.bind(config.Choice(name, arguments), (function,), "model")
  published = vit.PUBLISHED
  if name in compact.VARIANTS:
    variant, _ = compact.VARIANTS[name]
    published = (variant.image_size, variant.classes)
  sizes = (image_size or published[0], channels, classes or published[1])
  return function(*sizes, rngs or nnx.Rngs(0), **choice.args)

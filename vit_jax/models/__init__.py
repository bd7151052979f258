"""Models: `functional` makes one of a description, as pure functions; `create` makes a module, for interactive use.

A model maps images [B, H, W, C], normalised, and a random key (None: evaluation) to logits [B, V] in float32; with no
classes, to features. Its state is `nnx.Param`, and `nnx.BatchStat` for averages that training keeps beside gradients.
`published/` lists the names of each family, `table` finds them; `capture` gives access to intermediates.
"""

from flax import nnx

from vit_jax import rng, schema
from vit_jax.models.description import Description
from vit_jax.models.functional import Model, functional
from vit_jax.models.intermediates import capture
from vit_jax.models.output import Features, Output
from vit_jax.models.parameters import Keys, Rows
from vit_jax.models.table import bind, find, lookup, names, sharding

__all__ = [
  "Description",
  "Features",
  "Model",
  "Output",
  "Rows",
  "bind",
  "capture",
  "create",
  "find",
  "functional",
  "lookup",
  "names",
  "sharding",
]


def create(
  name: str,
  image_size: int | tuple[int, int] | None = None,
  channels: int = 3,
  classes: int | None = None,
  rngs: Keys | None = None,
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
    choice = bind(schema.Choice(name, arguments))
  classes = row.classes if classes is None else classes
  return row.make(image_size or row.image_size, channels, classes, rngs or rng.Keys(rng.key(0)), **choice.args)

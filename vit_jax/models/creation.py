"""Creation of Flax modules for interactive use."""

from flax import nnx

from vit_jax import rng, schema
from vit_jax.models.parameters import Keys
from vit_jax.models.table import bind, find


def create(
  name: str,
  image_size: int | tuple[int, int] | None = None,
  channels: int = 3,
  classes: int | None = None,
  rngs: Keys | None = None,
  **arguments: object,
) -> nnx.Module:
  """Creates a model for interactive use.

  Args:
    name: one of `names()`, or another name under which the model is published.
    image_size: side of square images in pixels, or (height, width) if the family supports it. The default is the
      published size.
    channels: number of image channels.
    classes: number of classes. With 0 the model has no head and returns features. The default is the published number.
    rngs: source of the keys for initial values. The default is a fixed key.
    **arguments: arguments of the model, as in `config.model`.

  Returns:
    The module. It is called as `module(images, key)`.

  Raises:
    ConfigError: if the name or an argument is invalid.

  Example:
    import jax.numpy as jnp
    from vit_jax import models

    model = models.create("ViT-Ti/16", image_size=64, classes=10, depth=2)
    model(jnp.zeros((1, 64, 64, 3))).shape  # (1, 10)
  """
  with schema.enter_key("model"):
    row = find(name)
    choice = bind(schema.Choice(name, arguments))
  classes = row.classes if classes is None else classes
  return row.make(image_size or row.image_size, channels, classes, rngs or rng.Keys(rng.make_key(0)), **choice.args)

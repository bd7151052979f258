"""A model for images of another size, with the same parameters. Learned positions are resampled in the forward pass."""

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from vit_jax.models.functional import Model, make_functional
from vit_jax.models.interpolation import compute_weights
from vit_jax.models.sizes import sides
from vit_jax.schema import ConfigError
from vit_jax.shapes import Array, Float, Shaped, Tensor

TABLE = "position/table"


@dataclasses.dataclass(frozen=True)
class ResizedModel:
  """A model for a new image size, and the conversion of parameters from the original size. `resize` creates it.

  Attributes:
    model: the model for the new size.
    leading: number of rows in the position table before the rows of the patches.
    weights: two matrices (new, old) that interpolate the rows and the columns of the grid. None if the model has no
      position table, or if the size of the table does not change.
  """

  model: Model
  leading: int
  weights: tuple[np.ndarray, np.ndarray] | None

  def adapt(self, params: Mapping[str, Shaped[Tensor, "..."]]) -> dict[str, Shaped[Tensor, "..."]]:
    """Converts parameters of the model for the original size to parameters of `model`.

    Only the position table is changed, by resampling. The operation is differentiable, so a loss of `model` has a
    gradient for the original table.

    Args:
      params: {path: array} of the model for the original size.

    Returns:
      {path: array} of `model`.
    """
    return {**params, TABLE: self._resample(params[TABLE])} if self.weights is not None else dict(params)

  def _resample(self, table: Float[Tensor, "T D"]) -> Float[Array, "T2 D"]:
    assert self.weights is not None
    down, right = (jnp.asarray(weights, jnp.float32) for weights in self.weights)
    grid = table[self.leading :].reshape(down.shape[1], right.shape[1], -1)
    patches = jnp.einsum("ra,sb,abd->rsd", down, right, grid, precision="highest")
    return jnp.concatenate([table[: self.leading], patches.reshape(-1, table.shape[1])])


def resize(model: Model, image_size: int) -> ResizedModel:
  """Returns the same model for images of another size.

  Sine tables and rotary positions are computed for the new size. A learned table is resampled by the
  method of the model's argument `resampling`, with the same numbers as `importers.surgery`.

  Args:
    model: the model for its own size.
    image_size: side of the new images in pixels.

  Raises:
    ConfigError: if the size is not a multiple of the patch, or if other parameters depend on the size.
  """
  description = model.description
  made = make_functional(description.replace(image_size=image_size))
  resized = dataclasses.replace(made, sharded=model.sharded)
  old, new = model.shapes(), resized.shapes()
  if changed := [path for path in old if old[path].shape != new[path].shape and path != TABLE]:
    raise ConfigError(
      f"{changed[0]!r} of {description.model.name} depends on the image size, so it cannot process crops of "
      f"{image_size} px. Use a ViT with position 'learned', 'learned_patches', 'sincos2d' or rotary positions"
    )
  if TABLE not in old or old[TABLE].shape == new[TABLE].shape:
    return ResizedModel(resized, 0, None)
  assert model.patch is not None
  before, after = (tuple(side // model.patch for side in sides(size)) for size in (description.image_size, image_size))
  method = description.settings()["resampling"]
  leading = old[TABLE].shape[0] - math.prod(before)
  return ResizedModel(
    resized, leading, (compute_weights(before[0], after[0], method), compute_weights(before[1], after[1], method))
  )

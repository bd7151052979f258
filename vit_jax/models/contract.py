"""Requirements for the modules that the functions of models return. They matter most for user-defined models.

Every module needs a method `outputs`. The attributes `accepts_patches`, `patch` and `prefix` are optional.
`docs/extend/model.md` lists all requirements.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.output import Output
from vit_jax.models.parameters import State
from vit_jax.models.sizes import sides
from vit_jax.schema import ConfigError, format_amount, show
from vit_jax.shapes import Float, PRNGKey, Tensor

BATCH = 2  # number of images in the check: differs from 1, so that operations that confuse axes change the shape


@runtime_checkable
class ImageModel(Protocol):
  """A module that computes an `Output` from images."""

  def outputs(self, images: Float[Tensor, "..."], key: PRNGKey | None, **masks: object) -> Output:
    """Returns the outputs for a batch of images."""
    ...


def find_patch(name: str, module: nnx.Module) -> int | None:
  """Returns the patch size of a module that accepts images cut into patches, otherwise None.

  The attribute `patch` alone has no effect, because a module may store its patch size for its own use.

  Args:
    name: name of the model, for messages.
    module: the module. `patch` may be None, for a module that does not accept patches in its present form.

  Raises:
    ConfigError: if a module that accepts patches has no attribute `patch`.
  """
  if getattr(module, "accepts_patches", False) is not True:
    return None
  if not hasattr(module, "patch"):
    raise ConfigError(
      f"model {name}: {type(module).__name__} has `accepts_patches`, but no attribute `patch`. Set it to the side of a "
      "patch in pixels"
    )
  return module.patch


def find_prefix(name: str, module: nnx.Module) -> Mapping[str, int]:
  """Returns {name: number} of the tokens in front of the patches. Empty for a module without the attribute `prefix`.

  Args:
    name: name of the model, for messages.
    module: the module.

  Raises:
    ConfigError: if the attribute `prefix` is not such a dictionary.
  """
  prefix = getattr(module, "prefix", {})
  valid = isinstance(prefix, Mapping) and all(
    isinstance(token, str) and type(count) is int and count > 0 for token, count in prefix.items()
  )
  if not valid:
    raise ConfigError(
      f"model {name}: {type(module).__name__}.prefix is {show(prefix)}. Expected a dictionary with the number of "
      "tokens of each name in front of the patches, such as {'cls': 1}. If `prefix` has another meaning here, rename it"
    )
  return prefix


def check_outputs(
  name: str,
  module: nnx.Module,
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  dtype: str,
  prefix: Mapping[str, int],
) -> None:
  """Checks that `module.outputs` returns an `Output` with the required shapes, without any computation.

  Args:
    name: name of the model, for messages.
    module: module with real or abstract parameters.
    image_size: side of the images, or (height, width), in pixels.
    channels: number of image channels.
    classes: number of classes. 0 for a module without a head.
    dtype: type of the images.
    prefix: {name: number} of the tokens in front of the patches.

  Raises:
    ConfigError: if the method is missing, or if a shape or a type is wrong.
  """
  if not callable(getattr(module, "outputs", None)):
    raise ConfigError(
      f"model {name}: {type(module).__name__} has no method outputs(images, key). Add one that returns "
      "vit_jax.models.Output. See vit_jax.models.output.classify"
    )
  graph, state = nnx.split(module)

  def outputs(state: State, images: Float[Tensor, "B H W C"]) -> Output:
    merged = nnx.merge(graph, state)
    assert isinstance(merged, ImageModel)
    result = merged.outputs(images, None)
    if not isinstance(result, Output):
      raise ConfigError(
        f"model {name}: outputs of {type(module).__name__} returned a {type(result).__name__}. Return a "
        "vit_jax.models.Output, which vit_jax.models.output.classify(tokens, features, head) builds"
      )
    return result

  result = jax.eval_shape(outputs, state, jax.ShapeDtypeStruct((BATCH, *sides(image_size), channels), dtype))
  width = result.features.shape[-1]
  expected = {"features": (BATCH, width), "logits": (BATCH, classes or width)}
  for field, shape in expected.items():
    _check_shape(name, field, getattr(result, field).shape, shape)
  tokens = result.tokens.shape
  if len(tokens) != 3 or tokens[0] != BATCH or tokens[1] <= sum(prefix.values()):
    least = f"more than {format_amount(sum(prefix.values()), 'token')}" if prefix else "tokens"
    raise ConfigError(f"model {name}: outputs.tokens has the shape {tokens}. It must be [images, {least}, width]")
  if result.logits.dtype != jnp.float32:
    raise ConfigError(f"model {name}: outputs.logits has the type {result.logits.dtype}. Convert it to float32")


def _check_shape(name: str, field: str, found: tuple[int, ...], expected: tuple[int, ...]) -> None:
  """Raises a ConfigError if the shapes differ."""
  if found != expected:
    raise ConfigError(f"model {name}: outputs.{field} has the shape {found} for {BATCH} images. It must be {expected}")

"""The heads of DINOv2 for images and for patches, which may share layers."""

from collections.abc import Mapping
from typing import Literal

import jax

from vit_jax import rng
from vit_jax.schema import ConfigError
from vit_jax.selfsup.heads import NewParams, ProjectionHead
from vit_jax.selfsup.paths import HEAD, PATCH_HEAD
from vit_jax.shapes import PRNGKey

Sharing = Literal["none", "mlp", "all"]  # shared layers: none, all but the last layer (iBOT), or all
Pair = tuple[ProjectionHead, ProjectionHead]  # for images, for patches


def get_patch_paths(sharing: Sharing) -> tuple[str, str]:
  """Returns the paths of the MLP and of the last layer that patches use.

  Args:
    sharing: the layers that the heads share.
  """
  return PATCH_HEAD if sharing == "none" else HEAD, HEAD if sharing == "all" else PATCH_HEAD


def init_heads(heads: Pair, sharing: Sharing, key: PRNGKey) -> NewParams:
  """Returns the initial parameters of both heads by path. Shared layers appear only under `HEAD`.

  Args:
    heads: the heads.
    sharing: the layers that they share.
    key: random key.
  """
  keys = jax.random.split(key)
  params = heads[0].init(keys[0], HEAD)
  mlp, last = get_patch_paths(sharing)
  if mlp == PATCH_HEAD:
    return params | heads[1].init(keys[1], PATCH_HEAD)
  return params | (heads[1].init_last(keys[1], PATCH_HEAD) if last == PATCH_HEAD else {})


def find_heads(shapes: Mapping[str, tuple[int, ...]], width: int, sharing: Sharing, source: str) -> Pair:
  """Returns the heads whose parameters have these shapes.

  Args:
    shapes: shapes of parameters by path. Other paths than those of heads are ignored.
    width: number of features of the model.
    sharing: the layers that the heads must share.
    source: name of the weights, for messages.

  Raises:
    ConfigError: if the heads are incomplete, have other parameters, or share other layers.
  """
  shapes = {path: shape for path, shape in shapes.items() if path.startswith((f"{HEAD}/", f"{PATCH_HEAD}/"))}
  found = "all"
  if f"{PATCH_HEAD}/last/kernel" in shapes:
    found = "none" if f"{PATCH_HEAD}/layer0/kernel" in shapes else "mlp"
  complete = {f"{HEAD}/layer0/kernel", f"{HEAD}/last/kernel"} <= shapes.keys()
  if not complete or found != sharing:
    has = f"heads with sharing={found!r}" if complete else "no heads for images"
    raise ConfigError(
      f"{source} has {has}, but the student has sharing={sharing!r}. Use weights whose heads are shared in the same way"
    )
  first, second = (
    ProjectionHead.from_shapes(shapes, width, *paths) for paths in ((HEAD, HEAD), get_patch_paths(sharing))
  )
  expected = jax.eval_shape(lambda: init_heads((first, second), sharing, rng.make_key(0)))
  for path in sorted(expected.keys() | shapes.keys()):
    if path not in shapes:
      raise ConfigError(f"a head in {source} lacks {path}. Use weights with complete heads")
    if path not in expected or shapes[path] != expected[path].shape:
      raise ConfigError(
        f"{source} has an unexpected parameter {path} of shape {shapes[path]}. Use weights with heads of DINO, iBOT or "
        "DINOv2"
      )
  return first, second

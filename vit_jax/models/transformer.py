"""The computation that all Vision Transformers share; the families in vit.py and compact.py choose its parts."""

from collections.abc import Callable
from typing import Annotated, Literal

import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.models import stack
from vit_jax.models.intermediates import record
from vit_jax.models.layers import dropout, fold

Dtype = Literal["float32", "bfloat16"]
# The bounds are far above any sensible model; they keep a slip of the finger from becoming an allocation error.
Width = Annotated[int, config.Range(1, 2**15)]
Depth = Annotated[int, config.Range(1, 1024)]
Hidden = Annotated[int, config.Range(1, 2**17)]


class Transformer(nnx.Module):
  """Images [B, H, W, C] -> logits [B, V], float32.

  Tokens of the embedding, row by row; a class token in front if there is one; plus positions; blocks; norm; pool; head.
  `key` is the key of all dropout; None means evaluation.
  """

  def __init__(
    self,
    shape: tuple[int, int, int],
    *,
    embedding: nnx.Module,
    token: nnx.Param | None,
    position: nnx.Module | None,
    block: Callable[[nnx.Rngs], nnx.Module],
    depth: int,
    scan: bool,
    remat: str,
    norm: nnx.Module,
    pool: nnx.Module | str,
    pre_logits: nnx.Module | None = None,
    head: nnx.Module,
    dropout: float,
    stochastic_depth: float,
    rngs: nnx.Rngs,
  ):
    self.shape, self.depth, self.remat = shape, depth, remat
    self.dropout, self.stochastic_depth = dropout, stochastic_depth
    self.embedding, self.cls, self.position = embedding, token, position
    self.blocks = stack.build(block, depth, scan=scan, rngs=rngs)
    self.norm, self.pool, self.pre_logits, self.head = norm, pool, pre_logits, head

  def __call__(self, images, key=None):
    if images.shape[1:] != self.shape:
      raise ValueError(f"images are {images.shape[1:]} (height, width, channels); the model was built for {self.shape}")

    # Tokens.
    x = self.embedding(images)
    x = record("embedding", x.reshape(x.shape[0], -1, x.shape[-1]))
    if self.cls is not None:
      cls = jnp.broadcast_to(self.cls[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
      x = jnp.concatenate([cls, x], axis=1)
    if self.position is not None:
      x = x + jnp.asarray(self.position(), x.dtype)
    x = record("tokens", dropout(x, self.dropout, fold(key, 0)))

    # Features.
    x = stack.run(
      self.blocks,
      x,
      fold(key, 1),
      depth=self.depth,
      remat=self.remat,
      stochastic_depth=self.stochastic_depth,
      name="blocks",
    )
    x = record("encoded", self.norm(x))
    x = record("features", self._pool(x))

    # Logits.
    if self.pre_logits is not None:
      x = jnp.tanh(self.pre_logits(x))
    x = record("pre_logits", x)
    return record("logits", self.head(x).astype(jnp.float32))

  def _pool(self, x):
    match self.pool:
      case "cls":
        return x[:, 0]
      case "gap":
        return x.mean(axis=1)
    return self.pool(x)


def size(row: tuple[int, int, int, int], **overrides: int | None) -> tuple[int, int, int, int]:
  """(width, depth, heads, hidden) of a row with overrides where given; ConfigError if heads do not divide width."""
  names = ("width", "depth", "heads", "hidden")
  width, depth, heads, hidden = (
    overrides[name] if overrides[name] is not None else value for name, value in zip(names, row, strict=True)
  )
  if width % heads:
    divisors = [str(h) for h in range(1, min(width, 64) + 1) if width % h == 0]
    raise config.ConfigError(
      f"model: width {width} is not a multiple of heads {heads}; allowed heads: {', '.join(divisors)}"
    )
  return width, depth, heads, hidden


def grid(image_size: int, patch: int) -> int:
  """Patches along one side; ConfigError if the patch does not divide the image."""
  if image_size % patch:
    below = image_size // patch * patch
    allowed = [str(side) for side in (below, below + patch) if side]
    raise config.ConfigError(
      f"model: image size {image_size} is not a multiple of patch {patch}; nearest image sizes: {', '.join(allowed)}"
    )
  return image_size // patch

"""MLP-Mixer (Tolstikhin et al. 2021): alternating MLPs across patches and across channels, without attention."""

import functools
from typing import Literal

import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx

from vit_jax.models import layers, parameters, stack
from vit_jax.models.intermediates import record, scope
from vit_jax.models.parameters import Keys
from vit_jax.models.sizes import Depth, Dtype, Hidden, Width, grid, sides
from vit_jax.models.transformer import Transformer
from vit_jax.schema import Positive, Probability
from vit_jax.shapes import Array, Float, PRNGKey, Scalar, Tensor

ORDER = parameters.ORDER
SHARDING = (
  *parameters.SHARDING,
  (r"blocks/(\d+/)?tokens/up/kernel", ("fsdp", "tensor")),
  (r"blocks/(\d+/)?tokens/up/bias", ("tensor",)),
  (r"blocks/(\d+/)?tokens/down/kernel", ("tensor", "fsdp")),
  (r"blocks/(\d+/)?tokens/down/bias", (None,)),
  (r"embedding/kernel", (None, None, None, "fsdp")),
  (r"embedding/bias", (None,)),
)

_lecun = nnx.initializers.lecun_normal()


class Block(nnx.Module):
  """A Mixer block: x + tokens(norm1(x)^T)^T, then x + mlp(norm2(x)) (eq. 1). It is called like `transformer.Block`.

  All channels share the token MLP, and its weights depend on the number of tokens N. Its intermediates have the prefix
  "tokens/mlp/". Rematerialisation treats both MLPs in the same way.

  Args:
    norm1: norm of the token MLP.
    tokens: MLP across tokens.
    norm2: norm of the channel MLP.
    mlp: MLP across channels.
    dropout: dropout rate of both branches.
  """

  def __init__(
    self, norm1: nnx.Module, tokens: nnx.Module, norm2: nnx.Module, mlp: nnx.Module, *, dropout: float
  ) -> None:
    self.norm1, self.tokens, self.norm2, self.mlp, self.dropout = norm1, tokens, norm2, mlp, dropout

  def __call__(
    self, x: Float[Tensor, "B N D"], key: PRNGKey | None = None, path_rate: Scalar = np.float32(0)
  ) -> Float[Array, "B N D"]:
    columns = rearrange(self.norm1(x), "b n d -> b d n")
    with scope("tokens/"):
      columns = self.tokens(columns, key=layers.fold_key(key, 0))
    x = layers.add_residual(x, rearrange(columns, "b d n -> b n d"), self.dropout, path_rate, key, 1)
    x = layers.add_residual(x, self.mlp(self.norm2(x), key=layers.fold_key(key, 3)), self.dropout, path_rate, key, 4)
    return record("out", x)


def mixer(
  row: tuple[int, int, int, int],
  patch: int,
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: Keys,
  *,
  gelu: Literal["tanh", "erf"] = "tanh",
  eps: Positive = 1e-6,
  dropout: Probability = 0.0,
  stochastic_depth: Probability = 0.0,
  width: Width | None = None,
  depth: Depth | None = None,
  token_hidden: Hidden | None = None,
  hidden: Hidden | None = None,
  dtype: Dtype = "float32",
  scan: bool = False,
  remat: stack.Remat = "none",
) -> Transformer:
  """Creates an MLP-Mixer: [B, H, W, C] -> [B, V].

  The weights fit one image size only, because the token MLP has a weight for every patch. Positions are not needed,
  because the token MLP distinguishes the patches. `width`, `depth`, `token_hidden` and `hidden` replace the values of
  the size if they are not None.

  Args:
    row: (width, depth, token_hidden, hidden) of the size.
    patch: side of a patch in pixels.
    image_size: side of square images in pixels, or (height, width).
    channels: number of image channels.
    classes: number of classes. 0 omits the head.
    rngs: source of keys for initial values.
    gelu: formulation of GELU, the approximation "tanh" or the exact "erf".
    eps: epsilon of the layer norms.
    dropout: dropout rate of the tokens, of the MLPs and of each branch.
    stochastic_depth: rate of stochastic depth at the last block.
    width: width of the tokens.
    depth: number of blocks.
    token_hidden: hidden width of the token MLPs.
    hidden: hidden width of the channel MLPs.
    dtype: type of the computation. Parameters are float32.
    scan: whether the blocks form one stack, which is compiled once.
    remat: rematerialisation policy, see `stack.POLICIES`.

  Raises:
    ConfigError: if the image size is not a multiple of the patch.
  """
  sizes = (width, depth, token_hidden, hidden)
  width, depth, token_hidden, hidden = (b if a is None else a for a, b in zip(sizes, row, strict=True))
  rows, columns = grid(image_size, patch)
  compute = jnp.dtype(dtype)
  common = parameters.Common(dtype=compute, rngs=rngs)

  def norm() -> layers.LayerNorm:
    return layers.LayerNorm(width, eps=eps, dtype=compute)

  def block(rngs: Keys) -> nnx.Module:
    mlp = functools.partial(layers.Mlp, dropout=dropout, gelu=gelu, kernel_init=_lecun, dtype=compute, rngs=rngs)
    return Block(
      norm(),
      mlp(rows * columns, token_hidden),
      norm(),
      mlp(width, hidden),
      dropout=dropout,
    )

  return Transformer(
    (*sides(image_size), channels),
    embedding=layers.PatchEmbedding(channels, width, patch, kernel_init=_lecun, **common),
    prefix={},
    position=None,
    blocks=stack.Blocks(block, depth, scan, remat, stochastic_depth),
    norm=norm(),
    pool="gap",
    head=layers.Linear((width,), (classes,), kernel_init=layers.zeros, **common) if classes else None,
    dropout=dropout,
    rngs=rngs,
  )

"""MLP-Mixer (Tolstikhin et al. 2021): MLPs across places and across channels in turn, and no attention."""

from typing import Literal

import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx

from vit_jax import rng
from vit_jax.models import layers, stack
from vit_jax.models.intermediates import record, scope
from vit_jax.models.published import model
from vit_jax.models.transformer import Depth, Dtype, Hidden, Transformer, Width, grid, sides
from vit_jax.schema import Positive, Probability

SIZES = {  # width, depth, hidden of the token MLP, hidden of the channel MLP: one row is one model
  "S": (512, 8, 256, 2048),
  "B": (768, 12, 384, 3072),
  "L": (1024, 24, 512, 4096),
  "H": (1280, 32, 640, 5120),
}
# Google trained with the tanh form of GELU; timm's names for the same weights compute the erf form.
VARIANTS = {  # name -> size, patch, gelu
  **{f"Mixer-{size}/{patch}": (size, patch, "tanh") for size in "SBL" for patch in (32, 16)},
  "Mixer-H/14": ("H", 14, "tanh"),
  **{f"mixer_{size.lower()}{patch}_224": (size, patch, "erf") for size in "SBL" for patch in (32, 16)},
}

SHARDING = (
  *layers.SHARDING,
  (r"blocks/(\d+/)?tokens/up/kernel", ("fsdp", "tensor")),
  (r"blocks/(\d+/)?tokens/up/bias", ("tensor",)),
  (r"blocks/(\d+/)?tokens/down/kernel", ("tensor", "fsdp")),
  (r"blocks/(\d+/)?tokens/down/bias", (None,)),
  (r"embedding/kernel", (None, None, None, "fsdp")),
  (r"embedding/bias", (None,)),
)

_lecun = nnx.initializers.lecun_normal()


class Block(nnx.Module):
  """[B, N, D] -> [B, N, D]: x + tokens(norm1(x)^T)^T, then x + mlp(norm2(x)) (eq. 1), called as `transformer.Block`.

  The token MLP is the same for every channel; its weights are made for N places. What it records is "tokens/mlp/...",
  and rematerialisation treats both MLPs alike.
  """

  def __init__(self, places, width, token_hidden, hidden, *, eps, gelu, dropout, dtype, rngs):
    mlp = {"dropout": dropout, "gelu": gelu, "kernel_init": _lecun, "dtype": dtype, "rngs": rngs}
    self.norm1 = layers.LayerNorm(width, eps=eps, dtype=dtype)
    self.tokens = layers.Mlp(places, token_hidden, **mlp)
    self.norm2 = layers.LayerNorm(width, eps=eps, dtype=dtype)
    self.mlp = layers.Mlp(width, hidden, **mlp)
    self.dropout = dropout

  def __call__(self, x, key=None, path_rate=np.float32(0)):
    def add(stream, branch, number):
      branch = layers.dropout(branch, self.dropout, layers.fold(key, number))
      return stream + layers.drop_path(branch, path_rate, layers.fold(key, number + 1))

    columns = rearrange(self.norm1(x), "b n d -> b d n")
    with scope("tokens/"):
      columns = self.tokens(columns, key=layers.fold(key, 0))
    x = add(x, rearrange(columns, "b d n -> b n d"), 1)
    x = add(x, self.mlp(self.norm2(x), key=layers.fold(key, 3)), 4)
    return record("out", x)


def mixer(
  row: tuple[int, int, int, int],
  patch: int,
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: rng.Keys,
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
  """[B, H, W, C] -> [B, V]. Width, depth and the hidden widths, where given, replace those of the size.

  Weights fit one image size, since the token MLP has a weight for every place. There are no positions: it tells places
  apart by itself. `eps` is that of the layer norms.
  """
  given = (width, depth, token_hidden, hidden)
  width, depth, token_hidden, hidden = (b if a is None else a for a, b in zip(given, row, strict=True))
  rows, columns = grid(image_size, patch)
  compute = jnp.dtype(dtype)
  common = {"dtype": compute, "rngs": rngs}

  def block(rngs):
    return Block(
      rows * columns, width, token_hidden, hidden, eps=eps, gelu=gelu, dropout=dropout, dtype=compute, rngs=rngs
    )

  return Transformer(
    (*sides(image_size), channels),
    embedding=layers.PatchEmbedding(channels, width, patch, kernel_init=_lecun, **common),
    token=None,
    position=None,
    block=block,
    depth=depth,
    scan=scan,
    remat=remat,
    norm=layers.LayerNorm(width, eps=eps, dtype=compute),
    pool="gap",
    head=layers.Linear((width,), (classes,), kernel_init=layers.zeros, **common) if classes else None,
    dropout=dropout,
    stochastic_depth=stochastic_depth,
    rngs=rngs,
  )


PUBLISHED = {
  name: model(mixer, SIZES[size], patch, gelu=gelu, sharding=SHARDING) for name, (size, patch, gelu) in VARIANTS.items()
}

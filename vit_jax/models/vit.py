"""ViT (Dosovitskiy et al. 2021; sizes g and G: Zhai et al. 2022), with the defaults of the published image models."""

from typing import Annotated, Literal

import jax.numpy as jnp
from flax import nnx

from vit_jax import config
from vit_jax.config import Positive, Rate
from vit_jax.models import heads as pooling
from vit_jax.models import layers, positions, stack
from vit_jax.models.transformer import Depth, Dtype, Hidden, Transformer, Width, grid, size

SIZES = {  # width, depth, heads, hidden: one row is one model
  "Ti": (192, 12, 3, 768),
  "S": (384, 12, 6, 1536),
  "B": (768, 12, 12, 3072),
  "L": (1024, 24, 16, 4096),
  "H": (1280, 32, 16, 5120),
  "g": (1408, 40, 16, 6144),
  "G": (1664, 48, 16, 8192),
}
PUBLISHED = (224, 1000)  # image size and classes when nothing else is said

SHARDING = (
  *layers.SHARDING,
  (r"embedding/kernel", (None, None, None, "fsdp")),
  (r"embedding/bias", (None,)),
)


def vit(
  row: tuple[int, int, int, int],
  patch: int,
  image_size: int,
  channels: int,
  classes: int,
  rngs: nnx.Rngs,
  *,
  head: Literal["cls", "gap", "map", "seqpool"] = "cls",
  position: Literal["learned", "sincos2d", "factored", "relative", "none"] = "learned",
  gelu: Literal["tanh", "erf"] = "tanh",
  dropout: Rate = 0.0,
  attention_dropout: Rate = 0.0,
  stochastic_depth: Rate = 0.0,
  layer_scale: Positive | None = None,
  pre_logits: Width | None = None,
  head_bias: Annotated[float, config.Range(-1e4, 1e4)] = 0.0,
  width: Width | None = None,
  depth: Depth | None = None,
  heads: Width | None = None,
  hidden: Hidden | None = None,
  dtype: Dtype = "float32",
  scan: bool = False,
  remat: stack.Remat = "none",
) -> Transformer:
  """[B, H, W, C] -> [B, V]. Width, depth, heads and hidden, where given, replace those of the size.

  The class token exists for head "cls" only. Learned positions include it; "sincos2d" and "factored" belong to the
  patches; "relative" lives in the attention and counts it as place 0.
  """
  width, depth, heads, hidden = size(row, width=width, depth=depth, heads=heads, hidden=hidden)
  side = grid(image_size, patch)
  parts = {"sincos2d": 4, "factored": 2}.get(position, 1)
  if width % parts:
    raise config.ConfigError(f"model: position {position!r} needs a width that is a multiple of {parts}; it is {width}")
  has_cls = head == "cls"
  tokens = side * side + has_cls
  compute = jnp.dtype(dtype)
  common = {"dtype": compute, "rngs": rngs}
  bias_init = nnx.initializers.normal(1e-6)

  embedding = layers.Conv(
    channels, width, patch, patch, 0, bias=True, kernel_init=nnx.initializers.lecun_normal(), **common
  )
  match position:
    case "learned":
      table = positions.Learned(tokens, width, std=0.02, rngs=rngs)
    case "sincos2d":
      table = positions.Fixed(positions.sincos2d, (side, side, width), leading=int(has_cls))
    case "factored":
      table = positions.Factored(side, side, width, leading=int(has_cls), std=0.02, rngs=rngs)
    case _:
      table = None

  def block(rngs):
    return layers.Block(
      width,
      heads,
      hidden,
      eps=1e-6,
      gelu=gelu,
      dropout=dropout,
      attention_dropout=attention_dropout,
      layer_scale=layer_scale,
      relative=tokens if position == "relative" else None,
      bias_init=bias_init,
      dtype=compute,
      rngs=rngs,
    )

  match head:
    case "map":
      pool = pooling.Map(width, heads, hidden, eps=1e-6, gelu=gelu, bias_init=bias_init, **common)
    case "seqpool":
      pool = pooling.SeqPool(width, kernel_init=layers.xavier, **common)
    case _:
      pool = head

  lecun = nnx.initializers.lecun_normal()
  return Transformer(
    (image_size, image_size, channels),
    embedding=embedding,
    token=nnx.Param(jnp.zeros(width)) if has_cls else None,
    position=table,
    block=block,
    depth=depth,
    scan=scan,
    remat=remat,
    norm=layers.LayerNorm(width, eps=1e-6, dtype=compute),
    pool=pool,
    pre_logits=layers.Linear((width,), (pre_logits,), kernel_init=lecun, **common) if pre_logits else None,
    head=layers.Linear(
      (pre_logits or width,),
      (classes,),
      kernel_init=layers.zeros,
      bias_init=nnx.initializers.constant(head_bias),
      **common,
    ),
    dropout=dropout,
    stochastic_depth=stochastic_depth,
    rngs=rngs,
  )

"""ViT (Dosovitskiy et al. 2021; sizes: Zhai et al. 2022), hybrids with a ResNet in front, DeiT (Touvron et al. 2021).

Defaults are those of the published image models of Google; names as in timm and on Hugging Face bring their own.
"""

import re
from typing import Annotated, Literal

import jax.numpy as jnp
from flax import nnx

from vit_jax import rng, schema
from vit_jax.models import layers, positions, resnet, stack
from vit_jax.models import pooling as pooling
from vit_jax.models.attention import Formulation
from vit_jax.models.published import Published, model
from vit_jax.models.transformer import Block, Depth, Dtype, Hidden, Transformer, Width, grid, sides, size
from vit_jax.schema import Count, Positive, Probability

SIZES = {  # width, depth, heads, hidden: one row is one model
  "mu": (32, 1, 2, 128),
  "Ti": (192, 12, 3, 768),
  "S": (384, 12, 6, 1536),
  "M": (512, 12, 8, 2048),
  "B": (768, 12, 12, 3072),
  "L": (1024, 24, 16, 4096),
  "So400m": (1152, 27, 16, 4304),
  "H": (1280, 32, 16, 5120),
  "g": (1408, 40, 16, 6144),
  "g-opt": (1536, 40, 16, 6144),
  "G": (1664, 48, 16, 8192),
  "G-opt": (1536, 48, 16, 8192),
  "e": (1792, 56, 16, 15360),
}
PATCHES = (8, 14, 16, 32)  # listed; any other works too
HYBRIDS = {  # name -> size, patch on the ResNet's map, units of its stages (none: its root alone)
  "R+Ti/16": ("Ti", 8, ()),
  "R26+S/32": ("S", 1, (2, 2, 2, 2)),
  "R26+B/32": ("B", 1, (2, 2, 2, 2)),
  "R50+B/16": ("B", 1, (3, 4, 9)),
  "R50+L/32": ("L", 1, (3, 4, 6, 3)),
}

SHARDING = (
  *layers.SHARDING,
  *resnet.STEM_SHARDING,
  (r"embedding/kernel", (None, None, None, "fsdp")),
  (r"embedding/bias", (None,)),
)


def vit(
  row: tuple[int, int, int, int],
  patch: int,
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: rng.Keys,
  *,
  head: Literal["cls", "gap", "map", "seqpool", "distilled"] = "cls",
  position: Literal["learned", "sincos2d", "factored", "relative", "none"] = "learned",
  stages: tuple[Count, ...] | None = None,
  attention: Formulation = "xla",
  gelu: Literal["tanh", "erf"] = "tanh",
  eps: Positive = 1e-6,
  dropout: Probability = 0.0,
  attention_dropout: Probability = 0.0,
  stochastic_depth: Probability = 0.0,
  layer_scale: Positive | None = None,
  pre_logits: Width | None = None,
  head_bias: Annotated[float, schema.Range(-1e4, 1e4)] = 0.0,
  width: Width | None = None,
  depth: Depth | None = None,
  heads: Width | None = None,
  hidden: Hidden | None = None,
  dtype: Dtype = "float32",
  scan: bool = False,
  remat: stack.Remat = "none",
) -> Transformer:
  """[B, H, W, C] -> [B, V]. Width, depth, heads and hidden, where given, replace those of the size.

  The class token exists for heads "cls" and "distilled" only; the latter has a distillation token beside it, and the
  logits are the mean of two heads. Learned positions include these tokens; "sincos2d" and "factored" belong to the
  patches; "relative" lives in the attention and counts every token as a place. `stages` puts a ResNet with so many
  units in each stage in front of the patches. `eps` is that of the layer norms. `attention` "fused" is one kernel on
  TPUs (see `fused_attention`), with the same weights.
  """
  width, depth, heads, hidden = size(row, width=width, depth=depth, heads=heads, hidden=hidden)
  rows, columns = grid(image_size if stages is None else resnet.stem_sides(sides(image_size), stages), patch)
  leading = {"cls": 1, "distilled": 2}.get(head, 0)
  compute = jnp.dtype(dtype)
  common = {"dtype": compute, "rngs": rngs}
  bias_init = nnx.initializers.normal(1e-6)
  lecun = nnx.initializers.lecun_normal()

  def block(rngs):
    return Block(
      width,
      heads,
      hidden,
      eps=eps,
      gelu=gelu,
      dropout=dropout,
      attention_dropout=attention_dropout,
      layer_scale=layer_scale,
      relative=rows * columns + leading if position == "relative" else None,
      formulation=attention,
      bias_init=bias_init,
      dtype=compute,
      rngs=rngs,
    )

  def logits():
    constant = nnx.initializers.constant(head_bias)
    made = layers.Linear((pre_logits or width,), (classes,), kernel_init=layers.zeros, bias_init=constant, **common)
    return made if classes else None

  match head:
    case "map":
      pool = pooling.Map(width, heads, hidden, eps=eps, gelu=gelu, bias_init=bias_init, **common)
    case "seqpool":
      pool = pooling.SeqPool(width, kernel_init=layers.xavier, **common)
    case "distilled":
      pool = "cls"
      if pre_logits:
        raise schema.ConfigError("model: head 'distilled' has two heads and takes no pre_logits; leave one of them out")
    case _:
      pool = head

  stem = None if stages is None else resnet.Stem(channels, stages, **common)
  inputs = channels if stem is None else resnet.stem_width(stages)
  return Transformer(
    (*sides(image_size), channels),
    stem=stem,
    embedding=layers.PatchEmbedding(inputs, width, patch, kernel_init=lecun, **common),
    token=nnx.Param(jnp.zeros(width)) if leading else None,
    distillation=nnx.Param(jnp.zeros(width)) if head == "distilled" else None,
    position=_positions(position, rows, columns, width, leading, rngs),
    block=block,
    depth=depth,
    scan=scan,
    remat=remat,
    norm=layers.LayerNorm(width, eps=eps, dtype=compute),
    pool=pool,
    pre_logits=layers.Linear((width,), (pre_logits,), kernel_init=lecun, **common) if pre_logits else None,
    head=logits(),
    head_distillation=logits() if head == "distilled" else None,
    dropout=dropout,
    stochastic_depth=stochastic_depth,
    rngs=rngs,
  )


def _positions(position, rows, columns, width, leading, rngs):
  parts = {"sincos2d": 4, "factored": 2}.get(position, 1)
  if width % parts:
    raise schema.ConfigError(f"model: position {position!r} needs a width that is a multiple of {parts}; it is {width}")
  match position:
    case "learned":
      return positions.Learned(rows * columns + leading, width, std=0.02, rngs=rngs)
    case "sincos2d":
      return positions.Fixed(positions.sincos2d, (rows, columns, width), leading=leading)
    case "factored":
      return positions.Factored(rows, columns, width, leading=leading, std=0.02, rngs=rngs)
  return None


# Names.

_ANY_PATCH = re.compile(r"ViT-([A-Za-z0-9-]+)/(.*)")


def any_patch(name: str) -> Published | None:
  """The model of "ViT-<size>/<patch>" for any patch; None for a name of another form."""
  match = _ANY_PATCH.fullmatch(name)
  if not match:
    return None
  size, patch = match.groups()
  if size not in SIZES:
    raise schema.ConfigError(f"{name!r} has unknown size {size!r}.{schema.nearest(size, SIZES)}", "name")
  if not re.fullmatch("[1-9][0-9]{0,5}", patch):
    raise schema.ConfigError(f"{name!r} has patch {patch!r}; allowed: a whole number from 1, as in ViT-S/16", "name")
  return model(vit, SIZES[size], int(patch), sharding=SHARDING)


_TIMM = {  # timm's word -> size, patches and image sizes that it lists
  "tiny": ("Ti", (16,), (224, 384)),
  "small": ("S", (8, 16, 32), (224, 384)),
  "medium": ("M", (16, 32), (224, 256)),
  "base": ("B", (8, 16, 32), (224, 256, 384)),
  "large": ("L", (14, 16, 32), (224, 384)),
  "huge": ("H", (14, 16), (224, 378)),
  "giant": ("g", (14,), (224,)),
  "gigantic": ("G", (14,), (224,)),
}

PUBLISHED = {
  **{
    f"ViT-{size}/{patch}": model(vit, row, patch, sharding=SHARDING) for size, row in SIZES.items() for patch in PATCHES
  },
  **{
    name: model(vit, SIZES[size], patch, stages=stages, sharding=SHARDING)
    for name, (size, patch, stages) in HYBRIDS.items()
  },
  **{
    f"vit_{word}_patch{patch}_{side}": model(vit, SIZES[size], patch, gelu="erf", image_size=side, sharding=SHARDING)
    for word, (size, patches, sides_) in _TIMM.items()
    for patch in patches
    for side in sides_
    if side % patch == 0
  },
  **{
    f"deit_{word}{distilled and '_distilled'}_patch16_{side}": model(
      vit, SIZES[size], 16, gelu="erf", head=distilled or "cls", image_size=side, sharding=SHARDING
    )
    for word, size in (("tiny", "Ti"), ("small", "S"), ("base", "B"))
    for distilled in ("", "distilled")
    for side in ((224, 384) if word == "base" else (224,))
  },
  **{
    f"google/vit-{word}-patch{patch}-{side}": model(
      vit, SIZES[size], patch, gelu="erf", eps=1e-12, image_size=side, sharding=SHARDING
    )
    for word, size, patch, side in (
      ("base", "B", 16, 224),
      ("base", "B", 16, 384),
      ("base", "B", 32, 384),
      ("large", "L", 16, 224),
      ("large", "L", 16, 384),
      ("large", "L", 32, 384),
    )
  },
  **{
    f"google/vit-{word}-patch{patch}-224-in21k": model(
      vit, SIZES[size], patch, gelu="erf", eps=1e-12, pre_logits=SIZES[size][0], classes=0, sharding=SHARDING
    )
    for word, size, patch in (
      ("base", "B", 16),
      ("base", "B", 32),
      ("large", "L", 16),
      ("large", "L", 32),
      ("huge", "H", 14),
    )
  },
}

"""ViT (Dosovitskiy et al. 2021; sizes: Zhai et al. 2022), hybrids with a ResNet stem, and DeiT (Touvron et al. 2021).

The defaults are those of Google's published image models. Names of timm and Hugging Face have their own defaults.
"""

import functools
from typing import Annotated, Any

import jax.numpy as jnp
from flax import nnx

from vit_jax import schema
from vit_jax.models import attention_outputs, int8, layers, parameters, resnet, rotary, stack
from vit_jax.models.attention import Attention
from vit_jax.models.parameters import Common, Keys
from vit_jax.models.positions import Resampling
from vit_jax.models.query_key import QueryKey
from vit_jax.models.sizes import Blocks, Depth, Dtype, Hidden, Width, grid, sides, size
from vit_jax.models.transformer import Block, Transformer, create_prefix_tokens
from vit_jax.models.vit_choices import ATTENTION, MLP, NORM, POSITION, AttentionChoice, Tokens
from vit_jax.models.vit_heads import HEAD, PoolSizes
from vit_jax.schema import Choice, Positive, Probability

ORDER = parameters.ORDER
SHARDING = (
  *parameters.SHARDING,
  *attention_outputs.SHARDING,
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
  rngs: Keys,
  *,
  head: Annotated[Choice, HEAD] = Choice("cls"),
  registers: Annotated[int, schema.Range(0, 1024)] = 0,
  position: Annotated[Choice, POSITION] = Choice("learned"),
  resampling: Resampling = "zoom",
  stages: tuple[Blocks, ...] | None = None,
  attention: Annotated[Choice, ATTENTION] = Choice("xla"),
  mlp: Annotated[Choice, MLP] = Choice("gelu"),
  gelu: layers.Gelu = "tanh",
  norm: Annotated[Choice, NORM] = Choice("layer"),
  dropout: Probability = 0.0,
  stochastic_depth: Probability = 0.0,
  stochastic_depth_rates: stack.Dropping = "growing",
  layer_scale: Positive | None = None,
  width: Width | None = None,
  depth: Depth | None = None,
  heads: Width | None = None,
  hidden: Hidden | None = None,
  dtype: Dtype = "float32",
  matmul: int8.Matmul = "default",
  scan: bool = False,
  remat: stack.Remat = "none",
) -> Transformer:
  """Creates a Vision Transformer: [B, H, W, C] -> [B, V].

  The arguments `width`, `depth`, `heads` and `hidden` replace the values of the size if they are not None.

  Args:
    row: (width, depth, heads, hidden) of the size.
    patch: side of a patch, in pixels of the image or of the ResNet's feature map.
    image_size: side of square images in pixels, or (height, width).
    channels: number of image channels.
    classes: number of classes. 0 omits the head.
    rngs: source of keys for initial values.
    head: pooling of the tokens and the layers after it, see `vit_heads.HEAD`. "cls" uses the class token. "distilled"
      adds a distillation token with a second head. "gap", "map" and "seqpool" pool the patches.
    registers: number of tokens that pooling ignores (Darcet et al. 2024). Only "learned_all" gives them a position.
    position: positions of the tokens, see `vit_choices.POSITION`: added tables such as "learned" and "sincos2d",
      "relative", or "none". The argument `rotary` of each name also rotates queries and keys.
    resampling: method by which importers resample learned tables to another resolution, see `positions.Resampling`.
      Published weights use the method of their publisher unless a config sets another one.
    stages: number of units in each stage of a ResNet stem before the patches. None omits the stem.
    attention: formulation of attention, see `vit_choices.ATTENTION`: "xla", "fused" for one kernel on TPUs with the
      same weights, or "differential".
    mlp: MLPs of the blocks, see `vit_choices.MLP`: "gelu", "swiglu" or "swiglu_normed".
    gelu: formulation of GELU in MLPs, the approximation "tanh" or the exact "erf".
    norm: norms of the stream, see `vit_choices.NORM`: "layer" or "rms".
    dropout: dropout rate of the tokens and of each branch.
    stochastic_depth: rate of stochastic depth at the last block.
    stochastic_depth_rates: "growing" increases the rate linearly from 0 at the first block, as in DeiT. "equal" uses
      the same rate in all blocks, as in DeiT III.
    layer_scale: initial factor of each branch (LayerScale). None disables the factors.
    width: width of the tokens.
    depth: number of blocks.
    heads: number of attention heads.
    hidden: hidden width of the MLPs.
    dtype: type of the computation. Parameters are float32.
    matmul: products of the projections of attention and of the MLPs in training. "int8" computes them and the
      gradients of their inputs with int8 numbers on TPU v5e, v5p and v6e, see `models.int8`. Evaluation, prediction and
      conversion always compute in `dtype`.
    scan: whether the blocks form one stack, which is compiled once.
    remat: rematerialisation policy, see `stack.POLICIES`.

  Raises:
    ConfigError: if arguments exclude each other or are not compatible with the image size.
  """
  options, head_parts = schema.make(attention, ATTENTION), schema.make(head, HEAD)
  norms, places, mlps = schema.make(norm, NORM), schema.make(position, POSITION), schema.make(mlp, MLP)
  _check_positions(attention.name, places.relative)
  width, depth, heads, hidden = size(row, width=width, depth=depth, heads=heads, hidden=hidden)
  if width % places.divisor:
    raise schema.ConfigError(
      f"model: width {width} is not a multiple of {places.divisor}, which position {position.name!r} needs. Use "
      "another width or position"
    )
  hidden = mlps.compute_hidden_width(hidden)
  rows, columns = grid(image_size if stages is None else resnet.compute_stem_sides(sides(image_size), stages), patch)
  tokens = Tokens(rows, columns, width, head_parts.leading, registers)
  compute = jnp.dtype(dtype)
  common = Common(dtype=compute, rngs=rngs)
  lecun, of_mlp = nnx.initializers.lecun_normal(), {"bias_init": nnx.initializers.normal(1e-6)}
  norm_of = layers.Norm(norms.kind, norms.eps, compute)
  rotation = _create_rotary(places.rotary, heads * options.halves, tokens)
  of_attention = _create_attention_parts(options, heads, tokens, norm_of, rotation, places.relative)
  of_attention["out_bias"] = not (options.halves > 1 and norms.order == "parallel")

  def block(rngs: Keys) -> Block:
    common = Common(dtype=compute, rngs=rngs)
    unplaced = 0 if places.covers_registers else registers
    table = (
      {"position": places.create(tokens, rngs), "registers": (head_parts.leading, unplaced)}
      if places.at == "each"
      else {}
    )
    return Block(
      norm_of(width),
      Attention(width, heads, **of_attention, matmul=matmul, **common),
      None if norms.order == "parallel" else norm_of(width),
      mlps.create(width, hidden, norm_of, gelu, dropout=dropout, matmul=matmul, **of_mlp, **common),
      order=norms.order,
      layer_scale=layers.create_layer_scale(width, layer_scale),
      dropout=dropout,
      **table,
    )

  logits = functools.partial(head_parts.create_logits, width, classes, **common)
  stem, inputs = (None, channels) if stages is None else _create_stem(channels, stages, common)
  return Transformer(
    (*sides(image_size), channels),
    stem=stem,
    embedding=layers.PatchEmbedding(inputs, width, patch, kernel_init=lecun, **common),
    position=None if places.at == "each" else places.create(tokens, rngs),
    position_at="shared" if places.at == "shared" else "input",
    rotary=rotation,
    resizable=places.at != "each" and not places.relative,
    prefix=create_prefix_tokens(
      width, cls=head_parts.leading > 0, distillation=head_parts.distilled, registers=registers, rngs=rngs
    ),
    blocks=stack.Blocks(block, depth, scan, remat, stochastic_depth, stochastic_depth_rates, options.numbered),
    norm=None if norms.pooled else norm_of(width),
    pool=head_parts.create_pool(PoolSizes(width, heads, hidden, norms.eps, gelu), **common),
    pool_norm=norm_of(width) if norms.pooled else None,
    pre_logits=head_parts.create_pre_logits(width, **common),
    head=logits(),
    head_distillation=logits() if head_parts.distilled else None,
    dropout=dropout,
    rngs=rngs,
  )


def _create_attention_parts(
  options: AttentionChoice,
  heads: int,
  tokens: Tokens,
  norm_of: layers.Norm,
  rotation: rotary.Rotary | None,
  relative: bool,
) -> dict[str, Any]:
  """Returns the parts of attention, by argument name."""
  size = tokens.width // heads
  query_key = QueryKey(
    tokens.width // (heads * options.halves),
    norm=None if options.qk_norm == "none" else layers.Norm(options.qk_norm, norm_of.eps, norm_of.dtype),
    rotary=rotation,
    leading=tokens.leading,
    relative=tokens.total if relative else None,
  )
  return {
    "bias": options.bias,
    "query_key": query_key if query_key.transforms_keys or relative else None,
    "kernel": options.create_kernel(size, norm_of.dtype),
    "output": schema.make(options.output, attention_outputs.OUTPUTS, tokens.width, heads, norm_of, norm_of.dtype),
  }


def _create_stem(channels: int, stages: tuple[int, ...], common: Common) -> tuple[nnx.Module, int]:
  """Returns a ResNet stem and the number of its output channels."""
  return resnet.Stem(channels, stages, **common), resnet.compute_stem_width(stages)


def _create_rotary(choice: Choice, heads: int, tokens: Tokens) -> rotary.Rotary | None:
  """Returns the rotary positions of a choice, or None. Raises a ConfigError if they do not support the registers."""
  with schema.enter_key("model.position.rotary"):
    made = schema.make(choice, rotary.ROTARY, heads, tokens.width // heads, (tokens.rows, tokens.columns))
    if made is not None:
      made.compute_register_angles(tokens.registers)
  return made


def _check_positions(attention: str, relative: bool) -> None:
  """Raises a ConfigError if the attention does not support relative positions."""
  if attention == "fused" and relative:
    raise schema.ConfigError(
      "model: attention 'fused' does not support position 'relative'. Use attention='xla', or another position"
    )

"""ViT (Dosovitskiy et al. 2021; sizes: Zhai et al. 2022), hybrids with a ResNet stem, and DeiT (Touvron et al. 2021).

The defaults are those of Google's published image models. Names of timm and Hugging Face have their own defaults.
"""

import functools
from typing import Annotated, Literal

import jax.numpy as jnp
from flax import nnx

from vit_jax import schema
from vit_jax.models import layers, parameters, positions, resnet, stack
from vit_jax.models.attention import Attention, Bias, Formulation
from vit_jax.models.differential import Difference
from vit_jax.models.parameters import Keys
from vit_jax.models.pooling import Map, SeqPool
from vit_jax.models.rotary import ROTARY
from vit_jax.models.sizes import Blocks, Depth, Dtype, Hidden, Width, grid, sides, size
from vit_jax.models.transformer import Block, Transformer, prefix_tokens
from vit_jax.schema import Choice, Positive, Probability

ORDER = parameters.ORDER
SHARDING = (
  *parameters.SHARDING,
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
  pool: Literal["cls", "gap", "map", "seqpool", "distilled"] = "cls",
  class_token: bool | None = None,
  registers: Annotated[int, schema.Range(0, 1024)] = 0,
  position: Literal[
    "learned", "learned_patches", "learned_all", "sincos2d", "factored", "relative", "none"
  ] = "learned",
  position_at: Literal["input", "each", "shared"] = "input",
  rotary: Annotated[Choice, ROTARY] = Choice("none"),
  resampling: positions.Resampling = "zoom",
  stages: tuple[Blocks, ...] | None = None,
  attention: Formulation = "xla",
  qk_norm: Literal["none", "layer", "rms"] = "none",
  qkv_bias: Bias = "all",
  context_norm: bool = False,
  differential: bool = False,
  mlp: Literal["gelu", "swiglu", "swiglu_normed"] = "gelu",
  gelu: Literal["tanh", "erf"] = "tanh",
  norm: Literal["layer", "rms"] = "layer",
  norm_order: Literal["pre", "post", "parallel"] = "pre",
  norm_pooled: bool = False,
  eps: Positive = 1e-6,
  dropout: Probability = 0.0,
  attention_dropout: Probability = 0.0,
  stochastic_depth: Probability = 0.0,
  stochastic_depth_rates: stack.Dropping = "growing",
  layer_scale: Positive | None = None,
  pre_logits: Width | None = None,
  head_bias: Annotated[float, schema.Range(-1e4, 1e4)] = 0.0,
  head_std: schema.NonNegative = 0.0,
  width: Width | None = None,
  depth: Depth | None = None,
  heads: Width | None = None,
  hidden: Hidden | None = None,
  hidden_multiple: Annotated[int, schema.Range(1, 1024)] | None = None,
  dtype: Dtype = "float32",
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
    pool: input of the head. "cls" uses the class token. "distilled" adds a distillation token with a second head, and
      the logits are the mean of both heads. The other values pool the patches.
    class_token: whether there is a class token even if the head does not use it, as in DINOv3. None: no class token.
    registers: number of tokens that pooling ignores (Darcet et al. 2024). They have a position only with "learned_all".
    position: "learned" has a vector for class token, distillation token and each patch. "learned_patches" has vectors
      for patches only (DeiT III), "learned_all" also for registers. "sincos2d" and "factored" apply to patches.
      "relative" uses relative positions in the attention, for all tokens including the prefix tokens.
    position_at: where positions are added (Dosovitskiy et al. 2021, appendix D.4). "input" adds them once to the
      tokens. "each" adds a separate table before each block. "shared" adds the same table before each block.
    rotary: rotary positions of queries and keys, in addition to added positions: "axial" (rope-vit, EVA-02), "mixed"
      (learned, rope-vit) or "dinov3".
    resampling: method by which importers resample learned tables to another resolution, see `positions.Resampling`.
      Published weights use the method of their publisher unless a config sets another one.
    stages: number of units in each stage of a ResNet stem before the patches. None omits the stem.
    attention: "xla", or "fused" for one kernel on TPUs (see `fused_attention`). The weights are the same.
    qk_norm: norm of the queries and keys of each head (Dehghani et al. 2023), applied before rotation.
    qkv_bias: projections of query, key and value that have a bias.
    context_norm: whether the input of attention's last projection is normalised (EVA-02's CLIP).
    differential: whether each head subtracts the attention of its second half from that of its first half (Ye et al.
      2024). With "parallel", the last projections of both branches then share one bias, as in timm's code.
    mlp: "gelu", "swiglu" with three matrices (Shazeer 2020), or "swiglu_normed" with a norm before the last matrix
      (EVA-02).
    gelu: formulation of GELU, the approximation "tanh" or the exact "erf".
    norm: type of the norms of the stream: "layer", or "rms" without mean and bias (Zhang and Sennrich 2019).
    norm_order: "pre" is the order of Dosovitskiy et al. "post" normalises the outputs of branches. "parallel" has one
      norm for both branches, which are added at once.
    norm_pooled: whether the last norm is applied after pooling instead of to all tokens.
    eps: epsilon of the norms.
    dropout: dropout rate of the tokens and of each branch.
    attention_dropout: dropout rate of the attention weights.
    stochastic_depth: rate of stochastic depth at the last block.
    stochastic_depth_rates: "growing" increases the rate linearly from 0 at the first block, as in DeiT. "equal" uses
      the same rate in all blocks, as in DeiT III.
    layer_scale: initial factor of each branch (LayerScale). None disables the factors.
    pre_logits: width of a layer with tanh before the head. None omits the layer.
    head_bias: initial bias of every class.
    head_std: standard deviation of the head's initial kernel, 0.02 in timm and DeiT. LAMB takes steps proportional to
      the norm of a kernel, so a kernel of zeros would need thousands of steps to grow.
    width: width of the tokens.
    depth: number of blocks.
    heads: number of attention heads.
    hidden: hidden width of the MLPs.
    hidden_multiple: reduces the hidden width of SwiGLU to two thirds of `hidden`, rounded up to a multiple of this
      number. The number of parameters then stays the same. DINOv2 and DINOv3 use 8 to 128. None uses `hidden`
      unchanged.
    dtype: type of the computation. Parameters are float32.
    scan: whether the blocks form one stack, which is compiled once.
    remat: rematerialisation policy, see `stack.POLICIES`.

  Raises:
    ConfigError: if arguments exclude each other or are not compatible with the image size.
  """
  _check(pool, pre_logits, position, position_at, mlp, hidden_multiple)
  width, depth, heads, hidden = size(row, width=width, depth=depth, heads=heads, hidden=hidden)
  rows, columns = grid(image_size if stages is None else resnet.stem_sides(sides(image_size), stages), patch)
  hidden = _rounded_up(hidden * 2 // 3, hidden_multiple) if hidden_multiple else hidden
  leading = {"cls": 1, "distilled": 2}.get(pool, int(bool(class_token)))
  compute = jnp.dtype(dtype)
  common = {"dtype": compute, "rngs": rngs}
  lecun, of_mlp = nnx.initializers.lecun_normal(), {"bias_init": nnx.initializers.normal(1e-6)}
  tables = functools.partial(_positions, position, rows, columns, width, leading, registers)
  apart = heads * (1 + differential)  # units with separate attention: heads, or halves of heads
  turning = _rotary(rotary, apart, width // apart, (rows, columns), registers)
  of_attention = {"dropout": attention_dropout, "bias": qkv_bias, "rotary": turning, "leading": leading}
  of_attention |= {"formulation": attention, "out_bias": not (differential and norm_order == "parallel")}
  if position == "relative":
    of_attention["relative"] = rows * columns + leading + registers

  def norm_of(size, kind=norm):
    return layers.NORMS[kind](size, eps=eps, dtype=compute)

  def block(rngs):
    common = {"dtype": compute, "rngs": rngs}
    inside = _norms(norm_of, width, apart, qk_norm, context_norm)
    inside |= {"difference": Difference(width // heads, **common)} if differential else {}
    unplaced = 0 if position == "learned_all" else registers
    parts = {"position": tables(rngs), "registers": (leading, unplaced)} if position_at == "each" else {}
    return Block(
      norm_of(width),
      Attention(width, heads, **of_attention, **inside, **common),
      None if norm_order == "parallel" else norm_of(width),
      _mlp(mlp, width, hidden, norm_of, gelu, dropout=dropout, **of_mlp, **common),
      order=norm_order,
      layer_scale=layers.layer_scale(width, layer_scale),
      dropout=dropout,
      **parts,
    )

  logits = functools.partial(_head, pre_logits or width, classes, head_std, head_bias, common)
  stem, inputs = (None, channels) if stages is None else _stem(channels, stages, common)
  return Transformer(
    (*sides(image_size), channels),
    stem=stem,
    embedding=layers.PatchEmbedding(inputs, width, patch, kernel_init=lecun, **common),
    position=None if position_at == "each" else tables(rngs),
    position_at="shared" if position_at == "shared" else "input",
    rotary=turning,
    resizable=position_at != "each" and position != "relative",
    prefix=prefix_tokens(width, cls=leading > 0, distillation=pool == "distilled", registers=registers, rngs=rngs),
    blocks=stack.Blocks(block, depth, scan, remat, stochastic_depth, stochastic_depth_rates, differential),
    norm=None if norm_pooled else norm_of(width),
    pool=_pooling(pool, width, {"heads": heads, "hidden": hidden, "eps": eps, "gelu": gelu} | of_mlp, common),
    pool_norm=norm_of(width) if norm_pooled else None,
    pre_logits=layers.Linear((width,), (pre_logits,), kernel_init=lecun, **common) if pre_logits else None,
    head=logits(),
    head_distillation=logits() if pool == "distilled" else None,
    dropout=dropout,
    rngs=rngs,
  )


def _rounded_up(number, multiple):
  return -(-number // multiple) * multiple


def _stem(channels, stages, common):
  return resnet.Stem(channels, stages, **common), resnet.stem_width(stages)


def _rotary(choice, heads, channels, patches, registers):
  """Returns the rotary positions of a choice, or None. Raises a ConfigError if they do not support the registers."""
  with schema.enter_key("model.rotary"):
    made = schema.make(choice, ROTARY, heads, channels, patches)
    if made is not None:
      made.of_registers(registers)
  return made


def _norms(norm_of, width, heads, qk_norm, context_norm):
  """Returns the norms inside of an attention, by argument name."""
  names = () if qk_norm == "none" else ("query_norm", "key_norm")
  norms = {name: norm_of(width // heads, qk_norm) for name in names}
  return norms | ({"context_norm": norm_of(width)} if context_norm else {})


def _mlp(kind, width, hidden, norm_of, gelu, **options):
  if kind == "gelu":
    return layers.Mlp(width, hidden, gelu=gelu, **options)
  return layers.SwiGLU(width, hidden, norm=norm_of(hidden) if kind == "swiglu_normed" else None, **options)


def _pooling(pool, width, of_map, common):
  match pool:
    case "map":
      return Map(width, **of_map, **common)
    case "seqpool":
      return SeqPool(width, kernel_init=layers.xavier, **common)
  return "gap" if pool == "gap" else "cls"


def _head(width, classes, std, bias, common):
  """Returns a linear head, or None without classes."""
  kernel = nnx.initializers.normal(std) if std else layers.zeros
  made = layers.Linear((width,), (classes,), kernel_init=kernel, bias_init=nnx.initializers.constant(bias), **common)
  return made if classes else None


def _check(pool, pre_logits, position, position_at, mlp, hidden_multiple):
  """Raises a ConfigError for arguments that exclude each other."""
  if hidden_multiple and mlp == "gelu":
    raise schema.ConfigError(
      f"model.hidden_multiple: {hidden_multiple} is for SwiGLU, but mlp is 'gelu'. Remove it, or use mlp='swiglu'"
    )
  if position_at != "input" and position in ("relative", "none"):
    raise schema.ConfigError(
      f"model: position_at {position_at!r} specifies where a position table is added, but position {position!r} has "
      f"no table. Allowed: "
      "position_at='input', or a position that is learned, 'sincos2d' or 'factored'"
    )
  if pool == "distilled" and pre_logits:
    raise schema.ConfigError(
      "model: pool 'distilled' has two heads and does not support pre_logits. Use another pool, or remove pre_logits"
    )


def _positions(position, rows, columns, width, leading, registers, rngs):
  parts = {"sincos2d": 4, "factored": 2}.get(position, 1)
  if width % parts:
    raise schema.ConfigError(
      f"model: width {width} is not a multiple of {parts}, which position {position!r} needs. Use another width or "
      "position"
    )
  match position:
    case "learned":
      return positions.Learned(rows * columns + leading, width, std=0.02, rngs=rngs)
    case "learned_patches":
      return positions.Learned(rows * columns, width, leading=leading, std=0.02, rngs=rngs)
    case "learned_all":
      return positions.Learned(rows * columns + leading + registers, width, std=0.02, rngs=rngs)
    case "sincos2d":
      return positions.Fixed(positions.sincos2d, (rows, columns, width), leading=leading)
    case "factored":
      return positions.Factored(rows, columns, width, leading=leading, std=0.02, rngs=rngs)
  return None

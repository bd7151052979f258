"""Choices of the arguments `attention`, `mlp`, `norm` and `position` of `vit.vit`, by name."""

import dataclasses
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from flax import nnx
from jax.typing import DTypeLike

from vit_jax import schema
from vit_jax.models import layers, positions
from vit_jax.models.attention import Bias, KernelPart, Softmax
from vit_jax.models.attention_outputs import OUTPUTS
from vit_jax.models.differential import Differential
from vit_jax.models.fused import Fused
from vit_jax.models.parameters import Keys
from vit_jax.models.rotary import ROTARY
from vit_jax.schema import Choice, Probability

QueryKeyNorm = Literal["none", "layer", "rms"]


@dataclasses.dataclass(frozen=True)
class XlaAttention:
  """Attention that XLA compiles.

  Args:
    qk_norm: norm of the queries and keys of each head (Dehghani et al. 2023), applied before rotation.
    bias: projections of query, key and value that have a bias.
    output: change of the contexts before the last projection.
    dropout: dropout rate of the attention weights.
  """

  _: dataclasses.KW_ONLY
  qk_norm: QueryKeyNorm = "none"
  bias: Bias = "all"
  output: Annotated[Choice, OUTPUTS] = Choice("plain")
  dropout: Probability = 0.0

  halves: ClassVar[int] = 1  # units of a head that attend separately
  numbered: ClassVar[bool] = False  # whether the kernel needs the number of the block

  def create_kernel(self, size: int, dtype: DTypeLike) -> KernelPart:
    """Returns the kernel.

    Args:
      size: number of channels of a head.
      dtype: type of the computation.
    """
    return Softmax(self.dropout)


@dataclasses.dataclass(frozen=True)
class FusedAttention:
  """One kernel on TPUs with the same weights as "xla". It has neither dropout nor relative positions.

  Args:
    qk_norm: norm of the queries and keys of each head (Dehghani et al. 2023), applied before rotation.
    bias: projections of query, key and value that have a bias.
    output: change of the contexts before the last projection.
  """

  _: dataclasses.KW_ONLY
  qk_norm: QueryKeyNorm = "none"
  bias: Bias = "all"
  output: Annotated[Choice, OUTPUTS] = Choice("plain")

  halves: ClassVar[int] = 1
  numbered: ClassVar[bool] = False

  def create_kernel(self, size: int, dtype: DTypeLike) -> KernelPart:
    """Returns the kernel.

    Args:
      size: number of channels of a head.
      dtype: type of the computation.
    """
    return Fused()


@dataclasses.dataclass(frozen=True)
class DifferentialAttention:
  """Each head subtracts the attention of its second half from that of its first half (Ye et al. 2024).

  With parallel branches, the last projections of both branches share one bias, as in timm's code.

  Args:
    qk_norm: norm of the queries and keys of each half of a head (Dehghani et al. 2023), applied before rotation.
    bias: projections of query, key and value that have a bias.
    output: change of the contexts before the last projection.
    dropout: dropout rate of the attention weights.
  """

  _: dataclasses.KW_ONLY
  qk_norm: QueryKeyNorm = "none"
  bias: Bias = "all"
  output: Annotated[Choice, OUTPUTS] = Choice("plain")
  dropout: Probability = 0.0

  halves: ClassVar[int] = 2
  numbered: ClassVar[bool] = True

  def create_kernel(self, size: int, dtype: DTypeLike) -> KernelPart:
    """Returns the kernel.

    Args:
      size: number of channels of a head.
      dtype: type of the computation.
    """
    return Differential(size, dropout=self.dropout, dtype=dtype)


ATTENTION = schema.Variants(xla=XlaAttention, fused=FusedAttention, differential=DifferentialAttention)
AttentionChoice = XlaAttention | FusedAttention | DifferentialAttention


@dataclasses.dataclass(frozen=True)
class GeluMlp:
  """An MLP of two matrices with GELU between them."""

  def compute_hidden_width(self, hidden: int) -> int:
    """Returns `hidden`.

    Args:
      hidden: hidden width.
    """
    return hidden

  def create(self, width: int, hidden: int, norm: layers.Norm, gelu: layers.Gelu, **options: Any) -> nnx.Module:
    """Returns the MLP.

    Args:
      width: width of the tokens.
      hidden: hidden width.
      norm: norm of the stream, which is not used.
      gelu: formulation of GELU.
      **options: other arguments of the MLP.
    """
    return layers.Mlp(width, hidden, gelu=gelu, **options)


@dataclasses.dataclass(frozen=True)
class SwigluMlp:
  """The gated MLP SwiGLU of three matrices (Shazeer 2020).

  Args:
    multiple: reduces the hidden width to two thirds of `hidden`, rounded up to a multiple of this number. The number of
      parameters then stays the same. DINOv2 and DINOv3 use 8 to 128. None uses `hidden` unchanged.
  """

  _: dataclasses.KW_ONLY
  multiple: Annotated[int, schema.Range(1, 1024)] | None = None

  def compute_hidden_width(self, hidden: int) -> int:
    """Returns the hidden width of all MLPs of the model.

    Args:
      hidden: hidden width of an MLP of two matrices.
    """
    return -(-(hidden * 2 // 3) // self.multiple) * self.multiple if self.multiple else hidden

  def create(self, width: int, hidden: int, norm: layers.Norm, gelu: layers.Gelu, **options: Any) -> nnx.Module:
    """Returns the MLP.

    Args:
      width: width of the tokens.
      hidden: hidden width.
      norm: norm of the stream.
      gelu: formulation of GELU, which is not used.
      **options: other arguments of the MLP.
    """
    return layers.SwiGLU(width, hidden, **options)


@dataclasses.dataclass(frozen=True)
class NormedSwigluMlp(SwigluMlp):
  """SwiGLU with a norm before its last matrix (EVA-02).

  Args:
    multiple: see "swiglu".
  """

  def create(self, width: int, hidden: int, norm: layers.Norm, gelu: layers.Gelu, **options: Any) -> nnx.Module:
    """Returns the MLP. The arguments are those of `SwigluMlp.create`."""
    return layers.SwiGLU(width, hidden, norm=norm(hidden), **options)


MLP = schema.Variants(gelu=GeluMlp, swiglu=SwigluMlp, swiglu_normed=NormedSwigluMlp)


@dataclasses.dataclass(frozen=True)
class LayerNorms:
  """LayerNorm, with mean and bias.

  Args:
    order: "pre" is the order of Dosovitskiy et al. "post" normalises the outputs of branches. "parallel" has one norm
      for both branches, which are added at once.
    pooled: whether the last norm is applied after pooling instead of to all tokens.
    eps: epsilon of all norms.
  """

  _: dataclasses.KW_ONLY
  order: Literal["pre", "post", "parallel"] = "pre"
  pooled: bool = False
  eps: schema.Positive = 1e-6

  kind: ClassVar[layers.NormKind] = "layer"


@dataclasses.dataclass(frozen=True)
class RmsNorms(LayerNorms):
  """RMSNorm, without mean and bias (Zhang and Sennrich 2019).

  Args:
    order: see "layer".
    pooled: see "layer".
    eps: see "layer".
  """

  kind: ClassVar[layers.NormKind] = "rms"


NORM = schema.Variants(layer=LayerNorms, rms=RmsNorms)


class Tokens(NamedTuple):
  """The tokens of a model.

  Attributes:
    rows: number of rows of patches.
    columns: number of columns of patches.
    width: width of the tokens.
    leading: number of class and distillation tokens.
    registers: number of registers.
  """

  rows: int
  columns: int
  width: int
  leading: int
  registers: int

  @property
  def total(self) -> int:
    """Number of all tokens."""
    return self.rows * self.columns + self.leading + self.registers


At = Literal["input", "each", "shared"]
Rotation = Annotated[Choice, ROTARY]


@dataclasses.dataclass(frozen=True)
class Positions:
  """Positions of a model.

  Args:
    rotary: rotary positions of queries and keys.
  """

  _: dataclasses.KW_ONLY
  rotary: Rotation = Choice("none")

  relative: ClassVar[bool] = False  # whether attention has relative positions
  covers_registers: ClassVar[bool] = False  # whether registers have a position
  divisor: ClassVar[int] = 1  # the width must be a multiple

  def create(self, tokens: Tokens, rngs: Keys) -> nnx.Module | None:
    """Returns the table of positions, or None.

    Args:
      tokens: the tokens.
      rngs: source of keys.
    """
    return None


@dataclasses.dataclass(frozen=True)
class NoTable(Positions):
  """No added positions.

  Args:
    rotary: rotary positions of queries and keys.
  """

  at: ClassVar[At] = "input"


@dataclasses.dataclass(frozen=True)
class Relative(NoTable):
  """Relative positions in the attention, for all tokens including the prefix tokens (Shaw et al. 2018).

  Args:
    rotary: see "none".
  """

  relative: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Learned(Positions):
  """A learned vector for class token, distillation token and each patch.

  Args:
    rotary: rotary positions of queries and keys, in addition to the table.
    at: where positions are added (Dosovitskiy et al. 2021, appendix D.4). "input" adds them once to the tokens. "each"
      adds a separate table before each block. "shared" adds the same table before each block.
  """

  _: dataclasses.KW_ONLY
  at: At = "input"

  def create(self, tokens: Tokens, rngs: Keys) -> nnx.Module:
    """Returns the table of positions. The arguments are those of `Positions.create`."""
    return positions.Learned(tokens.total - tokens.registers, tokens.width, std=0.02, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class LearnedPatches(Learned):
  """A learned vector for each patch (DeiT III).

  Args:
    rotary: see "learned".
    at: see "learned".
  """

  def create(self, tokens: Tokens, rngs: Keys) -> nnx.Module:
    """Returns the table of positions. The arguments are those of `Positions.create`."""
    patches = tokens.rows * tokens.columns
    return positions.Learned(patches, tokens.width, leading=tokens.leading, std=0.02, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class LearnedAll(Learned):
  """A learned vector for every token, including registers.

  Args:
    rotary: see "learned".
    at: see "learned".
  """

  covers_registers: ClassVar[bool] = True

  def create(self, tokens: Tokens, rngs: Keys) -> nnx.Module:
    """Returns the table of positions. The arguments are those of `Positions.create`."""
    return positions.Learned(tokens.total, tokens.width, std=0.02, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class Sincos2d(Learned):
  """A fixed table for patches with sines and cosines of row and column (Chen et al. 2021).

  Args:
    rotary: see "learned".
    at: see "learned".
  """

  divisor: ClassVar[int] = 4

  def create(self, tokens: Tokens, rngs: Keys) -> nnx.Module:
    """Returns the table of positions. The arguments are those of `Positions.create`."""
    return positions.Fixed(
      positions.compute_sincos2d, (tokens.rows, tokens.columns, tokens.width), leading=tokens.leading
    )


@dataclasses.dataclass(frozen=True)
class Factored(Learned):
  """A learned vector for each row and each column of patches.

  Args:
    rotary: see "learned".
    at: see "learned".
  """

  divisor: ClassVar[int] = 2

  def create(self, tokens: Tokens, rngs: Keys) -> nnx.Module:
    """Returns the table of positions. The arguments are those of `Positions.create`."""
    return positions.Factored(tokens.rows, tokens.columns, tokens.width, leading=tokens.leading, std=0.02, rngs=rngs)


POSITION = schema.Variants(
  learned=Learned,
  learned_patches=LearnedPatches,
  learned_all=LearnedAll,
  sincos2d=Sincos2d,
  factored=Factored,
  relative=Relative,
  none=NoTable,
)

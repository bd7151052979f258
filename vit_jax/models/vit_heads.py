"""Choices of the argument `head` of `vit.vit`, by name: the pooling of tokens and the layers after it."""

import abc
import dataclasses
from typing import Annotated, ClassVar, Literal, NamedTuple

from flax import nnx
from jax.typing import DTypeLike

from vit_jax import schema
from vit_jax.models import layers
from vit_jax.models.parameters import Keys
from vit_jax.models.pooling import Map, SeqPool
from vit_jax.models.sizes import Width

Bias = Annotated[float, schema.Range(-1e4, 1e4)]
Pool = nnx.Module | Literal["cls", "gap"]


class PoolSizes(NamedTuple):
  """The sizes and the formulation of a pooling with parameters.

  Attributes:
    width: width of the tokens.
    heads: number of attention heads.
    hidden: hidden width of an MLP.
    eps: epsilon of a norm.
    gelu: formulation of GELU.
  """

  width: int
  heads: int
  hidden: int
  eps: float
  gelu: layers.Gelu


@dataclasses.dataclass(frozen=True)
class Head(abc.ABC):
  """A head of a model.

  Args:
    bias: initial bias of every class.
    std: standard deviation of the initial kernel.
  """

  _: dataclasses.KW_ONLY
  bias: Bias = 0.0
  std: schema.NonNegative = 0.0

  distilled: ClassVar[bool] = False  # whether a second head uses the distillation token

  @property
  @abc.abstractmethod
  def leading(self) -> int:
    """Returns the number of class and distillation tokens."""

  def create_pool(self, sizes: PoolSizes, dtype: DTypeLike, rngs: Keys) -> Pool:
    """Returns the pooling of tokens: a module that pools the patches, or the name of a pooling without parameters.

    Args:
      sizes: sizes of a pooling with parameters.
      dtype: type of the computation.
      rngs: source of keys.
    """
    return "cls"

  def create_pre_logits(self, width: int, dtype: DTypeLike, rngs: Keys) -> layers.Linear | None:
    """Returns the layer before the logits, or None.

    Args:
      width: width of the tokens.
      dtype: type of the computation.
      rngs: source of keys.
    """
    return None

  def create_logits(self, width: int, classes: int, dtype: DTypeLike, rngs: Keys) -> layers.Linear | None:
    """Returns the layer that computes logits, or None without classes.

    Args:
      width: width of the tokens.
      classes: number of classes.
      dtype: type of the computation.
      rngs: source of keys.
    """
    kernel = nnx.initializers.normal(self.std) if self.std else layers.zeros
    bias = nnx.initializers.constant(self.bias)
    made = layers.Linear((width,), (classes,), kernel_init=kernel, bias_init=bias, dtype=dtype, rngs=rngs)
    return made if classes else None


@dataclasses.dataclass(frozen=True)
class DistilledHead(Head):
  """Heads on a class token and on a distillation token (Touvron et al. 2021). The logits are the mean of both.

  Args:
    bias: initial bias of every class.
    std: standard deviation of the initial kernel, 0.02 in timm and DeiT. LAMB takes steps proportional to the norm of a
      kernel, so a kernel of zeros would need thousands of steps to grow.
  """

  distilled: ClassVar[bool] = True

  @property
  def leading(self) -> int:
    """Returns 2, for a class token and a distillation token."""
    return 2


@dataclasses.dataclass(frozen=True)
class LayeredHead(Head):
  """A head that may have a layer with tanh before the logits.

  Args:
    bias: initial bias of every class.
    std: standard deviation of the initial kernel.
    pre_logits: width of the layer before the logits, or None.
  """

  _: dataclasses.KW_ONLY
  pre_logits: Width | None = None

  def create_pre_logits(self, width: int, dtype: DTypeLike, rngs: Keys) -> layers.Linear | None:
    """Returns the layer before the logits, or None. The arguments are those of `Head.create_pre_logits`."""
    if not self.pre_logits:
      return None
    lecun = nnx.initializers.lecun_normal()
    return layers.Linear((width,), (self.pre_logits,), kernel_init=lecun, dtype=dtype, rngs=rngs)

  def create_logits(self, width: int, classes: int, dtype: DTypeLike, rngs: Keys) -> layers.Linear | None:
    """Returns the layer that computes logits. The arguments are those of `Head.create_logits`."""
    return super().create_logits(self.pre_logits or width, classes, dtype, rngs)


@dataclasses.dataclass(frozen=True)
class ClassTokenHead(LayeredHead):
  """A head on the class token.

  Args:
    bias: see "distilled".
    std: see "distilled".
    pre_logits: width of a layer with tanh before the logits. None omits the layer.
  """

  @property
  def leading(self) -> int:
    """Returns 1, for the class token."""
    return 1


@dataclasses.dataclass(frozen=True)
class PatchHead(LayeredHead):
  """A head on the patches. Subclasses define their pooling.

  Args:
    bias: initial bias of every class.
    std: standard deviation of the initial kernel.
    pre_logits: width of the layer before the logits, or None.
    class_token: whether there is a class token, which the head ignores.
  """

  _: dataclasses.KW_ONLY
  class_token: bool = False

  @property
  def leading(self) -> int:
    """Returns 1 with a class token, otherwise 0."""
    return int(self.class_token)


@dataclasses.dataclass(frozen=True)
class MeanHead(PatchHead):
  """A head on the mean of the patches.

  Args:
    bias: see "distilled".
    std: see "distilled".
    pre_logits: see "cls".
    class_token: whether there is a class token, which the head ignores, as in DINOv3.
  """

  def create_pool(self, sizes: PoolSizes, dtype: DTypeLike, rngs: Keys) -> Pool:
    """Returns "gap". The arguments are those of `Head.create_pool`."""
    return "gap"


@dataclasses.dataclass(frozen=True)
class AttentionHead(PatchHead):
  """A head on the patches, pooled by attention with a learned query (Zhai et al. 2022).

  Args:
    bias: see "distilled".
    std: see "distilled".
    pre_logits: see "cls".
    class_token: see "gap".
  """

  def create_pool(self, sizes: PoolSizes, dtype: DTypeLike, rngs: Keys) -> Pool:
    """Returns the attention. The arguments are those of `Head.create_pool`."""
    bias = nnx.initializers.normal(1e-6)
    width, heads, hidden, eps, gelu = sizes
    return Map(width, heads, hidden, eps=eps, gelu=gelu, bias_init=bias, dtype=dtype, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class SeqPoolHead(PatchHead):
  """A head on a weighted mean of the patches, with learned weights (Hassani et al. 2021).

  Args:
    bias: see "distilled".
    std: see "distilled".
    pre_logits: see "cls".
    class_token: see "gap".
  """

  def create_pool(self, sizes: PoolSizes, dtype: DTypeLike, rngs: Keys) -> Pool:
    """Returns the pooling. The arguments are those of `Head.create_pool`."""
    return SeqPool(sizes.width, kernel_init=layers.xavier, dtype=dtype, rngs=rngs)


HEAD = schema.Variants(
  cls=ClassTokenHead, gap=MeanHead, map=AttentionHead, seqpool=SeqPoolHead, distilled=DistilledHead
)

"""EfficientNet (Tan & Le 2019): inverted bottlenecks with squeeze-excitation, scaled in width, depth and image size.

Every size exists twice. `tf_efficientnet_*` uses the padding and the epsilon of the authors' TensorFlow code.
`efficientnet_*` uses those of PyTorch. The tensors of both have the same names and shapes.
"""

import functools
from collections.abc import Callable
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vit_jax import schema
from vit_jax.models import layers, parameters
from vit_jax.models.batchnorm import BatchNorm
from vit_jax.models.convolution import Conv, Padding
from vit_jax.models.intermediates import record
from vit_jax.models.output import Output, check_shape, classify
from vit_jax.models.parameters import Keys
from vit_jax.models.published.efficientnet import STAGES, STEM, TOP, count_blocks, round_channels
from vit_jax.models.sizes import Blocks, Dtype, sides
from vit_jax.schema import Fraction, Positive, Probability
from vit_jax.shapes import Array, Float, PRNGKey, Scalar, Tensor

ORDER = parameters.Order(before=r"stem(_norm)?/.*", blocks=r"stages/.*", after=r"top(_norm)?/.*", head=r"head/.*")
# A block is split like an MLP, with the expanded channels over "tensor".
SHARDING = (
  (r"stem/kernel", (None, None, None, "fsdp")),
  (r"(stem|top|stages/.*/project)_norm/(scale|bias|mean|var)", (None,)),
  (r"stages/.*/(expand|depthwise)_norm/(scale|bias|mean|var)", ("tensor",)),
  (r"stages/.*/(expand|excite)/kernel", ("fsdp", "tensor")),
  (r"stages/.*/depthwise/kernel", (None, None, None, "tensor")),
  (r"stages/.*/(squeeze|project)/kernel", ("tensor", "fsdp")),
  (r"stages/.*/squeeze/bias", (None,)),
  (r"stages/.*/excite/bias", ("tensor",)),
  (r"(top|head)/kernel", ("fsdp", None)),
  (r"head/bias", (None,)),
)

# Initialisers of the original code, with fan-out. A depthwise convolution has one output for each of its inputs.
_he = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
_he_depthwise = nnx.initializers.variance_scaling(2.0, "fan_in", "normal")
_uniform = nnx.initializers.variance_scaling(1 / 3, "fan_out", "uniform")  # within +-1 / sqrt(V)


class Block(nnx.Module):
  """An inverted bottleneck (Sandler et al. 2018) with squeeze-excitation.

  It consists of an expansion to F = expansion * C channels, a depthwise convolution, a gate and a projection. If the
  shape does not change, a shortcut is added. The gate is computed from the spatial means with a hidden layer of C / 4
  channels (Hu et al. 2018).

  Args:
    channels: number of input channels C.
    width: number of output channels.
    kernel: size of the depthwise kernel.
    stride: stride of the depthwise convolution.
    expansion: expansion factor. With 1 the expansion is omitted.
    padding: "symmetric" or "same", see `convolution.conv`.
    norm: function from a width to a norm.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    channels: int,
    width: int,
    kernel: int,
    stride: int,
    expansion: int,
    *,
    padding: str,
    norm: Callable[[int], BatchNorm],
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    expanded = expansion * channels
    linear = functools.partial(layers.Linear, kernel_init=_he, dtype=dtype, rngs=rngs)
    self.expand = linear((channels,), (expanded,), bias=False) if expansion > 1 else None
    self.expand_norm = norm(expanded) if expansion > 1 else None
    self.depthwise = Conv(
      expanded,
      expanded,
      kernel,
      stride,
      _border(kernel, padding),
      groups=expanded,
      bias=False,
      kernel_init=_he_depthwise,
      dtype=dtype,
      rngs=rngs,
    )
    self.depthwise_norm = norm(expanded)
    self.squeeze = linear((expanded,), (channels // 4,))
    self.excite = linear((channels // 4,), (expanded,))
    self.project = linear((expanded,), (width,), bias=False)
    self.project_norm = norm(width)
    self.shortcut = stride == 1 and channels == width

  def __call__(
    self, x: Float[Tensor, "B H W C"], key: PRNGKey | None = None, path_rate: Scalar = 0.0
  ) -> Float[Array, "B X Y D"]:
    x = jnp.asarray(x)
    shortcut = x
    if self.expand is not None and self.expand_norm is not None:
      x = jax.nn.silu(self.expand_norm(self.expand(x), key))
    x = jax.nn.silu(self.depthwise_norm(self.depthwise(x), key))
    gate = jax.nn.sigmoid(self.excite(jax.nn.silu(self.squeeze(x.mean((1, 2))))))
    x = self.project_norm(self.project(x * gate[:, None, None]), key)
    return shortcut + layers.drop_path(x, path_rate, key) if self.shortcut else x


def _border(kernel: int, padding: str) -> Padding:
  return "same" if padding == "same" else (kernel - 1) // 2


class EfficientNet(nnx.Module):
  """An EfficientNet, images -> logits in float32: stem, stages of blocks, top, spatial mean and head.

  Without a head the result is the features. `key` is the random key of all dropout. With a key, batch norms use the
  statistics of the batch and update their running averages. A key of None selects evaluation.

  Args:
    shape: height, width and channels of the images.
    width_factor: factor of all widths.
    stages: number of blocks of each stage.
    classes: number of classes. 0 omits the head.
    padding: "symmetric" or "same", see `convolution.conv`.
    norm: function from a width to a norm.
    dropout: dropout rate of the features.
    stochastic_depth: rate of stochastic depth. Block i of n, counted from 0, has the rate stochastic_depth * i / n.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    shape: tuple[int, int, int],
    *,
    width_factor: float,
    stages: tuple[int, ...],
    classes: int,
    padding: str,
    norm: Callable[[int], BatchNorm],
    dropout: float,
    stochastic_depth: float,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.shape, self.dropout, self.stochastic_depth = shape, dropout, stochastic_depth
    make = parameters.Common(dtype=dtype, rngs=rngs)

    channels = round_channels(STEM, width_factor)
    self.stem = Conv(shape[-1], channels, 3, 2, _border(3, padding), bias=False, kernel_init=_he, **make)
    self.stem_norm = norm(channels)
    self.stages = nnx.List()
    for stage, blocks in zip(STAGES, stages, strict=False):
      width = round_channels(stage.width, width_factor)
      self.stages.append(nnx.List())
      for j in range(blocks):
        stride = 1 if j else stage.stride
        made = Block(channels, width, stage.kernel, stride, stage.expansion, padding=padding, norm=norm, **make)
        self.stages[-1].append(made)
        channels = width
    top = round_channels(TOP, width_factor)
    self.top = layers.Linear((channels,), (top,), bias=False, kernel_init=_he, **make)
    self.top_norm = norm(top)
    self.head = layers.Linear((top,), (classes,), kernel_init=_uniform, **make) if classes else None

  def __call__(self, images: Float[Tensor, "B H W C"], key: PRNGKey | None = None) -> Float[Array, "B V"]:
    return self.outputs(images, key).logits

  def outputs(self, images: Float[Tensor, "B H W C"], key: PRNGKey | None = None) -> Output:
    """Computes the outputs for a batch of images.

    Args:
      images: images, (B, H, W, C).
      key: random key of dropout. None selects evaluation.

    Raises:
      ValueError: if the images have another shape than the model.
    """
    check_shape(images, self.shape)
    x = record("stem", jax.nn.silu(self.stem_norm(self.stem(images), key)))

    # The rate of stochastic depth grows linearly with the block's number. It would reach its maximum after the last
    # block.
    names = [(i, j) for i, stage in enumerate(self.stages) for j in range(len(stage))]
    for number, (i, j) in enumerate(names):
      rate = self.stochastic_depth * number / len(names)
      x = record(f"stages/{i}/{j}", self.stages[i][j](x, layers.fold_key(key, 1 + number), rate))

    tokens = record("encoded", jax.nn.silu(self.top_norm(self.top(x), key)))
    features = record("features", tokens.mean((1, 2)))
    features = record("pre_logits", layers.dropout(features, self.dropout, layers.fold_key(key, 0)))
    return classify(tokens, features, self.head)


Factor = Annotated[float, schema.Range(0.05, 16)]


def efficientnet(
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: Keys,
  *,
  width_factor: Factor = 1.0,
  depth_factor: Factor = 1.0,
  stages: tuple[Blocks, ...] | None = None,
  padding: Literal["symmetric", "same"] = "symmetric",
  eps: Positive = 1e-5,
  momentum: Fraction = 0.1,
  dropout: Probability = 0.2,
  stochastic_depth: Probability = 0.2,
  dtype: Dtype = "float32",
) -> EfficientNet:
  """Creates an EfficientNet: [B, H, W, C] -> [B, V].

  Args:
    image_size: side of square images in pixels, or (height, width).
    channels: number of image channels.
    classes: number of classes. 0 omits the head.
    rngs: source of keys for initial values.
    width_factor: factor of all widths.
    depth_factor: factor of the number of blocks of each stage.
    stages: number of blocks of each of up to seven stages, instead of those from `depth_factor`.
    padding: "symmetric", or "same" as in TensorFlow.
    eps: epsilon of the batch norms.
    momentum: weight of the new statistics in the running averages of batch norms, as in PyTorch.
    dropout: dropout rate of the features.
    stochastic_depth: rate of stochastic depth. Block i of n, counted from 0, has the rate stochastic_depth * i / n.
    dtype: type of the computation. Parameters are float32.

  Raises:
    ConfigError: if the number of stages is invalid.
  """
  stages = count_blocks(depth_factor) if stages is None else stages
  if not 0 < len(stages) <= len(STAGES):
    raise schema.ConfigError(
      f"model: stages {list(stages)} specify {len(stages)} stages. Allowed: 1 to {len(STAGES)} numbers of blocks, "
      "one per stage"
    )
  compute = jnp.dtype(dtype)
  return EfficientNet(
    (*sides(image_size), channels),
    width_factor=width_factor,
    stages=stages,
    classes=classes,
    padding=padding,
    norm=lambda width: BatchNorm(width, eps=eps, momentum=momentum, dtype=compute),
    dropout=dropout,
    stochastic_depth=stochastic_depth,
    dtype=compute,
    rngs=rngs,
  )

"""BiT: ResNet version 2 with group norm and standardised weights (Kolesnikov et al. 2020; units: He et al. 2016b).

As published, BiT has no dropout and no stochastic depth. Padding is symmetric, unlike in version 1 of the hybrids.
"""

import functools
from typing import Annotated

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from vit_jax import schema
from vit_jax.models import layers, parameters, resnet
from vit_jax.models.convolution import max_pool
from vit_jax.models.intermediates import record
from vit_jax.models.output import Output, check_shape, classify
from vit_jax.models.parameters import Keys
from vit_jax.models.resnet import GroupNorm, StandardisedConv
from vit_jax.models.sizes import Blocks, Dtype, sides
from vit_jax.shapes import Array, Float, PRNGKey, Tensor

ORDER = parameters.Order(before=r"root/.*", blocks=r"stages/.*", after=r"norm/.*", head=r"head/.*")
SHARDING = (
  *parameters.SHARDING,
  (r"(root|stages/.*)/kernel", (None, None, None, "fsdp")),
  (r"stages/.*/norm3/(scale|bias)", (None,)),
)

_EPS = 1e-5
_DIVISOR: resnet.Divisor = "sqrt(var + 1e-10)"


class Unit(nnx.Module):
  """A bottleneck unit, in which norm and ReLU precede each convolution.

  Args:
    channels: number of input channels.
    width: number of inner channels. The unit returns 4 * width channels.
    stride: stride of the 3x3 convolution.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(self, channels: int, width: int, stride: int, *, dtype: DTypeLike, rngs: Keys) -> None:
    conv = functools.partial(StandardisedConv, divisor=_DIVISOR, dtype=dtype, rngs=rngs)
    self.norm1 = GroupNorm(channels, eps=_EPS, dtype=dtype)
    self.conv1 = conv(channels, width, 1, 1, 0)
    self.norm2 = GroupNorm(width, eps=_EPS, dtype=dtype)
    self.conv2 = conv(width, width, 3, stride, 1)
    self.norm3 = GroupNorm(width, eps=_EPS, dtype=dtype)
    self.conv3 = conv(width, 4 * width, 1, 1, 0)
    changes = stride > 1 or channels != 4 * width
    self.projection = conv(channels, 4 * width, 1, stride, 0) if changes else None

  def __call__(self, x: Float[Tensor, "B H W C"]) -> Float[Array, "B X Y D"]:
    x = jnp.asarray(x)
    active = jax.nn.relu(self.norm1(x))
    shortcut = x if self.projection is None else self.projection(active)
    x = self.conv1(active)
    x = self.conv2(jax.nn.relu(self.norm2(x)))
    return shortcut + self.conv3(jax.nn.relu(self.norm3(x)))


class ResNet(nnx.Module):
  """A BiT model, images -> logits in float32: root, stages, norm, ReLU, spatial mean and head.

  Without a head the result is the features. The model is deterministic. It accepts `key` for compatibility with other
  models, but does not use it.

  Args:
    shape: height, width and channels of the images.
    width: number of channels of the root.
    stages: number of units of each stage.
    classes: number of classes. 0 omits the head.
    dtype: type of the computation.
    rngs: source of keys.
  """

  def __init__(
    self,
    shape: tuple[int, int, int],
    width: int,
    stages: tuple[int, ...],
    classes: int,
    *,
    dtype: DTypeLike,
    rngs: Keys,
  ) -> None:
    self.shape = shape
    self.root = StandardisedConv(shape[-1], width, 7, 2, 3, divisor=_DIVISOR, dtype=dtype, rngs=rngs)
    self.stages = resnet.build(lambda *sizes: Unit(*sizes, dtype=dtype, rngs=rngs), width, stages)
    channels = resnet.compute_out_channels(width, stages)
    self.norm = GroupNorm(channels, eps=_EPS, dtype=dtype)
    head = functools.partial(layers.Linear, kernel_init=layers.zeros, dtype=dtype, rngs=rngs)
    self.head = head((channels,), (classes,)) if classes else None

  def __call__(self, images: Float[Tensor, "B H W C"], key: PRNGKey | None = None) -> Float[Array, "B V"]:
    return self.outputs(images, key).logits

  def outputs(self, images: Float[Tensor, "B H W C"], key: PRNGKey | None = None) -> Output:
    """Computes the outputs for a batch of images.

    Args:
      images: images, (B, H, W, C).
      key: not used.

    Raises:
      ValueError: if the images have another shape than the model.
    """
    check_shape(images, self.shape)
    # Without norm and ReLU, the pool sees negative numbers. The first BiT code and timm pad them with zeros. big_vision
    # and this code pad with -infinity. The logits differ by 1e-3.
    x = record("root", max_pool(self.root(images)))
    x = resnet.run(self.stages, x, "stages")
    tokens = jax.nn.relu(self.norm(x))
    features = record("pre_logits", record("features", tokens.mean((1, 2))))
    return classify(tokens, features, self.head)


def bit(
  row: tuple[int, tuple[int, ...]],
  image_size: int | tuple[int, int],
  channels: int,
  classes: int,
  rngs: Keys,
  *,
  stages: tuple[Blocks, ...] | None = None,
  width_factor: Annotated[float, schema.Range(0.5, 64)] | None = None,
  dtype: Dtype = "float32",
) -> ResNet:
  """Creates a BiT model: [B, H, W, C] -> [B, V].

  Args:
    row: factor of all widths, and number of units of each stage.
    image_size: side of square images in pixels, or (height, width).
    channels: number of image channels.
    classes: number of classes. 0 omits the head.
    rngs: source of keys for initial values.
    stages: number of units of each stage. None keeps the published numbers.
    width_factor: factor of all widths. None keeps the published factor.
    dtype: type of the computation. Parameters are float32.

  Raises:
    ConfigError: if the channels cannot be divided into 32 equal groups.
  """
  factor = row[0] if width_factor is None else width_factor
  width = round(resnet.WIDTH * factor)
  if width != resnet.WIDTH * factor or width % resnet.GROUPS:
    step = resnet.GROUPS / resnet.WIDTH
    raise schema.ConfigError(
      f"model: width_factor {factor} gives {resnet.WIDTH * factor:g} channels, which are not {resnet.GROUPS} equal "
      f"groups. Allowed: multiples of {step}, such as {factor // step * step:g}"
    )
  stages = row[1] if stages is None else stages
  return ResNet((*sides(image_size), channels), width, stages, classes, dtype=jnp.dtype(dtype), rngs=rngs)

"""Properties of parameters by path: their sharding, and their position between the image and the logits."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

import jax
import numpy as np
from flax import nnx
from jax.typing import DTypeLike

from vit_jax import rng
from vit_jax.shapes import Float, Shaped, Tensor

Keys = rng.Keys | nnx.Rngs  # sources of keys for initial values
Parameter = nnx.Param[jax.Array]
State = nnx.State[Any, Any]
ShardingRules = tuple[tuple[str, tuple[str | None, ...]], ...]


class Common(TypedDict):
  """Arguments of all layers of a model.

  Attributes:
    dtype: type of the computation.
    rngs: source of keys for initial values.
  """

  dtype: DTypeLike
  rngs: Keys


class Order(NamedTuple):
  """Patterns for whole parameter paths. Each parameter of a model matches one of the first four patterns.

  Attributes:
    before: parameters before the blocks, which convert images to tokens.
    blocks: parameters of the blocks. If all blocks are alike, group 1 of the pattern is the block's number, which is
      empty in a scanned stack.
    after: parameters after the blocks: the last norm and pooling.
    head: parameters with shapes that depend on the number of classes.
    positioned: names of the prefix tokens that have a row in the table of positions.
  """

  before: str
  blocks: str
  after: str
  head: str
  positioned: tuple[str, ...] = ()


# The order of all models that use `transformer.Transformer`.
ORDER = Order(
  before=r"(stem|embedding|position|cls|distillation|registers)(/.*)?",
  blocks=r"blocks/(?:(\d+)/)?.*",
  after=r"(norm|pool|pool_norm|pre_logits)(/.*)?",
  head=r"(head|head_distillation)/.*",
  positioned=("cls", "distillation"),
)


def count_layers_above(
  order: Order, shapes: Mapping[str, Shaped[Tensor, "..."] | jax.ShapeDtypeStruct]
) -> dict[str, int | Float[np.ndarray, "L ..."] | None] | None:
  """Returns the number of layers between each parameter and the logits, by path.

  In a model with L blocks, the last block has the number 1 and the first block the number L. Parameters before the
  blocks have the number L + 1, and parameters after them 0. A scanned stack has an array [L, 1, ...] with one number
  per block.

  Args:
    order: patterns of the model.
    shapes: {path: shape} of all parameters.

  Returns:
    {path: number}, with None for paths that match no pattern. None if the blocks of the model are not all alike.
  """
  pattern = re.compile(order.blocks)
  blocks = {path: match[1] for path in shapes if pattern.groups and (match := pattern.fullmatch(path))}
  if not blocks:
    return None
  depth = max(shapes[path].shape[0] if number is None else int(number) + 1 for path, number in blocks.items())

  def above(path: str) -> int | Float[np.ndarray, "L ..."] | None:
    if path in blocks:
      if blocks[path] is not None:
        return depth - int(blocks[path])
      below = np.arange(depth, dtype=np.float32).reshape(-1, *[1] * (len(shapes[path].shape) - 1))
      return depth - below
    if re.fullmatch(order.before, path):
      return depth + 1
    return 0 if re.fullmatch(order.after, path) or re.fullmatch(order.head, path) else None

  return {path: above(path) for path in shapes}


# Rows shared by the sharding tables of all families: whole parameter path -> mesh axis of each dimension.
SHARDING = (
  (r".*attention/(query|key|value)/kernel", ("fsdp", "tensor", None)),
  (r".*attention/(query|key|value)/bias", ("tensor", None)),
  (r".*attention/out/kernel", ("tensor", None, "fsdp")),
  (r".*attention/offsets", (None, None)),
  (r".*attention/difference/(query1|key1|query2|key2)", (None,)),
  (r".*attention/frequencies", (None, "tensor", None)),
  (r".*mlp/(gate|up)/kernel", ("fsdp", "tensor")),
  (r".*mlp/(gate|up)/bias", ("tensor",)),
  (r".*mlp/down/kernel", ("tensor", "fsdp")),
  (r".*(attention/out|mlp/down)/bias", (None,)),
  (r".*norm[12]?/(scale|bias)", (None,)),  # including the norms of queries and keys
  (r".*layer_scale[12]", (None,)),
  (r"cls|distillation|pool/probe", (None,)),
  (r"registers", (None, None)),
  (r"(.*/)?position/(table|rows|columns)", (None, None)),
  (r"pool/score/kernel", (None, None)),
  (r"(pool/score|pre_logits|head|head_distillation)/bias", (None,)),
  (r"(pre_logits|head|head_distillation)/kernel", ("fsdp", None)),
)

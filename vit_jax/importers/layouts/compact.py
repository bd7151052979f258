"""Layout of compact transformers in the state dicts of the official code."""

import math
import re

import numpy as np

from vit_jax.importers.formats.lazy_tensors import Tensor
from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, TensorRow, Tensors, torch_conv, torch_linear, torch_norm
from vit_jax.importers.layouts import published_sizes
from vit_jax.models import Description, positions
from vit_jax.models.compact import compute_side
from vit_jax.models.published.compact import SIZES, VARIANTS
from vit_jax.schema import Choice, ConfigError

_BLOCK = "classifier.blocks.{l}"
_TABLE = "classifier.positional_emb"

ROWS = (
  *torch_conv("tokenizer.conv_layers.0.0", "embedding"),
  TensorRow("tokenizer.conv_layers.{i}.0.weight", "embedding/convolutions/{i}/kernel", "o i p q -> p q i o"),
  TensorRow("classifier.class_emb", "cls", "1 1 d -> d"),
  TensorRow(_TABLE, "position/table", "1 n d -> n d"),
  *torch_norm(f"{_BLOCK}.pre_norm", "blocks/{l}/norm1"),
  TensorRow(
    f"{_BLOCK}.self_attn.qkv.weight",
    tuple(f"blocks/{{l}}/attention/{part}/kernel" for part in ("query", "key", "value")),
    "(t h k) d -> t d h k",
  ),
  TensorRow(f"{_BLOCK}.self_attn.proj.weight", "blocks/{l}/attention/out/kernel", "d (h k) -> h k d"),
  TensorRow(f"{_BLOCK}.self_attn.proj.bias", "blocks/{l}/attention/out/bias", "d -> d"),
  *torch_norm(f"{_BLOCK}.norm1", "blocks/{l}/norm2"),
  *torch_linear(f"{_BLOCK}.linear1", "blocks/{l}/mlp/up"),
  *torch_linear(f"{_BLOCK}.linear2", "blocks/{l}/mlp/down"),
  *torch_norm("classifier.norm", "norm"),
  *torch_linear("classifier.attention_pool", "pool/score"),
  *torch_linear("classifier.fc", "head"),
)


def _describe(tensors: Tensors, hints: Hints) -> Description:
  convolutions = [name for name in tensors if re.fullmatch(r"tokenizer\.conv_layers\.\d+\.0\.weight", name)]
  first = tensors["tokenizer.conv_layers.0.0.weight"].shape
  patches = "tokenizer.conv_layers.0.0.bias" in tensors
  width = tensors["classifier.norm.bias"].shape[0]
  depth = 1 + max(int(m[1]) for name in tensors if (m := re.match(r"classifier\.blocks\.(\d+)\.", name)))
  hidden = tensors["classifier.blocks.0.linear1.bias"].shape[0]
  has_cls = "classifier.class_emb" in tensors
  classes = tensors["classifier.fc.bias"].shape[0] if "classifier.fc.bias" in tensors else 0
  kernel, count = first[2], 0 if patches else len(convolutions)

  # Every variant has heads of width 64.
  heads = hints.get("heads", max(width // 64, 1)) if hints.get("width", width) == width else max(width // 64, 1)
  sizes = (width, depth, heads, hidden)
  size, overrides = published_sizes.find_nearest_size(SIZES, sizes, ("width", "depth", "heads", "hidden"))
  position, image_size = _find_position(tensors.get(_TABLE), kernel, count, has_cls, hints)

  # Names are compared by tokenizer and pooling first, then by size, image size and classes.
  def distance(name: str) -> list[bool]:
    row, table = VARIANTS[name]
    fits = (row.kernel == kernel, row.convolutions == count, (row.pool == "cls") == has_cls, row.size == size)
    return [not fit for fit in fits] + [table != position, row.image_size != image_size, row.classes != classes]

  name = min(VARIANTS, key=distance)
  row, table = VARIANTS[name]
  if (row.kernel, row.convolutions, row.pool == "cls") != (kernel, count, has_cls):
    overrides |= {"kernel": kernel, "convolutions": count, "pool": "cls" if has_cls else "seqpool"}
  if row.size != size:
    overrides |= dict(zip(("width", "depth", "heads", "hidden"), sizes, strict=True))
  if table != position:
    overrides["position"] = position
  image_size = image_size or row.image_size
  return Description(Choice(name, overrides), image_size, classes, first[1])


def _find_position(
  table: np.ndarray | Tensor | None, kernel: int, count: int, has_cls: bool, hints: Hints
) -> tuple[str, int | tuple[int, int] | None]:
  """Returns (position, image size). A stored table counts as learned unless its values are those of the sine table."""
  hint = hints.get("image_size")
  if table is None:
    return "none", hint
  _, tokens, width = table.shape
  if np.allclose(np.asarray(table)[0], positions.compute_sine(tokens, width), atol=1e-3):
    # The table is computed again, because at least one published file contains a table of another length.
    return "sine", hint
  tokens -= has_cls
  if hint and _count_tokens(hint, kernel, count) == tokens:
    return "learned", hint
  sizes = [size for size in range(kernel, 1025) if _count_tokens(size, kernel, count) == tokens]
  if not sizes:
    raise ConfigError(
      f"the position table has {tokens} patches, which no square image has. Give the size: --image-size=HEIGHT,WIDTH"
    )
  # Convolutions round, so several sizes fit. A published size is preferred, then the largest, which is a round number.
  return "learned", next((size for size in (32, 224, 384) if size in sizes), sizes[-1])


def _count_tokens(image_size: int | tuple[int, int], kernel: int, count: int) -> int | None:
  sides = (image_size, image_size) if isinstance(image_size, int) else image_size
  if count:
    return math.prod(compute_side(n, kernel, count) for n in sides)
  return math.prod(n // kernel for n in sides) if not any(n % kernel for n in sides) else None


LAYOUTS = (
  Layout(
    name="compact",
    family="compact",
    rows=ROWS,
    recognises=lambda tensors: "tokenizer.conv_layers.0.0.weight" in tensors and "classifier.norm.bias" in tensors,
    describe=_describe,
    computes={"norm_order": "official"},
  ),
)

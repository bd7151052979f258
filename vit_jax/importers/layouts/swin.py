"""Layouts of Swin in the state dicts of timm and of Microsoft, which differ in two names."""

import re
from typing import Any

from vit_jax.importers import layout
from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, TensorRow, Tensors
from vit_jax.importers.layouts import published_sizes
from vit_jax.models import Description
from vit_jax.models.published import swin
from vit_jax.schema import Choice

_THEIRS, _OURS = "layers.{s}.blocks.{b}", "stages/{s}/blocks/{b}"
_PACKED = tuple(f"{_OURS}/attention/{part}" for part in ("query", "key", "value"))

ROWS = (
  *layout.torch_conv("patch_embed.proj", "embedding"),
  *layout.torch_norm("patch_embed.norm", "embedding_norm"),
  *layout.torch_norm("layers.{s}.downsample.norm", "stages/{s}/downsample/norm"),
  TensorRow("layers.{s}.downsample.reduction.weight", "stages/{s}/downsample/reduction/kernel", "o i -> i o"),
  *layout.torch_norm(f"{_THEIRS}.norm1", f"{_OURS}/norm1"),
  TensorRow(f"{_THEIRS}.attn.qkv.weight", tuple(f"{part}/kernel" for part in _PACKED), "(t h k) d -> t d h k"),
  TensorRow(f"{_THEIRS}.attn.qkv.bias", tuple(f"{part}/bias" for part in _PACKED), "(t h k) -> t h k"),
  TensorRow(f"{_THEIRS}.attn.relative_position_bias_table", f"{_OURS}/attention/table", "o h -> o h"),
  TensorRow(f"{_THEIRS}.attn.proj.weight", f"{_OURS}/attention/out/kernel", "d (h k) -> h k d"),
  TensorRow(f"{_THEIRS}.attn.proj.bias", f"{_OURS}/attention/out/bias", "d -> d"),
  *layout.torch_norm(f"{_THEIRS}.norm2", f"{_OURS}/norm2"),
  *layout.torch_linear(f"{_THEIRS}.mlp.fc1", f"{_OURS}/mlp/up"),
  *layout.torch_linear(f"{_THEIRS}.mlp.fc2", f"{_OURS}/mlp/down"),
  *layout.torch_norm("norm", "norm"),
  *layout.torch_linear("head.fc", "head"),
)


def convert_names(tensors: Tensors, hints: Hints) -> Tensors:
  """Converts Microsoft's names to timm's names.

  In timm the merging layer belongs to the following stage, and the head has the name "head.fc".

  Args:
    tensors: tensors by name.
    hints: unused.
  """
  names = {name: re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", name) for name in tensors}
  if any(name.startswith("layers.0.downsample.") for name in tensors):
    later = re.compile(r"^layers\.(\d+)\.downsample\.")
    names = {
      name: later.sub(lambda match: f"layers.{int(match[1]) + 1}.downsample.", ours) for name, ours in names.items()
    }
  return {names[name]: tensor for name, tensor in tensors.items()}


def describe_swin(tensors: Tensors, hints: Hints) -> Description:
  """Returns the model, with widths, depths, heads and window from the shapes of the tensors.

  The image size comes from the hints. Otherwise it is the size for which the map of the last stage is a single window.

  Args:
    tensors: tensors by the names of timm.
    hints: facts that the tensors do not determine.
  """
  width, channels, _, _ = tensors["patch_embed.proj.weight"].shape
  tables = [re.fullmatch(r"layers\.(\d+)\.blocks\.\d+\.attn\.relative_position_bias_table", name) for name in tensors]
  stages = [int(match[1]) for match in tables if match]
  depths = tuple(stages.count(i) for i in range(max(stages) + 1))
  heads = tuple(_read_table(tensors, i).shape[1] for i in range(len(depths)))
  window = (int(_read_table(tensors, 0).shape[0] ** 0.5) + 1) // 2
  image_size = hints.get("image_size") or hints.get("input_size") or swin.PATCH * window * 2 ** (len(depths) - 1)

  # Among the names with the nearest size, a name with this window is preferred.
  size, arguments = published_sizes.find_nearest_size(swin.SIZES, (width, depths, heads), ("width", "depths", "heads"))
  windows = {name: row[1] for name, row in swin.VARIANTS.items() if row[0] == size}
  name = min(windows, key=lambda name: windows[name] != window)
  if windows[name] != window:
    arguments["window"] = window
  classes = tensors["head.fc.bias"].shape[0] if "head.fc.bias" in tensors else 0
  return Description(Choice(name, arguments), image_size, classes, channels)


def _read_table(tensors: Tensors, stage: int) -> Any:
  return tensors[f"layers.{stage}.blocks.0.attn.relative_position_bias_table"]


LAYOUTS = (
  Layout(
    name="timm",
    family="swin",
    rows=ROWS,
    recognises=lambda tensors: "layers.0.blocks.0.attn.relative_position_bias_table" in tensors,
    describe=describe_swin,
    canonical=convert_names,
    ignored=r".*\.(relative_position_index|attn_mask)",
  ),
)

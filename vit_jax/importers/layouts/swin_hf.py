"""Layout of Swin Transformers in Hugging Face's state dicts, in files and in memory."""

import re
from collections.abc import Callable
from typing import Any

from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, TensorRow, Tensors, compute_shapes, torch_conv, torch_linear, torch_norm
from vit_jax.importers.layouts import swin
from vit_jax.importers.layouts.vit import ATTENTION, replace_words
from vit_jax.importers.layouts.vit_torch import output_rows
from vit_jax.models import Description
from vit_jax.models.published.swin import PATCH
from vit_jax.models.swin import EPS

_BLOCK, _OURS = "swin.encoder.layers.{s}.blocks.{b}", "stages/{s}/blocks/{b}"
_PATCHES = "swin.embeddings.patch_embeddings.projection"
_TABLE = re.compile(r"(?:swin\.)?encoder\.layers\.(\d+)\.blocks\.(\d+)\.attention\.self\.relative_position_bias_table")
# Transformers 5 uses different names in memory and in its files.
_MEMORY = {
  **{f"attention.{part[0]}_proj": f"attention.self.{part}" for part in ATTENTION},
  "attention.o_proj": "attention.output.dense",
  "attention.relative_position_bias": "attention.self",
  "mlp.fc1": "intermediate.dense",
  "mlp.fc2": "output.dense",
}

ROWS = (
  *torch_conv(_PATCHES, "embedding"),
  *torch_norm("swin.embeddings.norm", "embedding_norm"),
  *torch_norm("swin.encoder.layers.{s}.downsample.norm", "stages/{s}/downsample/norm"),
  TensorRow(
    "swin.encoder.layers.{s}.downsample.reduction.weight", "stages/{s}/downsample/reduction/kernel", "o i -> i o"
  ),
  *torch_norm(f"{_BLOCK}.layernorm_before", f"{_OURS}/norm1"),
  *(
    row
    for part in ATTENTION
    for row in (
      TensorRow(f"{_BLOCK}.attention.self.{part}.weight", f"{_OURS}/attention/{part}/kernel", "(h k) d -> d h k"),
      TensorRow(f"{_BLOCK}.attention.self.{part}.bias", f"{_OURS}/attention/{part}/bias", "(h k) -> h k"),
    )
  ),
  TensorRow(f"{_BLOCK}.attention.self.relative_position_bias_table", f"{_OURS}/attention/table", "o h -> o h"),
  *output_rows(f"{_BLOCK}.attention.output.dense", f"{_OURS}/attention/out"),
  *torch_norm(f"{_BLOCK}.layernorm_after", f"{_OURS}/norm2"),
  *torch_linear(f"{_BLOCK}.intermediate.dense", f"{_OURS}/mlp/up"),
  *torch_linear(f"{_BLOCK}.output.dense", f"{_OURS}/mlp/down"),
  *torch_norm("swin.layernorm", "norm"),
  *torch_linear("classifier", "head"),
)


def _recognises(tensors: Tensors) -> bool:
  return any(map(_TABLE.fullmatch, replace_words(tensors, _MEMORY)))


def _convert_names(tensors: Tensors, hints: Hints) -> Tensors:
  """Returns the tensors with the names of files, for a model with a head.

  The merging layer belongs to the following stage.
  """
  bare = any(name.startswith("embeddings.") for name in tensors)  # the model was saved without a head
  named = {f"swin.{name}" if bare else name: tensor for name, tensor in tensors.items()}
  return _move_merging(replace_words(named, _MEMORY), lambda stage: stage + 1)


def _move_merging(tensors: Tensors, stage_of: Callable[[int], int]) -> dict[str, Any]:
  """Returns the tensors with the merging layer of each stage moved to another stage."""
  merging = re.compile(r"(?<=^swin\.encoder\.layers\.)(\d+)(?=\.downsample\.)")
  return {merging.sub(lambda match: str(stage_of(int(match[1]))), name): tensor for name, tensor in tensors.items()}


def _describe(tensors: Tensors, hints: Hints) -> Description:
  """Returns the model. The tensors are renamed to those of timm for `swin.describe_swin`."""
  seen = {"patch_embed.proj.weight": tensors[f"{_PATCHES}.weight"]}
  for match in filter(None, map(_TABLE.fullmatch, tensors)):
    seen[f"layers.{match[1]}.blocks.{match[2]}.attn.relative_position_bias_table"] = tensors[match[0]]
  if "classifier.bias" in tensors:
    seen["head.fc.bias"] = tensors["classifier.bias"]
  return swin.describe_swin(seen, hints)


def _create_config(description: Description) -> dict[str, Any]:
  """Returns the config.json that Transformers needs to build the model."""
  ours = compute_shapes(description)
  stages = {int(path.split("/")[1]) for path in ours if path.startswith("stages/")}
  blocks = [{path.split("/")[3] for path in ours if path.startswith(f"stages/{s}/blocks/")} for s in sorted(stages)]
  return {
    "architectures": ["SwinForImageClassification" if description.classes else "SwinModel"],
    "model_type": "swin",
    "embed_dim": ours["embedding/kernel"][-1],
    "depths": [len(stage) for stage in blocks],
    "num_heads": [ours[f"stages/{s}/blocks/0/attention/query/kernel"][1] for s in sorted(stages)],
    "window_size": (int(ours["stages/0/blocks/0/attention/table"][0] ** 0.5) + 1) // 2,
    "mlp_ratio": 4.0,
    "qkv_bias": True,
    "hidden_act": "gelu",
    "layer_norm_eps": EPS,
    "use_absolute_embeddings": False,
    "image_size": description.image_size,
    "patch_size": PATCH,
    "num_channels": description.channels,
    "id2label": {str(i): f"LABEL_{i}" for i in range(description.classes)},
    "label2id": {f"LABEL_{i}": i for i in range(description.classes)},
  }


LAYOUTS = (
  Layout(
    name="hf",
    family="swin",
    rows=ROWS,
    recognises=_recognises,
    describe=_describe,
    canonical=_convert_names,
    finish=lambda arrays, description: _move_merging(arrays, lambda stage: stage - 1),
    create_config=_create_config,
    ignored=r".*\.relative_position_index",
  ),
)

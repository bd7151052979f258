"""Layouts of DINOv2, with and without registers, and of DINOv3 in Hugging Face's state dicts.

The features are the normalised class token. In Transformers, a model with classes is a different model: its head reads
the class token and the mean of the patches. `vit_siglip` contains the layout of SigLIP.
"""

import re
from collections.abc import Callable

import numpy as np

from vit_jax.importers.formats.lazy_tensors import join_tensors
from vit_jax.importers.hints import Hints
from vit_jax.importers.hub.transformers_config import check_model, create_config, find_model_type
from vit_jax.importers.layout import Layout, Tensor, TensorRow, Tensors, torch_conv, torch_linear, torch_norm
from vit_jax.importers.layouts.vit import (
  ATTENTION,
  count_layers,
  describe_vit,
  find_description,
  find_heads,
  fold_token,
  replace_words,
)
from vit_jax.importers.layouts.vit_torch import PLAIN, output_rows
from vit_jax.models import Description
from vit_jax.models.published import modern
from vit_jax.schema import Choice, ConfigError

# Rows.


def separate_head_rows(theirs: str, ours: str, names: tuple[str, str, str]) -> tuple[TensorRow, ...]:
  """Returns the rows for query, key and value in separate matrices, with rows by head.

  The first two arguments are those of `layout.torch_linear`.

  Args:
    names: names of the three layers in the file.
  """
  return tuple(
    row
    for name, part in zip(names, ATTENTION, strict=True)
    for row in (
      TensorRow(f"{theirs}.{name}.weight", f"{ours}/{part}/kernel", "(h k) d -> d h k"),
      TensorRow(f"{theirs}.{name}.bias", f"{ours}/{part}/bias", "(h k) -> h k"),
    )
  )


def _block_rows(theirs: str) -> tuple[TensorRow, ...]:
  """Returns the rows that DINOv2 and DINOv3 have in common."""
  return (
    *torch_norm(f"{theirs}.norm1", "blocks/{l}/norm1"),
    *torch_norm(f"{theirs}.norm2", "blocks/{l}/norm2"),
    *(TensorRow(f"{theirs}.layer_scale{i}.lambda1", f"blocks/{{l}}/layer_scale{i}", "d -> d") for i in (1, 2)),
  )


_TOKENS = (
  TensorRow("embeddings.cls_token", "cls", "1 1 d -> d"),
  TensorRow("embeddings.register_tokens", "registers", "1 r d -> r d"),
)
_TABLE = "embeddings.position_embeddings"
_LAYER = "encoder.layer.{l}"
_GATED = ("blocks/{l}/mlp/gate", "blocks/{l}/mlp/up")
_GATED_MLP = (  # MLP of the giant models, with the gate in front
  TensorRow(f"{_LAYER}.mlp.weights_in.weight", tuple(f"{path}/kernel" for path in _GATED), "(t f) d -> t d f"),
  TensorRow(f"{_LAYER}.mlp.weights_in.bias", tuple(f"{path}/bias" for path in _GATED), "(t f) -> t f"),
  *(
    row._replace(requires="blocks/{l}/mlp/gate/kernel")
    for row in torch_linear(f"{_LAYER}.mlp.weights_out", "blocks/{l}/mlp/down")
  ),
)
DINOV2_ROWS = (
  *_TOKENS,
  TensorRow(_TABLE, "position/table", "1 n d -> n d"),
  *torch_conv("embeddings.patch_embeddings.projection", "embedding"),
  *_block_rows(_LAYER),
  *separate_head_rows(f"{_LAYER}.attention.attention", "blocks/{l}/attention", ATTENTION),
  *output_rows(f"{_LAYER}.attention.output.dense", "blocks/{l}/attention/out"),
  *_GATED_MLP,
  *torch_linear(f"{_LAYER}.mlp.fc1", "blocks/{l}/mlp/up"),
  *torch_linear(f"{_LAYER}.mlp.fc2", "blocks/{l}/mlp/down"),
  *torch_norm("layernorm", "norm"),
)

DINOV3_ROWS = (
  *_TOKENS,
  *torch_conv("embeddings.patch_embeddings", "embedding"),
  *_block_rows("layer.{l}"),
  *separate_head_rows("layer.{l}.attention", "blocks/{l}/attention", ("q_proj", "k_proj", "v_proj")),
  *output_rows("layer.{l}.attention.o_proj", "blocks/{l}/attention/out"),
  *(
    row
    for part in ("gate", "up", "down")
    for row in torch_linear(f"layer.{{l}}.mlp.{part}_proj", f"blocks/{{l}}/mlp/{part}")
  ),
  *torch_norm("norm", "norm"),
)

# Other names of the same tensors.

# Transformers 5 uses different names in memory and in its files. A state dict from torch.save has the names in memory.
MEMORY = {
  "attention.q_proj": "attention.attention.query",
  "attention.k_proj": "attention.attention.key",
  "attention.v_proj": "attention.attention.value",
  "attention.o_proj": "attention.output.dense",
}

_BARE = ("dinov2.", "dinov2_with_registers.")  # prefixes of a model with a head
_SCALE = "encoder.layer.0.layer_scale1.lambda1"


def _remove_prefix(tensors: Tensors) -> Tensors:
  """Returns the tensors with the names of a model without a head."""
  for prefix in _BARE:
    tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
  return tensors


def _convert_dinov2_names(tensors: Tensors, hints: Hints) -> Tensors:
  if any(name.startswith("classifier.") for name in tensors):
    raise ConfigError(
      "a classifier of DINOv2 reads class token and mean of the patches, side by side, which no head here supports. "
      "Convert the model without it: Dinov2Model.from_pretrained(...).save_pretrained(...)"
    )
  named = _join_gates(
    replace_words(_remove_empty_registers(_remove_prefix(tensors)), MEMORY | {"mlp.down_proj": "mlp.weights_out"})
  )
  return fold_table(named, "embeddings.cls_token", _TABLE, hints)


def _join_gates(tensors: Tensors) -> Tensors:
  """Returns the tensors with gate and up of each SwiGLU in one tensor, as in files. In memory they are separate."""
  result = dict(tensors)
  for name in tensors:
    if ".mlp.gate_proj." in name:
      parts = [result.pop(name), result.pop(name.replace("gate_proj", "up_proj"))]
      result[name.replace("gate_proj", "weights_in")] = join_tensors(parts)
  return result


def _convert_dinov3_names(tensors: Tensors, hints: Hints) -> Tensors:
  return _remove_empty_registers(
    {re.sub(r"^model\.layer\.", "layer.", name): tensor for name, tensor in tensors.items()}
  )


def _remove_empty_registers(tensors: Tensors) -> Tensors:
  """Returns the tensors without an empty tensor of registers."""
  name = "embeddings.register_tokens"
  empty = name in tensors and tensors[name].shape[1] == 0
  return {key: tensor for key, tensor in tensors.items() if key != name} if empty else tensors


def fold_table(tensors: Tensors, token: str, table: str, hints: Hints) -> Tensors:
  """Returns the tensors with the position table of the model that this project described next to them.

  If the table of the described model has no row for the class token, the row of the file is added to the token.

  Args:
    tensors: tensors by name.
    token: name of the class token.
    table: name of the position table (1, T, D).
    hints: hints that may contain the description.
  """
  header = find_description(hints)
  if header is None or header.settings()["position"] != "learned_patches":
    return tensors
  whole, first = tensors[table], tensors[token]
  _, rows, width = whole.shape
  return {
    **tensors,
    token: Tensor(first.shape, first.dtype, lambda: np.asarray(fold_token(first, whole)[0])),
    table: Tensor((1, rows - 1, width), whole.dtype, lambda: np.asarray(whole)[:, 1:]),
  }


# Contents of a file.


def _describe_dinov2(tensors: Tensors, hints: Hints) -> Description:
  width, channels, patch, _ = tensors["embeddings.patch_embeddings.projection.weight"].shape
  depth, first = count_layers(r"encoder\.layer\.(\d+)\.", tensors), "encoder.layer.0"
  gated = f"{first}.mlp.weights_out.weight" in tensors
  hidden = tensors[f"{first}.mlp.{'weights_out' if gated else 'fc2'}.weight"].shape[1]
  biased = f"{first}.attention.attention.query.bias" in tensors
  return describe_vit(
    (patch, patch, channels, width),
    (width, depth, find_heads(width, depth, hidden, hints, gated), hidden),
    tensors[_TABLE],
    None,
    hints,
    leading=1,
    gelu=hints.get("gelu", "erf"),
    eps=hints.get("norm_eps", 1e-6),
    settings={
      "layer_scale": 1e-5,
      "registers": _count_registers(tensors),
      "mlp": "swiglu" if gated else None,
      "attention.bias": None if biased else "none",
    },
  )


def _count_registers(tensors: Tensors) -> int | None:
  return tensors["embeddings.register_tokens"].shape[1] if "embeddings.register_tokens" in tensors else None


def _describe_dinov3(tensors: Tensors, hints: Hints) -> Description:
  width, channels, patch, _ = tensors["embeddings.patch_embeddings.weight"].shape
  depth, first = count_layers(r"layer\.(\d+)\.", tensors), "layer.0"
  gated = f"{first}.mlp.gate_proj.weight" in tensors
  hidden = tensors[f"{first}.mlp.down_proj.weight"].shape[1]
  biased = tuple(f"{first}.attention.{part}_proj.bias" in tensors for part in "qkv")
  if biased not in _BIASED:
    raise ConfigError(
      "this combination of biases for query, key and value is "
      f"not supported: {', '.join(part for part, there in zip(ATTENTION, biased, strict=True) if there)}. Allowed: "
      f"all, "
      f"query and value, none"
    )
  return describe_vit(
    (patch, patch, channels, width),
    (width, depth, find_heads(width, depth, hidden, hints, gated), hidden),
    None,
    None,
    hints,
    leading=1,
    position="none",
    gelu=hints.get("gelu", "erf"),
    eps=hints.get("norm_eps", 1e-5),
    settings={
      "layer_scale": 1e-5,
      "registers": _count_registers(tensors),
      "position.rotary": hints.get("turning", modern.DINOV3),
      "attention.bias": _BIASED[biased],
      "mlp": "swiglu" if gated else None,
    },
  )


_BIASED = {(True, False, True): "query_value", (False, False, False): "none", (True, True, True): None}


# Selection of models, and writing.


def create_type_check(wanted: str) -> Callable[[Description], bool]:
  """Returns a function that returns true for models of one kind.

  Args:
    wanted: a result of `transformers_config.find_model_type`.
  """
  return lambda description: find_model_type(description) == wanted


def _finish_dino(arrays: Tensors, description: Description) -> Tensors:
  """Adds the mask token with Transformers' initial values, because no model here has it."""
  check_model(description, square=_TABLE in arrays)
  width = arrays["embeddings.cls_token"].shape[-1]
  create_config(description)  # raises its errors before a file is written
  if _TABLE in arrays:
    return {**arrays, "embeddings.mask_token": np.zeros((1, width), np.float32)}
  none = {"embeddings.register_tokens": np.zeros((1, 0, width), np.float32)}
  return {**none, **arrays, "embeddings.mask_token": np.zeros((1, 1, width), np.float32)}


# Arguments for which these code bases support a single value.
ONLY = PLAIN | {"attention.qk_norm": "none", "attention.output": Choice("plain"), "norm.pooled": False}

LAYOUTS = (
  Layout(
    name="hf",
    family="vit",
    resampling="bicubic",
    rows=DINOV2_ROWS,
    recognises=lambda tensors: any(f"{prefix}{_SCALE}" in tensors for prefix in ("", *_BARE)),
    describe=_describe_dinov2,
    canonical=_convert_dinov2_names,
    finish=_finish_dino,
    create_config=create_config,
    computes=ONLY
    | {"position": ("learned", "sincos2d"), "position.rotary": Choice("none"), "attention.bias": ("all", "none")},
    holds=create_type_check("dinov2"),
    position="learned",
  ),
  Layout(
    name="hf",
    family="vit",
    rows=DINOV3_ROWS,
    recognises=lambda tensors: {"embeddings.patch_embeddings.weight", "embeddings.cls_token"} <= tensors.keys(),
    describe=_describe_dinov3,
    canonical=_convert_dinov3_names,
    finish=_finish_dino,
    create_config=create_config,
    computes=ONLY | {"position": "none"},
    holds=create_type_check("dinov3"),
  ),
)

"""Layouts of Vision Transformers in the files of DINOv2 and DINOv3.

The tensors are read under the names of timm, which have the same meaning. The mask token and the norm for small crops
are used only in pre-training and are ignored. The code of the authors requires a mask token. It is therefore written as
zeros, its initial value.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, Tensor, TensorRow, Tensors, compute_shapes
from vit_jax.importers.layouts.vit import create_check, invert_names, replace_words
from vit_jax.importers.layouts.vit_eva import DINOV3_ROWS
from vit_jax.importers.layouts.vit_torch import PLAIN, TIMM_ROWS, describe_timm, slice_lazily
from vit_jax.models import Description
from vit_jax.models.published import modern
from vit_jax.schema import Choice, ConfigError


def _remove_head(rows: tuple[TensorRow, ...]) -> tuple[TensorRow, ...]:
  return tuple(row for row in rows if not row.theirs.startswith(("head.", "head_dist.", "fc_norm.", "dist_token")))


def _map_names(words: Mapping[str, str], description: Description) -> dict[str, str]:
  """Returns {name of timm: their name}. The names of an MLP without a gate are equal."""
  gated = description.settings()["mlp"] != "gelu"
  return {ours: theirs for ours, theirs in invert_names(words).items() if gated or not ours.startswith("mlp.")}


# DINOv2.

_DINOV2 = {"register_tokens": "reg_token", "mlp.w12": "mlp.fc1", "mlp.w3": "mlp.fc2"}


def _convert_dinov2_names(tensors: Tensors, hints: Hints) -> Tensors:
  """Converts the names of DINOv2. Training code stores blocks in chunks, as blocks.CHUNK.NUMBER with global numbers."""
  return replace_words(
    {re.sub(r"^blocks\.\d+\.(\d+\.)", r"blocks.\1", name): t for name, t in tensors.items()}, _DINOV2
  )


def _finish_dinov2(arrays: Tensors, description: Description) -> Tensors:
  width = arrays["norm.weight"].shape[0]
  return {**replace_words(arrays, _map_names(_DINOV2, description)), "mask_token": np.zeros((1, width), np.float32)}


def _is_dinov2(tensors: Tensors) -> bool:
  if "patch_embed.proj.weight" not in tensors or "storage_tokens" in tensors:
    return False
  scaled = any(re.fullmatch(r"blocks\.(\d+\.)?0\.ls1\.gamma", name) for name in tensors)
  chunked = any(re.match(r"blocks\.\d+\.\d+\.", name) for name in tensors)
  own = {"register_tokens", "mask_token"} & tensors.keys() or any(".mlp.w12." in name for name in tensors)
  return scaled and bool(own or chunked)


# DINOv3.

_DINOV3 = {
  "storage_tokens": "reg_token",
  "ls1.gamma": "gamma_1",
  "ls2.gamma": "gamma_2",
  "mlp.w1": "mlp.fc1_g",
  "mlp.w2": "mlp.fc1_x",
  "mlp.w3": "mlp.fc2",
}


def _convert_dinov3_names(tensors: Tensors, hints: Hints) -> Tensors:
  """Converts the tensors of DINOv3. A mask next to the bias of query, key and value removes the bias of keys."""
  result: dict[str, np.ndarray | Tensor] = {}
  for name, tensor in replace_words(tensors, _DINOV3).items():
    block, _, rest = name.rpartition(".attn.qkv.")
    if rest == "bias":
      width = tensor.shape[0] // 3
      masked = _mask_bias(name, tensor, tensors.get(f"{name}_mask"))
      result[f"{block}.attn.q_bias"] = slice_lazily(masked, (width,), slice(width))
      result[f"{block}.attn.v_bias"] = slice_lazily(masked, (width,), slice(2 * width, None))
    elif rest != "bias_mask":
      result[name] = tensor
  return result


def _mask_bias(name: str, bias: Any, mask: object) -> Tensor:
  """Returns the bias after masking. Keys must have no bias."""

  def read() -> np.ndarray:
    whole = np.asarray(bias) if mask is None else np.where(np.asarray(mask) == 0, 0, np.asarray(bias))
    width = len(whole) // 3
    if mask is not None and (np.any(whole[width : 2 * width]) or not np.isin(np.asarray(mask), (0, 1)).all()):
      raise ConfigError(f"{name}: expected a mask of zeros and ones that removes the bias of the keys")
    return whole

  return Tensor(bias.shape, bias.dtype, read)


def _finish_dinov3(arrays: Tensors, description: Description) -> Tensors:
  result: dict[str, np.ndarray | Tensor] = {}
  for name, array in arrays.items():
    block, _, rest = name.rpartition(".attn.")
    if rest == "q_bias":
      none, other = np.zeros_like(array), arrays[f"{block}.attn.v_bias"]
      result[f"{block}.attn.qkv.bias"] = np.concatenate([array, none, other])
      result[f"{block}.attn.qkv.bias_mask"] = np.concatenate([none + 1, none, none + 1])
    elif rest != "v_bias":
      result[name] = array
  width, _, size = compute_shapes(description)["blocks/0/attention/query/kernel"]
  periods = description.settings()["position.rotary"].args["temperature"] ** (4 * np.arange(size // 4) / size)
  return {
    **replace_words(result, _map_names(_DINOV3, description)),
    "mask_token": np.zeros((1, width), np.float32),
    "rope_embed.periods": periods.astype(np.float32),
  }


LAYOUTS = (
  Layout(
    name="dinov3",
    family="vit",
    rows=_remove_head(DINOV3_ROWS),
    recognises=lambda tensors: (
      "patch_embed.proj.weight" in tensors and bool({"storage_tokens", "rope_embed.periods"} & tensors.keys())
    ),
    describe=lambda tensors, hints: describe_timm(
      tensors, hints, modern.DINOV3, pool="cls", settings={"head.class_token": None}
    ),
    canonical=_convert_dinov3_names,
    finish=_finish_dinov3,
    computes=PLAIN | {"position": "none", "norm.eps": 1e-5},
    ignored=r"rope_embed\.periods",
    untaken=r"local_cls_norm\..*",
    holds=create_check({"mlp": ("gelu", "swiglu"), "attention.bias": ("query_value", "none")}, modern.DINOV3),
  ),
  Layout(
    name="dinov2",
    family="vit",
    resampling="bicubic_offset",
    rows=_remove_head(TIMM_ROWS),
    recognises=_is_dinov2,
    describe=lambda tensors, hints: describe_timm(tensors, hints, rows=("learned", 1)),
    canonical=_convert_dinov2_names,
    finish=_finish_dinov2,
    computes=PLAIN | {"position": "learned", "attention.bias": "all", "norm.eps": 1e-6},
    position="learned",
    holds=create_check({"mlp": ("gelu", "swiglu"), "head": "cls", "norm.order": "pre"}, Choice("none")),
  ),
)

"""Layouts of Vision Transformers in the files of their authors: EVA-02, DeiT III, rope-vit and ViT-5.

The tensors are read under the names of timm, which have the same meaning.
"""

from collections.abc import Callable, Mapping

import numpy as np

from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, Tensor, Tensors, compute_shapes
from vit_jax.importers.layouts.vit import (
  count_layers,
  create_check,
  find_heads,
  invert_names,
  list_block_names,
  replace_words,
)
from vit_jax.importers.layouts.vit_eva import COMMON, EVA02_ROWS, TURNED_ROWS, join_frequencies, split_frequencies
from vit_jax.importers.layouts.vit_torch import PLAIN, describe_timm, mlp_rows, output_rows, packed_qkv_rows
from vit_jax.models import Description
from vit_jax.models.published import modern
from vit_jax.schema import Choice

# EVA-02.

_EVA02 = {"mlp.w12": "mlp.fc1", "mlp.w3": "mlp.fc2"}
_EVA02_NORMED = {
  "mlp.w1": "mlp.fc1_g",
  "mlp.w2": "mlp.fc1_x",
  "mlp.w3": "mlp.fc2",
  "mlp.ffn_ln": "mlp.norm",
  "attn.inner_attn_ln": "attn.norm",
  "attn.q_bias": "attn.q_proj.bias",
  "attn.v_bias": "attn.v_proj.bias",
}


def _create_eva02_conversion(words: Mapping[str, str]) -> Callable[[Tensors, Hints], Tensors]:
  """Returns the function that converts names of EVA-02.

  After masked pre-training, the last norm applies to all patches. Other models have a head on the mean of the patches,
  and the norm applies to this mean.
  """

  def canonical(tensors: Tensors, hints: Hints) -> Tensors:
    masked = {"mask_token", "lm_head.weight"} & tensors.keys()
    last = {f"norm.{word}": f"fc_norm.{word}" for word in ("weight", "bias")} if masked else {}
    return replace_words({last.get(name, name): tensor for name, tensor in tensors.items()}, words)

  return canonical


# rope-vit.


def _convert_rope_vit_names(tensors: Tensors, hints: Hints) -> Tensors:
  """Converts the tensors of rope-vit, which has all frequencies in one tensor (2, L, H K / 2)."""
  whole = tensors["freqs"]
  width = tensors["patch_embed.proj.weight"].shape[0]
  heads = find_heads(
    width, count_layers(r"blocks\.(\d+)\.", tensors), tensors["blocks.0.mlp.fc1.weight"].shape[0], hints
  )
  two, layers, pairs = whole.shape
  shape = (two, layers, heads, pairs // heads)
  apart = Tensor(shape, whole.dtype, lambda: np.asarray(whole).reshape(shape))
  rest = {name: tensor for name, tensor in tensors.items() if name != "freqs"}
  return split_frequencies({**rest, "rope.freqs": apart})


def _finish_rope_vit(arrays: Tensors, description: Description) -> Tensors:
  arrays = join_frequencies(arrays, "freqs")
  if "freqs" not in arrays:
    return arrays
  apart = np.asarray(arrays["freqs"])
  return {**arrays, "freqs": apart.reshape(*apart.shape[:2], -1)}


# DeiT III. Rope-vit with fixed frequencies and a table has the same names.


def _matches_deit3(tensors: Tensors) -> bool:
  own = {"gamma_1", "attn.qkv.bias", "norm1.bias"} <= list_block_names(tensors)
  return own and "pos_embed" in tensors and not {"freqs", "rope.freqs", "reg_token"} & tensors.keys()


def _is_deit3(tensors: Tensors, hints: Hints) -> bool:
  return "rope" not in str(hints.get("name", "")) and "turning" not in hints


def _find_deit3_doubts(tensors: Tensors, hints: Hints) -> list[str]:
  if "deit" in str(hints.get("name", "")):
    return []
  text = "read as DeiT III; rope-vit with fixed frequencies and a table has the same tensors"
  return [f"{text}: in that case, give the file the name of the timm model, vit_small_patch16_rope_ape_224"]


_DEIT3_ROWS = (
  *COMMON,
  *packed_qkv_rows("blocks.{l}.attn.qkv", "blocks/{l}/attention"),
  *output_rows("blocks.{l}.attn.proj", "blocks/{l}/attention/out"),
  *mlp_rows("blocks.{l}.mlp", "blocks/{l}/mlp"),
)


# ViT-5.


def _finish_vit5(arrays: Tensors, description: Description) -> Tensors:
  """Returns the tensors with the frequencies that ViT-5 stores in every block."""
  size = compute_shapes(description)["blocks/0/attention/query/kernel"][2]
  rotary = description.settings()["position.rotary"].args
  power = (np.arange(0, size // 2, 2, dtype=np.float32) / np.float32(size // 2)).astype(np.float64)
  frequencies = {
    f"blocks.{layer}.attn.{name}.freqs": 1 / (rotary[key] ** power).astype(np.float32)
    for layer in range(count_layers(r"blocks\.(\d+)\.", arrays))
    for name, key in (("rope", "temperature"), ("rope_reg", "registers"))
  }
  return {**arrays, **frequencies}


_GATED = {"registers": 0, "attention.bias": "query_value", "norm.eps": 1e-6}
_PLAIN_BLOCKS = {"mlp": "gelu", "attention.bias": "all", "head": "cls"}
_VIT5_BLOCKS = {"mlp": "gelu", "norm": "rms", "attention.qk_norm": "rms", "attention.bias": "none", "head": "cls"}

LAYOUTS = (
  Layout(
    name="eva02",
    family="vit",
    resampling="bicubic",
    rows=TURNED_ROWS,
    recognises=lambda tensors: (
      {"mlp.w12.weight", "attn.qkv.weight"} <= list_block_names(tensors) and "cls_token" in tensors
    ),
    describe=lambda tensors, hints: describe_timm(tensors, hints, modern.EVA02),
    canonical=_create_eva02_conversion(_EVA02),
    finish=lambda arrays, description: replace_words(arrays, invert_names(_EVA02)),
    computes=PLAIN | {"position": "learned"},
    ignored=r"(.*\.)?rope\.freqs_(cos|sin)",
    untaken=r"lm_head\..*",
    position="learned",
    holds=create_check({"mlp": "swiglu"} | _GATED, modern.EVA02),
  ),
  Layout(
    name="eva02",
    family="vit",
    resampling="bicubic",
    rows=EVA02_ROWS,
    recognises=lambda tensors: (
      {"mlp.w1.weight", "attn.q_proj.weight"} <= list_block_names(tensors) and "cls_token" in tensors
    ),
    describe=lambda tensors, hints: describe_timm(tensors, hints, modern.EVA02),
    canonical=_create_eva02_conversion(_EVA02_NORMED),
    finish=lambda arrays, description: replace_words(arrays, invert_names(_EVA02_NORMED)),
    computes=PLAIN | {"position": "learned"},
    ignored=r"(.*\.)?rope\.freqs_(cos|sin)",
    untaken=r"lm_head\..*",
    position="learned",
    holds=create_check({"mlp": "swiglu_normed"} | _GATED, modern.EVA02),
  ),
  Layout(
    name="rope_vit",
    family="vit",
    resampling="bicubic",
    rows=TURNED_ROWS,
    recognises=lambda tensors: "freqs" in tensors and "gamma_1" in list_block_names(tensors),
    describe=lambda tensors, hints: describe_timm(tensors, hints, modern.MIXED),
    canonical=_convert_rope_vit_names,
    finish=_finish_rope_vit,
    computes=PLAIN | {"position": ("learned_patches", "none"), "norm.eps": 1e-6, "gelu": "erf"},
    ignored=r"freqs_t_[xy]",
    position="learned_patches",
    holds=create_check(_PLAIN_BLOCKS | {"registers": 0}, Choice("mixed"), modern.ROPE_VIT),
  ),
  Layout(
    name="deit3",
    family="vit",
    resampling="bicubic",
    rows=_DEIT3_ROWS,
    recognises=_matches_deit3,
    fits=_is_deit3,
    doubts=_find_deit3_doubts,
    describe=describe_timm,
    computes=PLAIN | {"position": "learned_patches", "norm.eps": 1e-6, "gelu": "erf"},
    position="learned_patches",
    holds=create_check(_PLAIN_BLOCKS | {"registers": 0}, Choice("none")),
  ),
  Layout(
    name="vit5",
    family="vit",
    resampling="bicubic",
    rows=TURNED_ROWS,
    recognises=lambda tensors: (
      {"gamma_1", "attn.q_norm.weight", "norm1.weight"} <= list_block_names(tensors)
      and not {"norm1.bias", "attn.q_norm.bias"} & list_block_names(tensors)
    ),
    describe=lambda tensors, hints: describe_timm(tensors, hints, modern.VIT5),
    finish=_finish_vit5,
    computes={**PLAIN, "norm": "rms", "position": ("learned_patches", "none"), "norm.eps": 1e-6, "gelu": "erf"},
    ignored=r"blocks\.\d+\.attn\.rope(_reg)?\.freqs",
    position="learned_patches",
    holds=create_check(_VIT5_BLOCKS, modern.VIT5),
  ),
)

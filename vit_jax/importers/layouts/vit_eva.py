"""Layouts of timm's class EVA: DINOv3, EVA-02, rope-vit, and timm's own models with rotary positions.

Fixed rotary positions are not stored in tensors. They follow from the name of the file, from the files next to it, or
from the other tensors.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from vit_jax import schema
from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, Tensor, TensorRow, Tensors, torch_linear, torch_norm
from vit_jax.importers.layouts.vit import ATTENTION, count_layers, find_description, find_stated_model
from vit_jax.importers.layouts.vit_torch import (
  AROUND,
  PLAIN,
  describe_timm,
  finish_timm,
  mlp_rows,
  output_rows,
  packed_qkv_rows,
  restore_table,
)
from vit_jax.models import Description
from vit_jax.models.published import modern
from vit_jax.schema import Choice, format_amount

# Rows.


def bias_rows(theirs: str, ours: str, neighbours: bool = False) -> tuple[TensorRow, ...]:
  """Returns the rows for the biases of query and value of an attention without a key bias.

  The arguments are those of `vit_torch.packed_qkv_rows`.
  """
  pattern = "(h k two) -> h (two k)" if neighbours else "(h k) -> h k"
  return tuple(TensorRow(f"{theirs}.{part[0]}_bias", f"{ours}/{part}/bias", pattern) for part in ("query", "value"))


def separate_qkv_rows(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  """Returns the rows for query, key and value in separate matrices.

  Values keep their order, because they are normalised afterwards. The arguments are those of `layout.torch_linear`.
  """
  turned, stays = "(h k two) d -> d h (two k)", "(h k) d -> d h k"
  patterns = {"query": turned, "key": turned, "value": stays}
  return tuple(
    TensorRow(f"{theirs}.{part[0]}_proj.weight", f"{ours}/{part}/kernel", patterns[part]) for part in ATTENTION
  )


def head_norm_rows(theirs: str, ours: str, neighbours: bool) -> tuple[TensorRow, ...]:
  """Returns the rows for the norms of queries and keys.

  The arguments are those of `vit_torch.packed_qkv_rows`.
  """
  pattern = "(k two) -> (two k)" if neighbours else "k -> k"
  return tuple(
    TensorRow(f"{theirs}.{part[0]}_norm.{word}", f"{ours}/{part}_norm/{kind}", pattern)
    for part in ("query", "key")
    for word, kind in (("weight", "scale"), ("bias", "bias"))
  )


def swiglu_rows(theirs: str, ours: str, names: tuple[str, str, str]) -> tuple[TensorRow, ...]:
  """Returns the rows for a SwiGLU with a separate matrix for its gate.

  The first two arguments have the same meaning as in `layout.torch_linear`.

  Args:
    names: names of gate, up and down in the file.
  """
  gate, up, down = names
  parts = {gate: "gate", up: "up", down: "down"}
  return tuple(
    row._replace(requires=f"{ours}/gate/kernel")
    for name, part in parts.items()
    for row in torch_linear(f"{theirs}.{name}", f"{ours}/{part}")
  )


_BLOCK, _OURS = "blocks.{l}", "blocks/{l}"
COMMON = (  # rows that all of these layouts have
  *AROUND,
  *torch_norm(f"{_BLOCK}.norm1", f"{_OURS}/norm1"),
  *torch_norm(f"{_BLOCK}.norm2", f"{_OURS}/norm2"),
  *(TensorRow(f"{_BLOCK}.gamma_{i}", f"{_OURS}/layer_scale{i}", "d -> d") for i in (1, 2)),
)


def rotary_rows(neighbours: bool) -> tuple[TensorRow, ...]:
  """Returns the rows of a layout with one matrix for query, key and value.

  Args:
    neighbours: true if the code rotates neighbouring channels. See `vit_torch.packed_qkv_rows`.
  """
  theirs, ours = f"{_BLOCK}.attn", f"{_OURS}/attention"
  return (
    *COMMON,
    *packed_qkv_rows(f"{theirs}.qkv", ours, neighbours),
    *bias_rows(theirs, ours, neighbours),
    *head_norm_rows(theirs, ours, neighbours),
    *output_rows(f"{theirs}.proj", f"{ours}/out", neighbours),
    TensorRow(f"{theirs}.freqs", f"{ours}/frequencies", "x h k -> x h k"),
  )


_SPLIT = swiglu_rows(f"{_BLOCK}.mlp", f"{_OURS}/mlp", ("fc1_g", "fc1_x", "fc2"))
DINOV3_ROWS = (*rotary_rows(neighbours=False), *_SPLIT, *mlp_rows(f"{_BLOCK}.mlp", f"{_OURS}/mlp"))
TURNED_ROWS = (*rotary_rows(neighbours=True), *mlp_rows(f"{_BLOCK}.mlp", f"{_OURS}/mlp"))
EVA02_ROWS = (
  *COMMON,
  *separate_qkv_rows(f"{_BLOCK}.attn", f"{_OURS}/attention"),
  TensorRow(f"{_BLOCK}.attn.q_proj.bias", f"{_OURS}/attention/query/bias", "(h k two) -> h (two k)"),
  TensorRow(f"{_BLOCK}.attn.v_proj.bias", f"{_OURS}/attention/value/bias", "(h k) -> h k"),
  *torch_norm(f"{_BLOCK}.attn.norm", f"{_OURS}/attention/context_norm"),
  *output_rows(f"{_BLOCK}.attn.proj", f"{_OURS}/attention/out"),
  *_SPLIT,
  *torch_norm(f"{_BLOCK}.mlp.norm", f"{_OURS}/mlp/norm"),
)


# Conversion of a tensor with the frequencies of all layers.


def split_frequencies(tensors: Tensors, name: str = "rope.freqs") -> Tensors:
  """Returns the tensors with frequencies (2, L, H, K / 2) split into layers.

  Args:
    tensors: tensors by name.
    name: name of the frequencies.

  Raises:
    ValueError: if the number of layers does not match the blocks.
  """
  if name not in tensors:
    return tensors
  whole = tensors[name]
  first, layers, *rest = whole.shape
  if layers != count_layers(r"blocks\.(\d+)\.", tensors):
    raise ValueError(f"{name} has {format_amount(layers, 'layer')}")
  once = []

  def layer(i: int) -> np.ndarray:
    if not once:
      once.append(np.asarray(whole))
    return once[0][:, i]

  result = {key: tensor for key, tensor in tensors.items() if key != name}
  for i in range(layers):
    result[f"blocks.{i}.attn.freqs"] = Tensor((first, *rest), whole.dtype, functools.partial(layer, i))
  return result


def join_frequencies(arrays: Tensors, name: str = "rope.freqs") -> Tensors:
  """Returns the tensors with the frequencies of all layers in one tensor, as the inverse of `split_frequencies`.

  Args:
    arrays: tensors by name.
    name: name of the frequencies.
  """
  layers = count_layers(r"blocks\.(\d+)\.attn\.freqs", arrays)
  if not layers:
    return arrays
  whole = np.stack([arrays[f"blocks.{i}.attn.freqs"] for i in range(layers)], axis=1)
  return {key: array for key, array in arrays.items() if not key.endswith(".attn.freqs")} | {name: whole}


# Contents of a file.


def _find_rotary(tensors: Tensors, hints: Hints) -> Choice | None:
  """Returns the rotary positions. The tensors alone do not determine fixed rotary positions."""
  if header := find_description(hints):
    return header.settings()["position.rotary"]
  if "turning" in hints:
    return hints["turning"]
  first = {name.removeprefix("blocks.0.") for name in tensors if name.startswith("blocks.0.")}
  if {"rope.freqs", "blocks.0.attn.freqs"} & tensors.keys():
    return modern.MIXED
  if known := find_stated_model(hints):
    return schema.flatten_choices(known[1].defaults).get("position.rotary")
  if "gamma_1" not in first:
    gated = "mlp.fc1_g.weight" in first or _is_gated(tensors)
    return modern.EVA02 if gated else None  # without a gate the model is EVA, which has only a position table
  if "attn.qkv.bias" in first:
    return modern.ROPE_VIT
  return modern.DINOV3 if "cls_token" in tensors and "pos_embed" not in tensors else modern.EVA02


def _is_gated(tensors: Tensors) -> bool:
  return tensors["blocks.0.mlp.fc1.weight"].shape[0] == 2 * tensors["blocks.0.mlp.fc2.weight"].shape[1]


def _describe(tensors: Tensors, hints: Hints) -> Description:
  known = schema.flatten_choices(named[1].defaults) if (named := find_stated_model(hints)) else {}
  width, depth = tensors["patch_embed.proj.weight"].shape[0], count_layers(r"blocks\.(\d+)\.", tensors)
  enormous = not known and "blocks.0.gamma_1" not in tensors and (width, depth) == (1792, 64)
  order = hints.get("norm_order") or known.get("norm.order") or ("post" if enormous else None)
  return describe_timm(tensors, hints, _find_rotary(tensors, hints), order)


def _canonical(tensors: Tensors, hints: Hints) -> Tensors:
  return restore_table(split_frequencies(tensors), hints)


def _finish(arrays: Tensors, description: Description) -> Tensors:
  return join_frequencies(finish_timm(arrays, description))


def _is_recognised(tensors: Tensors) -> bool:
  return "patch_embed.proj.weight" in tensors and "blocks.0.mlp.fc2.weight" in tensors


def _is_eva(tensors: Tensors, hints: Hints) -> Any:
  """Returns true for timm's class EVA: by its names for layer scale, by the biases of queries, or by the hints."""
  first = {name.removeprefix("blocks.0.") for name in tensors if name.startswith("blocks.0.")}
  is_stated = hints.get("turning", Choice("none")).name != "none" or hints.get("norm_order") == "post"
  return (
    is_stated
    or find_description(hints)
    or bool(first & {"gamma_1", "attn.q_bias", "attn.q_proj.weight", "mlp.fc1_g.weight"})
  )


def _is_centred(tensors: Tensors, hints: Hints) -> bool:
  return (rotary := _find_rotary(tensors, hints)) is not None and rotary.name == "dinov3"


def _create_check(*rotary: str, normed: bool = False) -> Callable[[Description], bool]:
  def holds(description: Description) -> bool:
    bound = description.settings()
    eva = (
      bound["position.rotary"].name != "none"
      or bound["attention.bias"] == "query_value"
      or bound["norm.order"] == "post"
    )
    return eva and bound["position.rotary"].name in rotary and (bound["mlp"] == "swiglu_normed") == normed

  return holds


_COMPUTES = PLAIN | {"norm.order": ("pre", "post"), "head": ("cls", "gap")}

LAYOUTS = (
  Layout(
    name="timm",
    family="vit",
    resampling="bicubic_antialiased",
    rows=EVA02_ROWS,
    recognises=lambda tensors: _is_recognised(tensors) and "blocks.0.attn.q_proj.weight" in tensors,
    describe=_describe,
    canonical=_canonical,
    finish=_finish,
    computes=_COMPUTES | {"attention.bias": "query_value", "attention.qk_norm": "none"},
    holds=_create_check("none", "axial", normed=True),
  ),
  Layout(
    name="timm",
    family="vit",
    resampling="bicubic_antialiased",
    rows=DINOV3_ROWS,
    recognises=_is_recognised,
    fits=lambda tensors, hints: _is_eva(tensors, hints) and _is_centred(tensors, hints),
    describe=_describe,
    canonical=_canonical,
    finish=_finish,
    computes=_COMPUTES,
    holds=_create_check("dinov3"),
  ),
  Layout(
    name="timm",
    family="vit",
    resampling="bicubic_antialiased",
    rows=TURNED_ROWS,
    recognises=_is_recognised,
    fits=_is_eva,
    describe=_describe,
    canonical=_canonical,
    finish=_finish,
    computes=_COMPUTES,
    holds=_create_check("none", "axial", "mixed"),
  ),
)

"""Layout of Vision Transformers in the state dicts of timm and DeiT.

`vit_eva` contains the layout of timm's class EVA.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import schema
from vit_jax.importers.formats.lazy_tensors import Tensor, Tensors
from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, TensorRow, torch_conv, torch_linear, torch_norm
from vit_jax.importers.layouts.vit import (
  ATTENTION,
  add_token_rows,
  count_layers,
  describe_vit,
  find_description,
  find_gelu,
  find_heads,
  find_position,
  find_stated_model,
  fold_token,
  has_token_rows,
)
from vit_jax.models import Description
from vit_jax.schema import Choice

# Rows.


def packed_qkv_rows(theirs: str, ours: str, neighbours: bool = False) -> tuple[TensorRow, ...]:
  """Returns the rows for query, key and value in one matrix of PyTorch, with rows in this order and by head.

  The first two arguments are those of `layout.torch_linear`.

  Args:
    neighbours: true if the code rotates neighbouring channels. This package rotates channels that are half a head
      apart, so the channels are reordered. Values, and the layers that use them, are also reordered, although they are
      not rotated.
  """
  paths = tuple(f"{ours}/{part}" for part in ATTENTION)
  inside, here = ("k two", "(two k)") if neighbours else ("k", "k")
  return (
    TensorRow(f"{theirs}.weight", tuple(f"{path}/kernel" for path in paths), f"(t h {inside}) d -> t d h {here}"),
    TensorRow(f"{theirs}.bias", tuple(f"{path}/bias" for path in paths), f"(t h {inside}) -> t h {here}"),
  )


def output_rows(theirs: str, ours: str, neighbours: bool = False) -> tuple[TensorRow, ...]:
  """Returns the rows for the projection after attention, with the order of values as in `packed_qkv_rows`.

  The arguments are those of `packed_qkv_rows`.
  """
  inside, here = ("k two", "(two k)") if neighbours else ("k", "k")
  return (
    TensorRow(f"{theirs}.weight", f"{ours}/kernel", f"d (h {inside}) -> h {here} d"),
    TensorRow(f"{theirs}.bias", f"{ours}/bias", "d -> d"),
  )


def mlp_rows(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  """Returns the rows for the MLP of timm. The first matrix may also contain the gate, in front.

  The arguments are those of `layout.torch_linear`.
  """
  gated = (f"{ours}/gate", f"{ours}/up")
  return (
    TensorRow(f"{theirs}.fc1.weight", tuple(f"{path}/kernel" for path in gated), "(t f) d -> t d f"),
    TensorRow(f"{theirs}.fc1.bias", tuple(f"{path}/bias" for path in gated), "(t f) -> t f"),
    *torch_linear(f"{theirs}.fc1", f"{ours}/up"),
    *torch_linear(f"{theirs}.fc2", f"{ours}/down"),
  )


AROUND = (  # parameters outside of the blocks, in both classes of timm
  TensorRow("cls_token", "cls", "1 1 d -> d"),
  TensorRow("dist_token", "distillation", "1 1 d -> d"),
  TensorRow("reg_token", "registers", "1 r d -> r d"),
  TensorRow("pos_embed", "position/table", "1 n d -> n d"),
  *torch_conv("patch_embed.proj", "embedding"),
  *torch_norm("norm", "norm"),
  *torch_norm("fc_norm", "pool_norm"),
  *torch_linear("head", "head"),
)

TIMM_ROWS = (
  *AROUND,
  *torch_norm("blocks.{l}.norm1", "blocks/{l}/norm1"),
  *packed_qkv_rows("blocks.{l}.attn.qkv", "blocks/{l}/attention"),
  *torch_norm("blocks.{l}.attn.q_norm", "blocks/{l}/attention/query_norm"),
  *torch_norm("blocks.{l}.attn.k_norm", "blocks/{l}/attention/key_norm"),
  *(
    TensorRow(f"blocks.{{l}}.attn.lambda_{kind[0]}{half}", f"blocks/{{l}}/attention/difference/{kind}{half}", "k -> k")
    for half in (1, 2)
    for kind in ("query", "key")
  ),
  *torch_norm("blocks.{l}.attn.sub_norm", "blocks/{l}/attention/difference/norm"),
  *output_rows("blocks.{l}.attn.proj", "blocks/{l}/attention/out"),
  TensorRow("blocks.{l}.ls1.gamma", "blocks/{l}/layer_scale1", "d -> d"),
  *torch_norm("blocks.{l}.norm2", "blocks/{l}/norm2"),
  *mlp_rows("blocks.{l}.mlp", "blocks/{l}/mlp"),
  TensorRow("blocks.{l}.ls2.gamma", "blocks/{l}/layer_scale2", "d -> d"),
  TensorRow("attn_pool.latent", "pool/probe", "1 1 d -> d"),
  TensorRow("attn_pool.q.weight", "pool/attention/query/kernel", "(h k) d -> d h k"),
  TensorRow("attn_pool.q.bias", "pool/attention/query/bias", "(h k) -> h k"),
  TensorRow(
    "attn_pool.kv.weight", ("pool/attention/key/kernel", "pool/attention/value/kernel"), "(t h k) d -> t d h k"
  ),
  TensorRow("attn_pool.kv.bias", ("pool/attention/key/bias", "pool/attention/value/bias"), "(t h k) -> t h k"),
  *output_rows("attn_pool.proj", "pool/attention/out"),
  *torch_norm("attn_pool.norm", "pool/norm"),
  *torch_linear("attn_pool.mlp.fc1", "pool/mlp/up"),
  *torch_linear("attn_pool.mlp.fc2", "pool/mlp/down"),
  *torch_linear("pre_logits.fc", "pre_logits"),
  *torch_linear("head_dist", "head_distillation"),
)

# Contents of a file.

_TOKENS = ("cls_token", "dist_token")


def slice_lazily(whole: Any, shape: tuple[int, ...], take: slice | tuple[Any, ...]) -> Tensor:
  """Returns a slice of a tensor in a file, which is read when its values are used.

  Args:
    whole: the tensor.
    shape: shape of the slice.
    take: index of the slice.
  """
  return Tensor(shape, whole.dtype, lambda: np.asarray(whole)[take])


def restore_table(tensors: Tensors, hints: Hints) -> Tensors:
  """Returns the tensors with the position table of the model that this project described next to them.

  The table of that model may have rows for additional tokens. They are added.

  Args:
    tensors: tensors by name.
    hints: hints that may contain the description.
  """
  header = find_description(hints)
  if header is None or header.settings().get("position") != "learned":
    return tensors
  patch = tensors["patch_embed.proj.weight"].shape[-1]
  return add_token_rows(_fold_registers(tensors, patch, hints), "pos_embed", _TOKENS, patch, hints, usually=True)


def _fold_registers(tensors: Tensors, patch: int, hints: Hints) -> Tensors:
  """Returns the tensors without rows for registers in the position table. The rows are added to the registers."""
  if "reg_token" not in tensors or "pos_embed" not in tensors:
    return tensors
  registers, table = tensors["reg_token"], tensors["pos_embed"]
  first = sum(name in tensors for name in _TOKENS)
  _, count, width = registers.shape
  if not has_token_rows(table, first + count, patch, hints, usually=False):
    return tensors

  def fold_registers() -> np.ndarray:
    return np.asarray(registers) + np.asarray(table)[:, first : first + count]

  def drop_register_rows() -> np.ndarray:
    return np.delete(np.asarray(table), slice(first, first + count), axis=1)

  return {
    **tensors,
    "reg_token": Tensor(registers.shape, registers.dtype, fold_registers),
    "pos_embed": Tensor((1, table.shape[1] - count, width), table.dtype, drop_register_rows),
  }


def describe_timm(
  tensors: Tensors,
  hints: Hints,
  rotary: Choice | None = None,
  order: str | None = None,
  rows: tuple[str, int] | None = None,
  pool: str | None = None,
  settings: Mapping[str, object] = {},
) -> Description:
  """Returns the model of tensors with the names of timm, or with the names in the rows of another layout.

  Args:
    tensors: tensors by name.
    hints: facts that the tensors do not determine.
    rotary: rotary positions of the code, or None.
    order: order of the norms, or None.
    rows: tokens with rows in the position table, in the form of `find_position`. None determines them from the table.
    pool: input of the head. None determines it from the tensors.
    settings: settings of the model that only this layout has, with dotted keys.
  """
  width, channels, patch, _ = tensors["patch_embed.proj.weight"].shape
  depth, (hidden, mlp) = count_layers(r"blocks\.(\d+)\.", tensors), _describe_mlp(tensors)
  known = find_stated_model(hints)
  usual, near = (schema.flatten_choices(known[1].defaults), known[1].row[0]) if known else ({}, None)
  if (difference := tensors.get("blocks.0.attn.sub_norm.weight")) is not None:
    heads = width // difference.shape[0]
  elif "heads" not in hints and near and (width, hidden) == (near[0], near[3]):
    heads = near[2]
  else:
    heads = find_heads(width, depth, hidden, hints, mlp is not None)
  registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
  leading = sum(name in tensors for name in _TOKENS)
  position, before = rows or find_position(tensors.get("pos_embed"), leading, registers, patch, hints)
  centred = rotary is not None and rotary.name == "dinov3"
  described = _describe_pool(tensors, hints, usual.get("head", "gap" if centred else "cls"), centred)
  return describe_vit(
    (patch, patch, channels, width),
    (width, depth, heads, hidden),
    tensors.get("pos_embed"),
    tensors.get("head.bias"),
    hints,
    leading=leading,
    before=before,
    pool=pool or described,
    position=position,
    gelu=hints.get("gelu") or find_gelu(hints),
    settings={
      "head.class_token": True if leading and described in ("gap", "map") else None,
      "registers": registers or None,
      "position.rotary": rotary,
      "head.pre_logits": tensors["pre_logits.fc.bias"].shape[0] if "pre_logits.fc.bias" in tensors else None,
      "norm.eps": hints.get("norm_eps")
      or usual.get("norm.eps")
      or (1e-5 if centred and "turning" not in hints else 1e-6),
      "mlp": mlp,
      "norm": "rms" if "blocks.0.norm1.weight" in tensors and "blocks.0.norm1.bias" not in tensors else None,
      "norm.pooled": True if "fc_norm.weight" in tensors else None,
      "norm.order": order,
      "layer_scale": 1e-4 if tensors.keys() & _SCALES else None,
    }
    | _describe_attention(tensors)
    | dict(settings),
  )


_SCALES = {"blocks.0.ls1.gamma", "blocks.0.gamma_1", "blocks.0.ls.gamma"}


def _describe_mlp(tensors: Tensors) -> tuple[int, Any]:
  """Returns (hidden width, argument `mlp_rows` of the model or None for the default)."""
  gate = tensors.get("blocks.0.mlp.fc1_g.weight")
  first, second = tensors["blocks.0.mlp.fc1.weight"] if gate is None else gate, tensors["blocks.0.mlp.fc2.weight"]
  if gate is None and first.shape[0] != 2 * second.shape[1]:
    return first.shape[0], None
  return second.shape[1], "swiglu_normed" if "blocks.0.mlp.norm.weight" in tensors else "swiglu"


def _describe_attention(tensors: Tensors) -> dict[str, Any]:
  """Returns the arguments of the model that the tensors of attention determine."""
  names = {name.removeprefix("blocks.0.attn.") for name in tensors if name.startswith("blocks.0.attn.")}
  biased = "query_value" if names & {"q_bias", "q_proj.bias"} else "none"
  normed = "layer" if "q_norm.bias" in names else "rms"
  return {
    "attention": "differential" if "sub_norm.weight" in names else None,
    "attention.bias": None if "qkv.bias" in names else biased,
    "attention.qk_norm": normed if "q_norm.weight" in names else None,
    "attention.output": Choice("normed") if "norm.weight" in names else None,
  }


def _describe_pool(tensors: Tensors, hints: Hints, usual: str, free: bool) -> str:
  """Returns the input of the head.

  For a model with a class token, the input is `usual`, unless a norm or the files next to the weights specify another
  input. If `free`, the code can pool in either way without such a norm.
  """
  if "attn_pool.latent" in tensors:
    return "map"
  if "cls_token" not in tensors:
    return "gap"
  if "dist_token" in tensors:
    return "distilled"
  if "fc_norm.weight" in tensors:
    return "gap"
  stated = hints.get("stated", {}).get("pool") if free or hints.get("fc_norm") is False else None
  return stated or usual


def finish_timm(arrays: Tensors, description: Description) -> Tensors:
  """Returns the tensors with position tables for patches only, if the model has registers or is a DeiT III.

  Args:
    arrays: tensors by the names of timm.
    description: the model. Layer scale identifies DeiT III.
  """
  if "pos_embed" not in arrays or description.settings()["position"] != "learned":
    return arrays
  tokens = [name for name in _TOKENS if name in arrays]
  scaled = description.settings()["layer_scale"] is not None
  deit3 = scaled and not np.any(arrays["pos_embed"][:, : len(tokens)])
  if deit3 or "reg_token" in arrays:
    for name in tokens:
      token, table = fold_token(arrays[name], arrays["pos_embed"])
      arrays = {**arrays, name: token, "pos_embed": table}
  return arrays


# Arguments that change the computation, with the only value that these code bases support.
PLAIN = {"position.at": "input", "norm.order": "pre", "norm": "layer"}


def needs_eva(description: Description) -> bool:
  """Returns true if timm builds the model with its class EVA."""
  bound = description.settings()
  return (
    bound["position.rotary"].name != "none" or bound["attention.bias"] == "query_value" or bound["norm.order"] == "post"
  )


LAYOUTS = (
  Layout(
    name="timm",
    family="vit",
    resampling="bicubic_antialiased",
    rows=TIMM_ROWS,
    recognises=lambda tensors: "patch_embed.proj.weight" in tensors and "blocks.0.attn.qkv.weight" in tensors,
    describe=describe_timm,
    canonical=restore_table,
    finish=finish_timm,
    computes=PLAIN,
    holds=lambda description: not needs_eva(description) and description.settings()["norm.order"] != "parallel",
  ),
)

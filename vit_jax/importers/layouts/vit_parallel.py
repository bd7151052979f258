"""Layout of timm's Vision Transformers with parallel branches.

The first matrices of both branches are stored as one matrix. With differential attention, the last matrices are also
stored as one matrix.
"""

import re

import numpy as np

from vit_jax.importers.formats.lazy_tensors import Tensor, Tensors, join_tensors
from vit_jax.importers.layout import Layout
from vit_jax.importers.layouts.vit_torch import (
  PLAIN,
  TIMM_ROWS,
  describe_timm,
  finish_timm,
  needs_eva,
  restore_table,
  slice_lazily,
)

_PARALLEL = {"in_norm": "norm1", "attn_out_proj": "attn.proj", "mlp_out_proj": "mlp.fc2", "ls": "ls1"}
_PARALLEL |= {"sub_norm": "attn.sub_norm"}
_LAMBDA = re.compile(r"(blocks\.\d+)\.(?:attn\.)?(lambda_\w+)")


def _split_branches(tensors: Tensors) -> Tensors:
  """Returns the tensors with the names of a block with sequential branches."""
  result: dict[str, np.ndarray | Tensor] = {}
  for name, tensor in tensors.items():
    block, _, rest = name.rpartition(".in_proj.")
    after, _, end = name.rpartition(".out_proj.")
    if block:
      width = tensors[f"{block}.in_norm.weight"].shape[0]
      hidden = tensor.shape[0] - 3 * width
      result[f"{block}.mlp.fc1.{rest}"] = slice_lazily(tensor, (hidden, *tensor.shape[1:]), slice(hidden))
      result[f"{block}.attn.qkv.{rest}"] = slice_lazily(tensor, (3 * width, *tensor.shape[1:]), slice(hidden, None))
    elif after and end == "weight":
      width, both = tensor.shape
      result[f"{after}.attn.proj.weight"] = slice_lazily(tensor, (width, width), np.s_[:, :width])
      result[f"{after}.mlp.fc2.weight"] = slice_lazily(tensor, (width, both - width), np.s_[:, width:])
    elif after:
      result[f"{after}.mlp.fc2.{end}"] = tensor  # a single bias for both matrices
    elif match := _LAMBDA.fullmatch(name):
      result[f"{match[1]}.attn.{match[2]}"] = tensor
    else:
      result[_replace_middle(name, _PARALLEL)] = tensor
  return result


def _join_branches(arrays: Tensors) -> Tensors:
  """Returns the tensors with the names of a block with parallel branches, as the inverse of `_split_branches`."""
  back = {ours: theirs for theirs, ours in _PARALLEL.items()}
  result: dict[str, np.ndarray | Tensor] = {}
  for name, array in arrays.items():
    block, _, rest = name.rpartition(".attn.qkv.")
    after, _, end = name.rpartition(".mlp.fc2.")
    if block:
      result[f"{block}.in_proj.{rest}"] = join_tensors([arrays[f"{block}.mlp.fc1.{rest}"], array])
    elif after and _find_norm(f"{after}.attn.") in arrays:
      result[f"{after}.out_proj.{end}"] = (
        array if end == "bias" else _join_columns(arrays[f"{after}.attn.proj.weight"], array)
      )
    elif match := _LAMBDA.fullmatch(name):
      result[f"{match[1]}.{match[2]}"] = array
    elif ".mlp.fc1." not in name and not (name.endswith(".attn.proj.weight") and _find_norm(name) in arrays):
      result[_replace_middle(name, back)] = array
  return result


def _find_norm(name: str) -> str:
  """Returns the name of the norm of differential attention. Without this norm, the last matrices are separate."""
  return name.rpartition(".attn.")[0] + ".attn.sub_norm.weight"


def _join_columns(one: np.ndarray | Tensor, other: np.ndarray | Tensor) -> Tensor:
  """Returns two matrices with equal numbers of rows, concatenated along their columns."""
  shape = one.shape[0], one.shape[1] + other.shape[1]
  return Tensor(shape, one.dtype, lambda: np.concatenate([np.asarray(one), np.asarray(other)], axis=1))


def _replace_middle(name: str, words: dict[str, str]) -> str:
  """Returns a name in a block with the middle replaced."""
  match = re.fullmatch(r"(blocks\.\d+\.)(.*)(\.\w+)", name)
  return f"{match[1]}{words.get(match[2], match[2])}{match[3]}" if match else name


LAYOUTS = (
  Layout(
    name="timm",
    family="vit",
    resampling="bicubic_antialiased",
    rows=TIMM_ROWS,
    recognises=lambda tensors: "patch_embed.proj.weight" in tensors and "blocks.0.in_proj.weight" in tensors,
    describe=lambda tensors, hints: describe_timm(tensors, hints, order="parallel"),
    canonical=lambda tensors, hints: restore_table(_split_branches(tensors), hints),
    finish=lambda arrays, description: finish_timm(_join_branches(arrays), description),
    computes=PLAIN | {"norm.order": "parallel", "attention.bias": "all", "mlp": "gelu"},
    holds=lambda description: not needs_eva(description) and description.settings()["norm.order"] == "parallel",
  ),
)

"""Names of timm's Vision Transformers with both branches at once, of which the matrices in front are one."""

import re

from vit_jax.importers.layout import Layout
from vit_jax.importers.tensors import Tensors, joined
from vit_jax.importers.vit_torch import PLAIN, TIMM_ROWS, describe_timm, finish_timm, part, turns, with_rows

_PARALLEL = {"in_norm": "norm1", "attn_out_proj": "attn.proj", "mlp_out_proj": "mlp.fc2", "ls": "ls1"}


def _apart(tensors: Tensors) -> Tensors:
  """The tensors with the names of a block whose branches follow each other."""
  result = {}
  for name, tensor in tensors.items():
    block, _, rest = name.rpartition(".in_proj.")
    if block:
      _, width, *_ = tensors[f"{block}.attn_out_proj.weight"].shape
      hidden = tensor.shape[0] - 3 * width
      result[f"{block}.mlp.fc1.{rest}"] = part(tensor, (hidden, *tensor.shape[1:]), slice(hidden))
      result[f"{block}.attn.qkv.{rest}"] = part(tensor, (3 * width, *tensor.shape[1:]), slice(hidden, None))
    else:
      result[_renamed(name, _PARALLEL)] = tensor
  return result


def _in_one(arrays: dict) -> dict:
  """What `_apart` does, backwards."""
  back = {ours: theirs for theirs, ours in _PARALLEL.items()}
  result = {}
  for name, array in arrays.items():
    block, _, rest = name.rpartition(".attn.qkv.")
    if block:
      result[f"{block}.in_proj.{rest}"] = joined([arrays[f"{block}.mlp.fc1.{rest}"], array])
    elif ".mlp.fc1." not in name:
      result[_renamed(name, back)] = array
  return result


def _renamed(name, words):
  """A name in a block with its middle in other words."""
  match = re.fullmatch(r"(blocks\.\d+\.)(.*)(\.\w+)", name)
  return f"{match[1]}{words.get(match[2], match[2])}{match[3]}" if match else name


LAYOUTS = (
  Layout(
    name="timm",
    family="vit",
    rows=TIMM_ROWS,
    recognises=lambda tensors: "patch_embed.proj.weight" in tensors and "blocks.0.in_proj.weight" in tensors,
    describe=lambda tensors, hints: describe_timm(tensors, hints, norm_order="parallel"),
    canonical=lambda tensors, hints: with_rows(_apart(tensors), hints),
    finish=lambda arrays, description: finish_timm(_in_one(arrays), description),
    computes=PLAIN | {"norm_order": "parallel", "qkv_bias": "all", "mlp": "gelu"},
    holds=lambda description: not turns(description) and description.arguments()["norm_order"] == "parallel",
  ),
)

"""Layouts of Vision Transformers and hybrids in Google's files: vit_jax, AugReg, and big_vision."""

import functools
import re
from collections.abc import Callable

import numpy as np

from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, Tensor, TensorRow, Tensors, flax_conv, flax_linear, flax_norm
from vit_jax.importers.layouts.vit import (
  ATTENTION,
  add_token_rows,
  compute_reduction,
  count_layers,
  describe_vit,
  fold_token,
)
from vit_jax.models import Description
from vit_jax.schema import Choice

# Rows.


def _flax_attention(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  kernels = [TensorRow(f"{theirs}/{part}/kernel", f"{ours}/{part}/kernel", "d h k -> d h k") for part in ATTENTION]
  biases = [TensorRow(f"{theirs}/{part}/bias", f"{ours}/{part}/bias", "h k -> h k") for part in ATTENTION]
  return (
    *kernels,
    *biases,
    TensorRow(f"{theirs}/out/kernel", f"{ours}/out/kernel", "h k d -> h k d"),
    *_out_bias(theirs, ours),
  )


def _out_bias(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  return (TensorRow(f"{theirs}/out/bias", f"{ours}/out/bias", "d -> d"),)


def _flax_mlp(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  return (*flax_linear(f"{theirs}/Dense_0", f"{ours}/up"), *flax_linear(f"{theirs}/Dense_1", f"{ours}/down"))


def _flax_rows(position: str, norm1: int, attention: int, norm2: int, mlp: int) -> tuple[TensorRow, ...]:
  """Returns the rows of Google's code bases.

  `position` is the name of the position table. The other arguments are the numbers of a block's children in their
  names.
  """
  block = "Transformer/encoderblock_{l}"
  return (
    TensorRow("cls", "cls", "1 1 d -> d"),
    *flax_conv("embedding", "embedding"),
    TensorRow(position, "position/table", "1 n d -> n d"),
    *flax_norm(f"{block}/LayerNorm_{norm1}", "blocks/{l}/norm1"),
    *_flax_attention(f"{block}/MultiHeadDotProductAttention_{attention}", "blocks/{l}/attention"),
    *flax_norm(f"{block}/LayerNorm_{norm2}", "blocks/{l}/norm2"),
    *_flax_mlp(f"{block}/MlpBlock_{mlp}", "blocks/{l}/mlp"),
    *flax_norm("Transformer/encoder_norm", "norm"),
    TensorRow("MAPHead_0/probe", "pool/probe", "1 1 d -> d"),
    *_flax_attention("MAPHead_0/MultiHeadDotProductAttention_0", "pool/attention"),
    *flax_norm("MAPHead_0/LayerNorm_0", "pool/norm"),
    *_flax_mlp("MAPHead_0/MlpBlock_0", "pool/mlp"),
    *flax_linear("pre_logits", "pre_logits"),
    *flax_linear("head", "head"),
    TensorRow("conv_root/kernel", "stem/root/kernel", "p q i o -> p q i o"),
    *_group_norm("gn_root", "stem/root_norm"),
    *(
      TensorRow(
        f"block{{i1}}/unit{{j1}}/{theirs}/kernel", f"stem/stages/{{i}}/{{j}}/{ours}/kernel", "p q i o -> p q i o"
      )
      for theirs, ours in (("conv1", "conv1"), ("conv2", "conv2"), ("conv3", "conv3"), ("conv_proj", "projection"))
    ),
    *(
      row
      for theirs, ours in (("gn1", "norm1"), ("gn2", "norm2"), ("gn3", "norm3"), ("gn_proj", "projection_norm"))
      for row in _group_norm(f"block{{i1}}/unit{{j1}}/{theirs}", f"stem/stages/{{i}}/{{j}}/{ours}")
    ),
  )


def _group_norm(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  return tuple(TensorRow(f"{theirs}/{part}", f"{ours}/{part}", "1 1 1 c -> c") for part in ("scale", "bias"))


# Older names in Google's files.

_TABLE = "Transformer/posembed_input/pos_embedding"


def _create_renumbering(numbers: dict[str, int]) -> Callable[[str], str]:
  """Returns a function that renumbers a block's children. A file may have either of two numberings."""
  other = {
    "LayerNorm_0": f"LayerNorm_{numbers['norm1']}",
    "LayerNorm_1": f"LayerNorm_{numbers['norm2']}",
    "LayerNorm_2": f"LayerNorm_{numbers['norm2']}",
    "MultiHeadDotProductAttention_0": f"MultiHeadDotProductAttention_{numbers['attention']}",
    "MultiHeadDotProductAttention_1": f"MultiHeadDotProductAttention_{numbers['attention']}",
    "MlpBlock_0": f"MlpBlock_{numbers['mlp']}",
    "MlpBlock_3": f"MlpBlock_{numbers['mlp']}",
  }

  def rename(name: str) -> str:
    match = re.fullmatch(r"(Transformer/encoderblock_\d+/)([^/]+)(/.*)", name)
    return f"{match[1]}{other.get(match[2], match[2])}{match[3]}" if match else name

  return rename


_PUBLISHED = {"norm1": 0, "attention": 1, "norm2": 2, "mlp": 3}  # a single counter for all children
_PER_CLASS = {"norm1": 0, "attention": 0, "norm2": 1, "mlp": 0}


def _convert_vit_jax_names(tensors: Tensors, hints: Hints) -> Tensors:
  rename = _create_renumbering(_PUBLISHED)
  result = {rename(name): tensor for name, tensor in _inline_pooling(_unstack_layers(tensors)).items()}
  result = {_TABLE if name == "Transformer/pos_embedding" else name: tensor for name, tensor in result.items()}
  return add_token_rows(result, _TABLE, ("cls",), _find_pixels(result), hints, usually=True)


def _convert_big_vision_names(tensors: Tensors, hints: Hints) -> Tensors:
  rename = _create_renumbering(_PER_CLASS)
  result = {rename(name): tensor for name, tensor in _inline_pooling(_unstack_layers(tensors)).items()}
  return add_token_rows(result, "pos_embedding", ("cls",), _find_pixels(result), hints, usually=False)


def _find_pixels(tensors: Tensors) -> int:
  """Returns the side in pixels of the square that a row of the position table represents."""
  return tensors["embedding/kernel"].shape[0] * compute_reduction(_count_units(tensors))


def _read_layer(read: Callable[[], np.ndarray], number: int) -> np.ndarray:
  return read()[number]


def _unstack_layers(tensors: Tensors) -> Tensors:
  """Returns scanned layers, Transformer/encoderblock/..., as single layers. Each stack is read once."""
  result = {}
  for name, tensor in tensors.items():
    match = re.fullmatch(r"Transformer/encoderblock/(.*)", name)
    if not match:
      result[name] = tensor
      continue
    whole = functools.cache(functools.partial(np.asarray, tensor))
    for i in range(tensor.shape[0]):
      one = Tensor(tensor.shape[1:], tensor.dtype, functools.partial(_read_layer, whole, i))
      result[f"Transformer/encoderblock_{i}/{match[1]}"] = one
  return result


def _inline_pooling(tensors: Tensors) -> Tensors:
  """Returns the tensors with attention pooling under MAPHead_0. Very old files store the pooling at the top level."""
  if "probe" not in tensors:
    return tensors
  parts = r"(probe|(MultiHeadDotProductAttention_0|LayerNorm_0|MlpBlock_0)/.*)"
  return {f"MAPHead_0/{name}" if re.fullmatch(parts, name) else name: tensor for name, tensor in tensors.items()}


def _finish_big_vision(arrays: Tensors, description: Description) -> Tensors:
  """Adds the position of the class token to the token, as the inverse of `_convert_big_vision_names`."""
  if "cls" in arrays and "pos_embedding" in arrays:
    token, table = fold_token(arrays["cls"], arrays["pos_embedding"])
    return {**arrays, "cls": token, "pos_embedding": table}
  return arrays


# Contents of a file.


def _describe_flax(tensors: Tensors, hints: Hints) -> Description:
  block = r"Transformer/encoderblock_(\d+)/"
  query = next(t for name, t in tensors.items() if re.fullmatch(block + r"[^/]+/query/kernel", name))
  hidden = next(t for name, t in tensors.items() if re.fullmatch(block + r"MlpBlock_\d/Dense_0/kernel", name))
  table = tensors.get(_TABLE, tensors.get("pos_embedding"))
  return describe_vit(
    tensors["embedding/kernel"].shape,
    (query.shape[0], count_layers(block, tensors), query.shape[1], hidden.shape[1]),
    table,
    tensors.get("head/bias"),
    hints,
    leading=int("cls" in tensors),
    stages=_count_units(tensors),
    channels=tensors["conv_root/kernel"].shape[2] if "conv_root/kernel" in tensors else None,
    pool="map" if "MAPHead_0/probe" in tensors else None,
    settings={"head.pre_logits": tensors["pre_logits/bias"].shape[0] if "pre_logits/bias" in tensors else None},
  )


def _count_units(tensors: Tensors) -> tuple[int, ...] | None:
  """Returns the units in each stage of the ResNet in front of the model, or None without a ResNet."""
  if "conv_root/kernel" not in tensors:
    return None
  units = re.compile(r"block(\d+)/unit(\d+)/conv1/kernel")
  found = [(int(m[1]), int(m[2])) for name in tensors if (m := units.fullmatch(name))]
  return tuple(max(unit for stage, unit in found if stage == i) for i in range(1, 1 + max(found, default=(0, 0))[0]))


def _is_google(tensors: Tensors) -> bool:
  return "embedding/kernel" in tensors and any(re.match(r"Transformer/encoderblock", name) for name in tensors)


def _has_old_table(tensors: Tensors) -> bool:
  return _TABLE in tensors or "Transformer/pos_embedding" in tensors


_COMPUTES = {
  "position.at": "input",
  "position": ("learned", "sincos2d", "factored", "relative"),  # the rows do not support the last two
  "position.rotary": Choice("none"),
  "norm.order": "pre",
  "norm": "layer",
  "attention.bias": "all",
  "head.class_token": (None, False),
}

LAYOUTS = (
  Layout(
    name="vit_jax",
    family="vit",
    resampling="zoom",
    rows=_flax_rows(_TABLE, **_PUBLISHED),
    recognises=lambda tensors: _is_google(tensors) and _has_old_table(tensors),
    describe=_describe_flax,
    canonical=_convert_vit_jax_names,
    computes=_COMPUTES,
    position="learned",
  ),
  Layout(
    name="big_vision",
    family="vit",
    resampling="zoom",
    rows=_flax_rows("pos_embedding", **_PER_CLASS),
    recognises=_is_google,
    describe=_describe_flax,
    canonical=_convert_big_vision_names,
    finish=_finish_big_vision,
    stores_tables=False,
    computes=_COMPUTES,
    position="learned",
  ),
)

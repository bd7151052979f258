"""Names of Vision Transformers in the state dicts of timm, DeiT and Hugging Face."""

import re
from collections.abc import Mapping

import numpy as np

from vit_jax.importers.layout import (
  Layout,
  Row,
  Tensor,
  Tensors,
  shapes,
  torch_conv,
  torch_linear,
  torch_norm,
)
from vit_jax.importers.vit import ATTENTION, count, counting_tokens, describe, fold_token, has_rows, heads_of
from vit_jax.models import Description
from vit_jax.schema import ConfigError

# Rows.


def _packed(theirs, ours):
  """Query, key and value of torch in one matrix, rows in this order, inside by head."""
  paths = tuple(f"{ours}/{part}" for part in ATTENTION)
  return (
    Row(f"{theirs}.weight", tuple(f"{path}/kernel" for path in paths), "(t h k) d -> t d h k"),
    Row(f"{theirs}.bias", tuple(f"{path}/bias" for path in paths), "(t h k) -> t h k"),
  )


def _out(theirs, ours):
  return (
    Row(f"{theirs}.weight", f"{ours}/kernel", "d (h k) -> h k d"),
    Row(f"{theirs}.bias", f"{ours}/bias", "d -> d"),
  )


TIMM_ROWS = (
  Row("cls_token", "cls", "1 1 d -> d"),
  Row("dist_token", "distillation", "1 1 d -> d"),
  Row("reg_token", "registers", "1 r d -> r d"),
  Row("pos_embed", "position/table", "1 n d -> n d"),
  *torch_conv("patch_embed.proj", "embedding"),
  *torch_norm("blocks.{l}.norm1", "blocks/{l}/norm1"),
  *_packed("blocks.{l}.attn.qkv", "blocks/{l}/attention"),
  *_out("blocks.{l}.attn.proj", "blocks/{l}/attention/out"),
  Row("blocks.{l}.ls1.gamma", "blocks/{l}/layer_scale1", "d -> d"),
  *torch_norm("blocks.{l}.norm2", "blocks/{l}/norm2"),
  *torch_linear("blocks.{l}.mlp.fc1", "blocks/{l}/mlp/up"),
  *torch_linear("blocks.{l}.mlp.fc2", "blocks/{l}/mlp/down"),
  Row("blocks.{l}.ls2.gamma", "blocks/{l}/layer_scale2", "d -> d"),
  *torch_norm("norm", "norm"),
  Row("attn_pool.latent", "pool/probe", "1 1 d -> d"),
  Row("attn_pool.q.weight", "pool/attention/query/kernel", "(h k) d -> d h k"),
  Row("attn_pool.q.bias", "pool/attention/query/bias", "(h k) -> h k"),
  Row("attn_pool.kv.weight", ("pool/attention/key/kernel", "pool/attention/value/kernel"), "(t h k) d -> t d h k"),
  Row("attn_pool.kv.bias", ("pool/attention/key/bias", "pool/attention/value/bias"), "(t h k) -> t h k"),
  *_out("attn_pool.proj", "pool/attention/out"),
  *torch_norm("attn_pool.norm", "pool/norm"),
  *torch_linear("attn_pool.mlp.fc1", "pool/mlp/up"),
  *torch_linear("attn_pool.mlp.fc2", "pool/mlp/down"),
  *torch_linear("pre_logits.fc", "pre_logits"),
  *torch_linear("head", "head"),
  *torch_linear("head_dist", "head_distillation"),
)

_HF = "vit.encoder.layer.{l}"
HF_ROWS = (
  Row("vit.embeddings.cls_token", "cls", "1 1 d -> d"),
  Row("vit.embeddings.position_embeddings", "position/table", "1 n d -> n d"),
  *torch_conv("vit.embeddings.patch_embeddings.projection", "embedding"),
  *torch_norm(f"{_HF}.layernorm_before", "blocks/{l}/norm1"),
  *(
    row
    for part in ATTENTION
    for row in (
      Row(f"{_HF}.attention.attention.{part}.weight", f"blocks/{{l}}/attention/{part}/kernel", "(h k) d -> d h k"),
      Row(f"{_HF}.attention.attention.{part}.bias", f"blocks/{{l}}/attention/{part}/bias", "(h k) -> h k"),
    )
  ),
  *_out(f"{_HF}.attention.output.dense", "blocks/{l}/attention/out"),
  *torch_norm(f"{_HF}.layernorm_after", "blocks/{l}/norm2"),
  *torch_linear(f"{_HF}.intermediate.dense", "blocks/{l}/mlp/up"),
  *torch_linear(f"{_HF}.output.dense", "blocks/{l}/mlp/down"),
  *torch_norm("vit.layernorm", "norm"),
  *torch_linear("vit.pooler.dense", "pre_logits"),
  *torch_linear("classifier", "head"),
)


# What a file holds.

_TOKENS = ("cls_token", "dist_token")
# The names of timm that compute the tanh form of GELU, which no tensor shows: some of the second SigLIP's.
_TANH = re.compile(
  r"(timm/)?vit_(base_patch32|large_patch16|so400m_patch16|giantopt_patch16)_siglip(_gap)?_(256|384|512)"
)


def _timm_names(tensors: Tensors, hints: Mapping) -> Tensors:
  patch = tensors["patch_embed.proj.weight"].shape[-1]  # DeiT-3 gives positions to the patches only
  return counting_tokens(_fold_registers(tensors, patch, hints), "pos_embed", _TOKENS, patch, hints, usually=True)


def _fold_registers(tensors, patch, hints):
  """The tensors with registers that have no rows in the position table: what stands there is added to them."""
  if "reg_token" not in tensors or "pos_embed" not in tensors:
    return tensors
  registers, table = tensors["reg_token"], tensors["pos_embed"]
  first = sum(name in tensors for name in _TOKENS)
  _, count, width = registers.shape
  if not has_rows(table, first + count, patch, hints, usually=False):
    return tensors

  def folded():
    return np.asarray(registers) + np.asarray(table)[:, first : first + count]

  def rest():
    return np.delete(np.asarray(table), slice(first, first + count), axis=1)

  return {
    **tensors,
    "reg_token": Tensor(registers.shape, registers.dtype, folded),
    "pos_embed": Tensor((1, table.shape[1] - count, width), table.dtype, rest),
  }


def _hf_names(tensors: Tensors, hints: Mapping) -> Tensors:
  bare = any(name.startswith("embeddings.") for name in tensors)  # saved without a head
  return {f"vit.{name}" if bare else name: tensor for name, tensor in tensors.items()}


def _describe_timm(tensors: Tensors, hints: Mapping) -> Description:
  width, channels, patch, _ = tensors["patch_embed.proj.weight"].shape
  depth, hidden = count(r"blocks\.(\d+)\.", tensors), tensors["blocks.0.mlp.fc1.weight"].shape[0]
  return describe(
    (patch, patch, channels, width),
    (width, depth, heads_of(width, depth, hidden, hints), hidden),
    tensors.get("pos_embed"),
    tensors.get("head.bias"),
    hints,
    leading=("cls_token" in tensors) + ("dist_token" in tensors),
    pool="map" if "attn_pool.latent" in tensors else None,
    registers=tensors["reg_token"].shape[1] if "reg_token" in tensors else None,
    pre_logits=tensors["pre_logits.fc.bias"].shape[0] if "pre_logits.fc.bias" in tensors else None,
    gelu=hints.get("gelu") or ("tanh" if _TANH.match(str(hints.get("name", ""))) else "erf"),
    layer_scale=1e-4 if "blocks.0.ls1.gamma" in tensors else None,
  )


def _describe_hf(tensors: Tensors, hints: Mapping) -> Description:
  width, channels, patch, _ = tensors["vit.embeddings.patch_embeddings.projection.weight"].shape
  depth = count(r"vit\.encoder\.layer\.(\d+)\.", tensors)
  hidden = tensors["vit.encoder.layer.0.intermediate.dense.weight"].shape[0]
  return describe(
    (patch, patch, channels, width),
    (width, depth, heads_of(width, depth, hidden, hints), hidden),
    tensors["vit.embeddings.position_embeddings"],
    tensors.get("classifier.bias"),
    hints,
    leading=1,
    pre_logits=width if "vit.pooler.dense.bias" in tensors else None,
    gelu=hints.get("gelu", "erf"),
    eps=hints.get("norm_eps", 1e-12),
  )


def _timm_finish(arrays: dict) -> dict:
  """Models with registers, and DeiT-3, known by its layer scale, have rows for the patches only in their tables."""
  if "pos_embed" not in arrays:
    return arrays
  tokens = [name for name in _TOKENS if name in arrays]
  deit3 = "blocks.0.ls1.gamma" in arrays and not np.any(arrays["pos_embed"][:, : len(tokens)])
  if deit3 or "reg_token" in arrays:
    for name in tokens:
      arrays[name], arrays["pos_embed"] = fold_token(arrays[name], arrays["pos_embed"])
  return arrays


def _hf_finish(arrays: dict) -> dict:
  if "vit.pooler.dense.bias" in arrays and "classifier.bias" in arrays:
    raise ConfigError("layout 'hf' has no place for pre_logits before a head: its classifier reads the class token")
  return arrays


def _hf_config(description: Description) -> dict:
  """What Hugging Face's library reads beside the tensors to build the model."""
  bound, ours = description.arguments(), shapes(description)
  width, heads, _ = ours["blocks/0/attention/query/kernel"]
  return {
    "architectures": ["ViTForImageClassification" if description.classes else "ViTModel"],
    "model_type": "vit",
    "hidden_size": width,
    "num_hidden_layers": len({path.split("/")[1] for path in ours if path.startswith("blocks/")}),
    "num_attention_heads": heads,
    "intermediate_size": ours["blocks/0/mlp/up/kernel"][1],
    "hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[bound["gelu"]],
    "layer_norm_eps": bound["eps"],
    "image_size": description.image_size,
    "patch_size": ours["embedding/kernel"][0],
    "num_channels": description.channels,
    "qkv_bias": True,
    "id2label": {str(i): f"LABEL_{i}" for i in range(description.classes)},
    "label2id": {f"LABEL_{i}": i for i in range(description.classes)},
  }


LAYOUTS = (
  Layout(
    name="timm",
    family="vit",
    rows=TIMM_ROWS,
    recognises=lambda tensors: "patch_embed.proj.weight" in tensors and "blocks.0.attn.qkv.weight" in tensors,
    describe=_describe_timm,
    canonical=_timm_names,
    finish=_timm_finish,
    computes={"position_at": "input"},
  ),
  Layout(
    name="hf",
    family="vit",
    rows=HF_ROWS,
    recognises=lambda tensors: any(n.endswith("embeddings.patch_embeddings.projection.weight") for n in tensors),
    describe=_describe_hf,
    canonical=_hf_names,
    beside=_hf_config,
    finish=_hf_finish,
    computes={"pool": "cls", "position_at": "input"},
  ),
)

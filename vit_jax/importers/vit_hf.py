"""Names of Vision Transformers in Hugging Face's state dicts of ViT."""

from collections.abc import Mapping

from vit_jax.importers.hub_transformers import kind
from vit_jax.importers.layout import Layout, Row, Tensors, shapes, torch_conv, torch_linear, torch_norm
from vit_jax.importers.vit import ATTENTION, count, describe, heads_of
from vit_jax.importers.vit_torch import PLAIN, out
from vit_jax.importers.vit_transformers import folded
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError

_HF = "vit.encoder.layer.{l}"
_FIRST = "embeddings.patch_embeddings.projection.weight"  # after "vit.", or alone in a file without a head
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
  *out(f"{_HF}.attention.output.dense", "blocks/{l}/attention/out"),
  *torch_norm(f"{_HF}.layernorm_after", "blocks/{l}/norm2"),
  *torch_linear(f"{_HF}.intermediate.dense", "blocks/{l}/mlp/up"),
  *torch_linear(f"{_HF}.output.dense", "blocks/{l}/mlp/down"),
  *torch_norm("vit.layernorm", "norm"),
  *torch_linear("vit.pooler.dense", "pre_logits"),
  *torch_linear("classifier", "head"),
)


def _hf_names(tensors: Tensors, hints: Mapping) -> Tensors:
  bare = any(name.startswith("embeddings.") for name in tensors)  # saved without a head
  named = {f"vit.{name}" if bare else name: tensor for name, tensor in tensors.items()}
  return folded(named, "vit.embeddings.cls_token", "vit.embeddings.position_embeddings", hints)


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


def _hf_finish(arrays: dict, description: Description) -> dict:
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
    name="hf",
    family="vit",
    resampling="bicubic",
    rows=HF_ROWS,
    recognises=lambda tensors: any(f"{prefix}{_FIRST}" in tensors for prefix in ("vit.", "")),
    describe=_describe_hf,
    canonical=_hf_names,
    beside=_hf_config,
    finish=_hf_finish,
    computes=PLAIN | {"pool": "cls", "rotary": Choice("none"), "qkv_bias": "all"},
    position="learned",
    holds=lambda description: kind(description) is None,
  ),
)

"""Layout of the image towers of SigLIP, and of SigLIP 2 for a fixed size, in Hugging Face's state dicts.

The features are the output of the attention pooling. A model with classes has a head on the mean of the patches.
"""

import numpy as np

from vit_jax.importers.hints import Hints
from vit_jax.importers.hub.transformers_config import check_model, create_config
from vit_jax.importers.layout import Layout, Tensor, TensorRow, Tensors, torch_conv, torch_linear, torch_norm
from vit_jax.importers.layouts.vit import ATTENTION, count_layers, describe_vit, find_heads
from vit_jax.importers.layouts.vit_torch import output_rows
from vit_jax.importers.layouts.vit_transformers import ONLY, create_type_check, separate_head_rows
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError

_TOWER, _POOL = "vision_model.encoder.layers.{l}", "vision_model.head"
_PLACES = "vision_model.embeddings.position_embedding.weight"
SIGLIP_ROWS = (
  *torch_conv("vision_model.embeddings.patch_embedding", "embedding"),
  TensorRow(_PLACES, "position/table", "n d -> n d"),
  *torch_norm(f"{_TOWER}.layer_norm1", "blocks/{l}/norm1"),
  *separate_head_rows(f"{_TOWER}.self_attn", "blocks/{l}/attention", ("q_proj", "k_proj", "v_proj")),
  *output_rows(f"{_TOWER}.self_attn.out_proj", "blocks/{l}/attention/out"),
  *torch_norm(f"{_TOWER}.layer_norm2", "blocks/{l}/norm2"),
  *torch_linear(f"{_TOWER}.mlp.fc1", "blocks/{l}/mlp/up"),
  *torch_linear(f"{_TOWER}.mlp.fc2", "blocks/{l}/mlp/down"),
  *torch_norm("vision_model.post_layernorm", "norm"),
  TensorRow(f"{_POOL}.probe", "pool/probe", "1 1 d -> d"),
  TensorRow(
    f"{_POOL}.attention.in_proj_weight",
    tuple(f"pool/attention/{part}/kernel" for part in ATTENTION),
    "(t h k) d -> t d h k",
  ),
  TensorRow(
    f"{_POOL}.attention.in_proj_bias", tuple(f"pool/attention/{part}/bias" for part in ATTENTION), "(t h k) -> t h k"
  ),
  *output_rows(f"{_POOL}.attention.out_proj", "pool/attention/out"),
  *torch_norm(f"{_POOL}.layernorm", "pool/norm"),
  *torch_linear(f"{_POOL}.mlp.fc1", "pool/mlp/up"),
  *torch_linear(f"{_POOL}.mlp.fc2", "pool/mlp/down"),
  *torch_linear("classifier", "head"),
)


def _convert_siglip_names(tensors: Tensors, hints: Hints) -> Tensors:
  bare = any(name.startswith("embeddings.") for name in tensors)
  if bare:
    tensors = {f"vision_model.{name}": tensor for name, tensor in tensors.items()}
  if len(tensors["vision_model.embeddings.patch_embedding.weight"].shape) == 2:
    raise ConfigError(
      "the tensors are those of SigLIP 2 for images of any shape (NaFlex), which is not supported. Use weights for a "
      "fixed "
      "size, as google/siglip2-base-patch16-224"
    )
  return tensors


def _find_unneeded(tensors: Tensors) -> dict[str, list[str]]:
  """Returns the pooling next to a classifier. Only the model without a classifier uses this pooling."""
  pooling = [name for name in tensors if name.startswith(f"{_POOL}.")]
  return {"because the classifier reads the mean of the patches": pooling} if "classifier.weight" in tensors else {}


def _describe_siglip(tensors: Tensors, hints: Hints) -> Description:
  width, channels, patch, _ = tensors["vision_model.embeddings.patch_embedding.weight"].shape
  depth = count_layers(r"vision_model\.encoder\.layers\.(\d+)\.", tensors)
  hidden, _ = tensors["vision_model.encoder.layers.0.mlp.fc1.weight"].shape
  table = tensors[_PLACES]
  return describe_vit(
    (patch, patch, channels, width),
    (width, depth, find_heads(width, depth, hidden, hints), hidden),
    Tensor((1, *table.shape), table.dtype, lambda: np.asarray(table)[None]),
    tensors.get("classifier.bias"),
    hints,
    leading=0,
    pool="map" if f"{_POOL}.probe" in tensors and "classifier.weight" not in tensors else "gap",
    gelu=hints.get("gelu", "tanh"),
    eps=hints.get("norm_eps", 1e-6),
  )


def _finish_siglip(arrays: Tensors, description: Description) -> Tensors:
  check_model(description, square=True)
  return arrays


LAYOUTS = (
  Layout(
    name="hf",
    family="vit",
    resampling="bicubic",
    rows=SIGLIP_ROWS,
    recognises=lambda tensors: any(
      name.removeprefix("vision_model.") == "embeddings.patch_embedding.weight" for name in tensors
    ),
    describe=_describe_siglip,
    canonical=_convert_siglip_names,
    finish=_finish_siglip,
    create_config=create_config,
    computes=ONLY | {"position.rotary": Choice("none"), "attention.bias": "all"},
    ignored=r"text_model\..*|logit_scale|logit_bias|(vision_model\.)?embeddings\.position_ids",
    unneeded=_find_unneeded,
    holds=create_type_check("siglip"),
    position="learned",
  ),
)

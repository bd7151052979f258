"""Layouts of Vision Transformers in Hugging Face's state dicts of ViT and DeiT, in files and in memory."""

from typing import Any

from vit_jax.importers.hints import Hints
from vit_jax.importers.hub.transformers_config import find_model_type
from vit_jax.importers.layout import Layout, TensorRow, Tensors, compute_shapes, torch_conv, torch_linear, torch_norm
from vit_jax.importers.layouts.vit import ATTENTION, count_layers, describe_vit, find_heads, replace_words
from vit_jax.importers.layouts.vit_torch import PLAIN, output_rows
from vit_jax.importers.layouts.vit_transformers import MEMORY, fold_table
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError

_FIRST = "embeddings.patch_embeddings.projection.weight"  # the prefix "vit." is optional
_MEMORY = MEMORY | {"layers": "encoder.layer", "mlp.fc1": "intermediate.dense", "mlp.fc2": "output.dense"}


def _create_rows(top: str) -> tuple[TensorRow, ...]:
  """Returns the rows of a model with the prefix `top`."""
  block = f"{top}.encoder.layer.{{l}}"
  return (
    TensorRow(f"{top}.embeddings.cls_token", "cls", "1 1 d -> d"),
    TensorRow(f"{top}.embeddings.position_embeddings", "position/table", "1 n d -> n d"),
    *torch_conv(f"{top}.embeddings.patch_embeddings.projection", "embedding"),
    *torch_norm(f"{block}.layernorm_before", "blocks/{l}/norm1"),
    *(
      row
      for part in ATTENTION
      for row in (
        TensorRow(
          f"{block}.attention.attention.{part}.weight", f"blocks/{{l}}/attention/{part}/kernel", "(h k) d -> d h k"
        ),
        TensorRow(f"{block}.attention.attention.{part}.bias", f"blocks/{{l}}/attention/{part}/bias", "(h k) -> h k"),
      )
    ),
    *output_rows(f"{block}.attention.output.dense", "blocks/{l}/attention/out"),
    *torch_norm(f"{block}.layernorm_after", "blocks/{l}/norm2"),
    *torch_linear(f"{block}.intermediate.dense", "blocks/{l}/mlp/up"),
    *torch_linear(f"{block}.output.dense", "blocks/{l}/mlp/down"),
    *torch_norm(f"{top}.layernorm", "norm"),
    *torch_linear(f"{top}.pooler.dense", "pre_logits"),
  )


HF_ROWS = (*_create_rows("vit"), *torch_linear("classifier", "head"))
# DeiT has two classifiers, or one that reads only the class token. In the second case the distillation token is a
# register here.
_BOTH = "head_distillation/kernel"
DEIT_ROWS = (
  *_create_rows("deit"),
  TensorRow("deit.embeddings.distillation_token", "distillation", "1 1 d -> d"),
  TensorRow("deit.embeddings.distillation_token", "registers", "1 r d -> r d"),
  *(row._replace(requires=_BOTH) for row in torch_linear("cls_classifier", "head")),
  *torch_linear("distillation_classifier", "head_distillation"),
  *torch_linear("classifier", "head"),
)


def _rename_tensors(top: str, tensors: Tensors) -> Tensors:
  """Returns the tensors under the names of the rows, also for a model without a head or a model in memory."""
  bare = any(name.startswith("embeddings.") for name in tensors)  # the model was saved without a head
  return replace_words({f"{top}.{name}" if bare else name: tensor for name, tensor in tensors.items()}, _MEMORY)


def _convert_hf_names(tensors: Tensors, hints: Hints) -> Tensors:
  return fold_table(
    _rename_tensors("vit", tensors), "vit.embeddings.cls_token", "vit.embeddings.position_embeddings", hints
  )


def _describe(
  top: str,
  tensors: Tensors,
  hints: Hints,
  leading: int,
  before: int | None = None,
  registers: int | None = None,
  position: str | None = None,
) -> Description:
  """Returns the model with the prefix `top`."""
  width, channels, patch, _ = tensors[f"{top}.{_FIRST}"].shape
  depth = count_layers(rf"{top}\.encoder\.layer\.(\d+)\.", tensors)
  hidden = tensors[f"{top}.encoder.layer.0.intermediate.dense.weight"].shape[0]
  return describe_vit(
    (patch, patch, channels, width),
    (width, depth, find_heads(width, depth, hidden, hints), hidden),
    tensors[f"{top}.embeddings.position_embeddings"],
    tensors.get("classifier.bias"),
    hints,
    leading=leading,
    gelu=hints.get("gelu", "erf"),
    eps=hints.get("norm_eps", 1e-12),
    before=before,
    position=position,
    settings={"head.pre_logits": width if f"{top}.pooler.dense.bias" in tensors else None, "registers": registers},
  )


def _describe_deit(tensors: Tensors, hints: Hints) -> Description:
  if "cls_classifier.bias" in tensors:
    classes = {**tensors, "classifier.bias": tensors["cls_classifier.bias"]}
    return _describe("deit", classes, hints, leading=2)
  return _describe("deit", tensors, hints, leading=1, before=2, registers=1, position="learned_all")


def _is_deit(description: Description) -> bool:
  """Returns true if a model has a distillation token, or a register with a position, which is equivalent."""
  bound = description.settings()
  token = bound["head"] == "cls" and (bound["registers"], bound["position"]) == (1, "learned_all")
  return find_model_type(description) is None and (bound["head"] == "distilled" or token)


def _finish_hf(arrays: Tensors, description: Description) -> Tensors:
  if arrays.keys() & {"vit.pooler.dense.bias", "deit.pooler.dense.bias"} and "classifier.bias" in arrays:
    raise ConfigError("layout 'hf' cannot store pre_logits before a head: its classifier reads the class token")
  return arrays


def _create_hf_config(description: Description) -> dict[str, Any]:
  """Returns the config.json that Transformers needs to build the model."""
  bound, ours = description.settings(), compute_shapes(description)
  width, heads, _ = ours["blocks/0/attention/query/kernel"]
  model = "DeiT" if _is_deit(description) else "ViT"
  classifier = "ForImageClassificationWithTeacher" if bound["head"] == "distilled" else "ForImageClassification"
  return {
    "architectures": [model + (classifier if description.classes else "Model")],
    "model_type": model.lower(),
    "hidden_size": width,
    "num_hidden_layers": len({path.split("/")[1] for path in ours if path.startswith("blocks/")}),
    "num_attention_heads": heads,
    "intermediate_size": ours["blocks/0/mlp/up/kernel"][1],
    "hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[bound["gelu"]],
    "layer_norm_eps": bound["norm.eps"],
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
    rows=DEIT_ROWS,
    recognises=lambda tensors: any(f"{top}embeddings.distillation_token" in tensors for top in ("deit.", "")),
    describe=_describe_deit,
    canonical=lambda tensors, hints: _rename_tensors("deit", tensors),
    create_config=_create_hf_config,
    finish=_finish_hf,
    computes=PLAIN | {"head": ("cls", "distilled"), "position.rotary": Choice("none"), "attention.bias": "all"},
    position="learned",
    holds=_is_deit,
  ),
  Layout(
    name="hf",
    family="vit",
    resampling="bicubic",
    rows=HF_ROWS,
    recognises=lambda tensors: any(f"{prefix}{_FIRST}" in tensors for prefix in ("vit.", "")),
    describe=lambda tensors, hints: _describe("vit", tensors, hints, leading=1),
    canonical=_convert_hf_names,
    create_config=_create_hf_config,
    finish=_finish_hf,
    computes=PLAIN | {"head": "cls", "position.rotary": Choice("none"), "attention.bias": "all"},
    position="learned",
    holds=lambda description: find_model_type(description) is None and not _is_deit(description),
  ),
)

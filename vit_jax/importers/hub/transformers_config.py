"""Transformers' config.json of DINOv2, DINOv3, SigLIP and Swin. The file of Swin is only read. The others are read and
written.

A missing key has the default of Transformers. A value that describes another model is an error.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.importers.hub import preprocessing
from vit_jax.importers.layout import compute_shapes
from vit_jax.models import Description
from vit_jax.schema import Choice, ConfigError, show

# Transformers' defaults for keys that are missing in a config.json, by model_type.
_DINOV2 = {"num_attention_heads": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "mlp_ratio": 4, "qkv_bias": True}
_DINOV2 |= {"use_swiglu_ffn": False}
_DEFAULTS = {
  "dinov2": _DINOV2,
  "dinov2_with_registers": _DINOV2 | {"num_register_tokens": 4},
  "dinov3_vit": {
    "num_attention_heads": 6,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-5,
    "num_register_tokens": 0,
    "rope_theta": 100.0,
    "pos_embed_rescale": 2.0,
    "use_gated_mlp": False,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
  },
  "siglip_vision_model": {"num_attention_heads": 12, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
}
# Keys that support a single value.
_BUILT = {"proj_bias": True, "mlp_bias": True}
_SWIN = {"patch_size": 4, "mlp_ratio": 4, "qkv_bias": True, "hidden_act": "gelu", "layer_norm_eps": 1e-5}
_SWIN |= {"use_absolute_embeddings": False}
_BIASES = {(True, True, True): "all", (True, False, True): "query_value", (False, False, False): "none"}
# Augmentation of coordinates in training: their key, our argument, and the value for null, which has no effect.
_MOVED = (("pos_embed_shift", "shift", 0.0), ("pos_embed_jitter", "jitter", 1.0), ("pos_embed_rescale", "rescale", 1.0))


def _compute_gated_width(width: int, ratio: int) -> int:
  """Returns the hidden width of DINOv2's SwiGLU:

  two thirds of the hidden width of an MLP, rounded up to a multiple of 8.
  """
  return (int(int(width * ratio) * 2 / 3) + 7) // 8 * 8


def read(config: Mapping[str, object]) -> tuple[Mapping[str, Any], dict[str, Any]]:
  """Reads the config of a DINOv2, DINOv3, SigLIP or Swin model.

  Args:
    config: the JSON values of a config.json.

  Returns:
    The config with all keys that describe the model, as keys of a ViT, and its other statements under our names. Other
    models are returned unchanged.

  Raises:
    ConfigError: for a value that describes another model.
  """
  config = _find_tower(config)
  kind = config.get("model_type")
  if kind == "swin":
    return _read_swin(config), {}
  if not isinstance(kind, str) or kind not in _DEFAULTS:
    return config, {}
  config = {**_DEFAULTS[kind], **config}
  for key, built in _BUILT.items():
    if config.get(key, built) != built:
      raise ConfigError(f"{key} is {show(config[key])}. Supported: {built!r}")
  stated: dict[str, Any] = {}
  if "num_register_tokens" in config:
    stated["registers"] = _read_registers(config)
  if kind == "dinov3_vit":
    biased = tuple(_read_flag(config, f"{part}_bias") for part in ("query", "key", "value"))
    if biased not in _BIASES:
      values = ", ".join(f"{part}_bias={value}" for part, value in zip(("query", "key", "value"), biased, strict=True))
      raise ConfigError(f"{values} is not supported. Allowed: all of them, query and value, none")
    stated["qkv_bias"], stated["rotary"] = _BIASES[biased], _read_rotary(config)
  elif "qkv_bias" in config:
    stated["qkv_bias"] = "all" if _read_flag(config, "qkv_bias") else "none"
  config = {key: value for key, value in config.items() if key != "qkv_bias"}
  for key in ("use_gated_mlp", "use_swiglu_ffn"):
    if key in config:
      stated["mlp"] = "swiglu" if _read_flag(config, key) else "gelu"
  if "mlp_ratio" in config:
    config["intermediate_size"] = _read_hidden(config)
  if stated.get("mlp") == "swiglu":  # DINOv2's SwiGLU always has SiLU
    act = config.pop("hidden_act")
    if kind == "dinov3_vit" and act not in ("silu", "swish"):
      raise ConfigError(f"hidden_act is {show(act)} with use_gated_mlp. Supported: 'silu'")
  return config, stated


def _read_swin(config: Mapping[str, object]) -> dict[str, Any]:
  """Returns the statements of a Swin config that its tensors do not determine."""
  for key, built in _SWIN.items():
    if config.get(key, built) != built:
      raise ConfigError(f"{key} is {show(config[key])}. Supported: {built!r}")
  return {key: config[key] for key in ("image_size", "patch_size", "num_channels") if key in config}


def _find_tower(config: Mapping[str, object]) -> Mapping[str, Any]:
  """Returns the config of SigLIP's image tower, if the config describes both towers."""
  tower = config.get("vision_config")
  if config.get("model_type") != "siglip":
    return config
  if not isinstance(tower, Mapping | None):
    raise ConfigError(f"vision_config is {show(tower)}. Allowed: an object of names and values")
  return {**config, **(tower or {}), "model_type": "siglip_vision_model"}


def _read_flag(config: Mapping[str, Any], key: str) -> bool | None:
  if not isinstance(config[key], bool):
    raise ConfigError(f"{key} is {show(config[key])}. Allowed: true or false")
  return config[key]


def _read_registers(config: Mapping[str, Any]) -> int | None:
  value = config["num_register_tokens"]
  if type(value) is not int or not 0 <= value <= 1024:
    raise ConfigError(f"num_register_tokens is {show(value)}. Allowed: a whole number from 0 to 1024")
  return value


def _read_hidden(config: Mapping[str, Any]) -> int | None:
  """Returns the hidden width of DINOv2. Its config states this width as a ratio."""
  ratio, width = config["mlp_ratio"], config.get("hidden_size", 768)
  if not preprocessing.is_number(ratio) or not 0 < ratio < 2**10 or type(width) is not int:
    raise ConfigError(
      f"mlp_ratio is {show(ratio)}, and hidden_size is {show(width)}. Allowed: mlp_ratio between 0 and 1024, and a "
      "whole number for hidden_size"
    )
  return _compute_gated_width(width, ratio) if _read_flag(config, "use_swiglu_ffn") else int(width * ratio)


def _read_rotary(config: Mapping[str, Any]) -> Any:
  """Returns the rotary positions of DINOv3."""
  theta, arguments = config["rope_theta"], {}
  if not preprocessing.is_number(theta) or theta <= 0:
    raise ConfigError(f"rope_theta is {show(theta)}. Allowed: a number above 0")
  for theirs, ours, still in _MOVED:
    if (value := config.get(theirs)) is None:
      continue
    if not preprocessing.is_number(value) or not still <= value <= 1e3:
      raise ConfigError(f"{theirs} is {show(value)}. Allowed: null, or a number from {still:g} to 1000")
    arguments[ours] = float(value)
  return Choice("dinov3", {"temperature": float(theta), **arguments})


# Writing.


def find_model_type(description: Description) -> str | None:
  """Returns the model of Transformers that fits a description: "dinov2", "dinov3", "siglip", or None."""
  bound = description.settings()
  token = bound["head"] == "cls" or (bound["head"] == "gap" and bool(bound.get("head.class_token")))
  scaled = bound["layer_scale"] is not None
  if bound["position.rotary"].name != "none":
    return "dinov3" if token and scaled and bound["position.rotary"].name == "dinov3" else None
  if token:
    return "dinov2" if scaled else None
  pooled = bound["head"] == "map" and not description.classes
  return "siglip" if (pooled or bound["head"] == "gap") and not bound.get("head.class_token") else None


def check_model(description: Description, square: bool) -> None:
  """Raises ConfigError for a model that has no equivalent among these models of Transformers.

  Args:
    description: the model.
    square: true if the layout requires square images.
  """
  if square and not isinstance(description.image_size, int):
    raise ConfigError(f"layout 'hf' supports position tables of square images only, not of {description.image_size}")
  turning = description.settings()["position.rotary"]
  if turning.name == "dinov3" and turning.args["normalise"] != "separate":
    raise ConfigError(
      "layout 'hf' implies position.rotary.normalise=separate, but this model has "
      f"{turning.args['normalise']}. The outputs would differ"
    )


def create_config(description: Description) -> dict[str, Any]:
  """Returns the config.json that Transformers needs to build a model."""
  bound, ours = description.settings(), compute_shapes(description)
  width, heads, _ = ours["blocks/0/attention/query/kernel"]
  hidden, gated = ours["blocks/0/mlp/up/kernel"][1], bound["mlp"] == "swiglu"
  act = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}[bound["gelu"]]
  sizes = {
    "hidden_size": width,
    "num_hidden_layers": len({path.split("/")[1] for path in ours if path.startswith("blocks/")}),
    "num_attention_heads": heads,
    "hidden_act": act,
    "layer_norm_eps": bound["norm.eps"],
    "image_size": description.image_size,
    "patch_size": ours["embedding/kernel"][0],
    "num_channels": description.channels,
  }
  match find_model_type(description):
    case "dinov2":
      named = {"architectures": ["Dinov2Model"], "model_type": "dinov2"}
      if bound["registers"]:
        named = {"architectures": ["Dinov2WithRegistersModel"], "model_type": "dinov2_with_registers"}
        named["num_register_tokens"] = bound["registers"]
      return named | sizes | {
        "mlp_ratio": _find_ratio(width, hidden, gated),
        "use_swiglu_ffn": gated,
        "qkv_bias": bound["attention.bias"] == "all",
        "layerscale_value": bound["layer_scale"],
      }  # fmt: skip
    case "dinov3":
      turning, biased = bound["position.rotary"].args, bound["attention.bias"]
      return sizes | {
        "architectures": ["DINOv3ViTModel"],
        "model_type": "dinov3_vit",
        "hidden_act": "silu" if gated else act,
        "intermediate_size": hidden,
        "num_register_tokens": bound["registers"],
        "use_gated_mlp": gated,
        "query_bias": biased != "none",
        "key_bias": biased == "all",
        "value_bias": biased != "none",
        "layerscale_value": bound["layer_scale"],
        "rope_theta": turning["temperature"],
        **{theirs: None if turning[ours] == still else turning[ours] for theirs, ours, still in _MOVED},
      }
  tower = sizes | {
    "model_type": "siglip_vision_model",
    "intermediate_size": hidden,
    "vision_use_head": bound["head"] == "map",
  }
  if not description.classes:
    return {"architectures": ["SiglipVisionModel"], **tower}
  return {"architectures": ["SiglipForImageClassification"], "model_type": "siglip", "vision_config": tower}


def _find_ratio(width: int, hidden: int, gated: bool) -> int:
  """Returns the whole number that states the hidden width in DINOv2's config."""
  of = {_compute_gated_width(width, ratio) if gated else width * ratio: ratio for ratio in range(64, 0, -1)}
  if hidden not in of:
    raise ConfigError(
      f"layout 'hf' stores hidden as mlp_ratio, a whole multiple of the width {width}, but this model has "
      f"hidden={hidden}"
    )
  return of[hidden]

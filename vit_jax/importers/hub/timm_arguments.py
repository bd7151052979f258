"""The arguments with which timm builds a Vision Transformer, written to a config.json and read from one.

timm has two classes. Only the class EVA rotates queries and keys. Some properties have no argument, such as the epsilon
of the norms or parallel blocks. They follow from the name of the architecture.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax import schema
from vit_jax.importers import layout
from vit_jax.models import Description, table
from vit_jax.models.published import modern
from vit_jax.schema import Choice, ConfigError, show

_POOL = {"cls": "token", "gap": "avg", "map": "map"}
# Arguments of a model that timm's arguments or the tensors can represent.
_SIZES = {
  "width",
  "depth",
  "heads",
  "hidden",
  "patch",
  "head",
  "registers",
  "layer_scale",
  "gelu",
  "position",
  "norm.eps",
}
_BLOCKS = {"head.class_token", "mlp", "norm.pooled", "norm.order", "position.rotary"}
_BLOCKS |= {"attention", "attention.bias", "attention.qk_norm", "attention.output"}
_KINDS = {"axial": "cat", "mixed": "mixed", "dinov3": "dinov3"}
# Arguments of timm's classes for rotary positions.
TURNING = {
  *("use_rot_pos_emb", "rope_type", "rope_temperature", "rope_grid_indexing", "rope_rotate_half", "ref_feat_shape"),
}


def create_arguments(description: Description) -> Choice | None:
  """Returns timm's name of a ViT with the arguments that it needs, or None if timm cannot build the model."""
  bound, other = description.settings(), set(description.essential())
  named = description.model.name in modern.NAMES and not description.model.name.startswith("vit5")
  if named and other <= {"layer_scale"}:
    same = description.image_size == description.published.image_size
    scale = {"init_values": bound["layer_scale"]} if other else {}
    return Choice(description.model.name, scale if same else scale | {"img_size": _image_size(description)})
  if bound.get("stages") or bound.get("head.pre_logits") or not other <= _SIZES | _BLOCKS or bound["norm"] != "layer":
    return None
  if bound["attention"] == "fused" or bound["attention.output"].name == "gated":
    return None
  if (
    bound["position.rotary"].name != "none" or bound["attention.bias"] == "query_value" or bound["norm.order"] == "post"
  ):
    return _create_eva_arguments(description, bound)
  return _create_plain_arguments(description, bound)


def _image_size(description: Description) -> Any:
  return description.image_size if isinstance(description.image_size, int) else list(description.image_size)


def _collect_sizes(description: Description, bound: Mapping[str, Any]) -> tuple[Any, ...]:
  """Returns the sizes of the model, its patch size, and the arguments that both classes of timm accept."""
  shapes = layout.compute_shapes(description)
  width, heads, _ = shapes["blocks/0/attention/query/kernel"]
  hidden, patch = shapes["blocks/0/mlp/up/kernel"][1], shapes["embedding/kernel"][0]
  depth = len({path.split("/")[1] for path in shapes if path.startswith("blocks/")})
  inside = 2 * hidden if bound["mlp"] == "swiglu" and bound["position.rotary"].name == "none" else hidden
  share = inside / width
  args = {
    "img_size": _image_size(description),
    "patch_size": patch,
    "in_chans": description.channels,
    "embed_dim": width,
    "depth": depth,
    "num_heads": heads,
    "mlp_ratio": share if int(width * share) == inside else (inside + 0.5) / width,
  }
  return (width, depth, heads, hidden), patch, args


def _create_plain_arguments(description: Description, bound: Mapping[str, Any]) -> Choice | None:
  """Returns the name and the arguments for timm's plain class, or None."""
  row, patch, args = _collect_sizes(description, bound)
  distilled, token = bound["head"] == "distilled", bound["head"] == "cls" or bool(bound.get("head.class_token"))
  if (
    bound["mlp"] == "swiglu_normed" or bound["attention.output"].name == "normed" or bound["attention.qk_norm"] == "rms"
  ):
    return None
  names = table.names("deit_*_distilled_*" if distilled else "vit_*_patch*_*")
  plain = [name for name in names if name not in modern.NAMES and table.find(name).row == (row, patch)]
  plain.sort(key=lambda name: table.find(name).image_size != description.image_size)
  base = plain[0] if plain else "deit_base_distilled_patch16_224" if distilled else "vit_base_patch16_224"
  if bound["norm.order"] == "parallel":
    base = "vit_dpwee_patch16_reg1_gap_256" if bound["attention"] == "differential" else "vit_pwee_patch16_reg1_gap_256"
  elif bound["attention"] == "differential":
    base = "vit_dwee_patch16_reg1_gap_256"
  elif bound["mlp"] == "swiglu":
    base = "vit_giant_patch14_dinov2"
  usual = schema.flatten_choices(modern.NAMES[base].defaults) if base in modern.NAMES else {}
  if not distilled:
    args |= {"global_pool": _POOL.get(bound["head"])}
    args |= {"class_token": token} if not token or usual.get("head") == "gap" else {}
    args |= {"fc_norm": bound["norm.pooled"]} if bound["head"] == "gap" or usual.get("norm.pooled") else {}
  registers = bound["registers"]
  args |= {"act_layer": "gelu_tanh"} if bound["gelu"] == "tanh" else {}
  args |= {"reg_tokens": registers} if registers or usual.get("registers") else {}
  if registers or usual.get("registers") or (bound["position"] == "learned_patches" and token):
    args["no_embed_class"] = _has_patches_only(bound)
  args |= {"pos_embed": "none"} if bound["position"] == "none" else {}
  args |= {"init_values": bound["layer_scale"]} if bound["layer_scale"] is not None or "layer_scale" in usual else {}
  args |= {"qkv_bias": False} if bound["attention.bias"] == "none" else {}
  args |= {"qk_norm": True} if bound["attention.qk_norm"] != "none" else {}
  unsaid = args.get("global_pool", "token") is None or ("layer_scale" in usual and bound["layer_scale"] is None)
  return None if unsaid else Choice(base, args)  # timm cannot distinguish None from a missing argument


def _has_patches_only(bound: Mapping[str, object]) -> bool:
  """Returns true if timm's table has rows for patches only. Registers have rows if a class token has one."""
  return bound["position"] == "learned_patches" or bool(bound["registers"] and bound["position"] == "learned")


def _create_eva_arguments(description: Description, bound: Mapping[str, Any]) -> Choice | None:
  """Returns the name and all arguments for timm's class EVA, or None."""
  _, patch, args = _collect_sizes(description, bound)
  inner = bound["attention.output"].name == "normed"
  rotary, normed, gated = bound["position.rotary"], bound["mlp"] == "swiglu_normed", bound["mlp"] != "gelu"
  bases = {1e-5: "vit_small_patch16_dinov3", 1e-6: "eva_giant_patch14_224"}  # the epsilon has no argument
  turned = rotary.args.get("registers") or rotary.args.get("normalise", "separate") != "separate"
  unscaled = bound["norm.eps"] == 1e-5 and bound["layer_scale"] is None  # timm treats None as missing
  unsaid = (
    unscaled
    or (bound["gelu"] == "tanh" and not gated)
    or bound["head"] not in _POOL
    or bound["head"] == "map"
    or bound["attention.qk_norm"] == "rms"
    or bound["attention"] == "differential"
  )
  if bound["norm.eps"] not in bases or turned or unsaid or (inner and not normed):
    return None
  token = bound["head"] == "cls" or bool(bound.get("head.class_token"))
  args |= {
    "class_token": token,
    "global_pool": _POOL[bound["head"]],
    "use_fc_norm": bound["norm.pooled"],
    "qkv_bias": bound["attention.bias"] != "none",
    "qkv_fused": not normed,
    "attn_type": "rope" if bound["attention.bias"] == "all" else "eva",
    "qk_norm": bound["attention.qk_norm"] == "layer",
    "swiglu_mlp": gated,
    # With a multiple timm has two matrices for gate and input, otherwise one.
    "swiglu_align_to": 1 if gated and rotary.name == "dinov3" else 0,
    "scale_mlp": normed,
    "scale_attn_inner": inner,
    "init_values": bound["layer_scale"],
    "num_reg_tokens": bound["registers"],
    "no_embed_class": _has_patches_only(bound),
    "use_abs_pos_emb": bound["position"] != "none",
    "use_post_norm": bound["norm.order"] == "post",
    "use_rot_pos_emb": rotary.name != "none",
  }
  if rotary.name != "none":
    args |= _create_rotary_arguments(rotary, description, patch)
  return Choice(bases[bound["norm.eps"]], args)


def _create_rotary_arguments(rotary: Choice, description: Description, patch: int) -> dict[str, Any]:
  args = rotary.args
  reference = args.get("reference")
  if reference == 0:
    sides = (description.image_size,) * 2 if isinstance(description.image_size, int) else description.image_size
    ref: list[int] | None = [side // patch for side in sides]
  else:
    ref = [reference] * 2 if reference else None
  columns_first = rotary.name == "mixed" or args.get("first") == "columns"
  return {
    "rope_type": _KINDS[rotary.name],
    "rope_temperature": args["temperature"],
    "rope_grid_indexing": "xy" if columns_first else "ij",
    "rope_rotate_half": rotary.name == "dinov3",
    "ref_feat_shape": ref,
  }


def find_rotary(arguments: Mapping[str, Any]) -> Choice | None:
  """Returns the rotary positions that arguments of timm describe.

  Args:
    arguments: arguments of timm's class.

  Returns:
    The rotary positions, or None if the arguments do not mention them.

  Raises:
    ConfigError: if the rotary positions are not supported here.
  """
  if not arguments.get("use_rot_pos_emb"):
    if found := sorted(TURNING & arguments.keys() - {"use_rot_pos_emb"}):
      raise ConfigError(f"model_args has {found[0]}={show(arguments[found[0]])}, but not use_rot_pos_emb=true")
    return Choice("none") if "use_rot_pos_emb" in arguments else None
  kind = arguments.get("rope_type", "cat")
  temperature, ref = arguments.get("rope_temperature", 10_000.0), arguments.get("ref_feat_shape")
  indexing, half = arguments.get("rope_grid_indexing", "ij"), arguments.get("rope_rotate_half", False)
  names = {theirs: ours for ours, theirs in _KINDS.items()}
  square = ref is None or (isinstance(ref, list) and len(ref) == 2 and ref[0] == ref[1] and type(ref[0]) is int)
  allowed = {
    "rope_type": (kind, isinstance(kind, str) and kind in names),
    "rope_temperature": (temperature, isinstance(temperature, int | float) and 0 < temperature < 1e9),
    "rope_grid_indexing": (indexing, indexing in (("xy",) if kind == "mixed" else ("ij", "xy"))),
    "rope_rotate_half": (half, half is (kind == "dinov3")),
    "ref_feat_shape": (ref, square and (ref is None or 0 < ref[0] <= 2**12)),
  }
  if wrong := next((key for key, (_, right) in allowed.items() if not right), None):
    raise ConfigError(f"model_args has {wrong}={show(allowed[wrong][0])}, which no model here supports")
  args: dict[str, Any] = {"temperature": float(temperature)}
  if kind == "cat":
    args |= {"first": "columns"} if indexing == "xy" else {}
    args |= {"reference": ref[0]} if ref else {}
  return Choice(names[kind], args)

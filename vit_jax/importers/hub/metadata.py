"""The JSON files that hubs store next to weights. They are read as hints, and as statements with which the model must
agree.

The files are config.json of Transformers for ViTs, config.json of timm for all families, and the image settings of
both. A value is an error if it describes a model that this package cannot build. It is never replaced by another value.
"""

import contextlib
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from vit_jax.importers.hints import Hints
from vit_jax.importers.hub import preprocessing, preprocessor, timm_arguments, timm_names, transformers_config
from vit_jax.importers.hub.preprocessing import ImageMetadata
from vit_jax.schema import ConfigError, show, suggest_nearest, texts
from vit_jax.storage import files, hub_files

# Their names -> our names. Transformers has several names for the tanh form, which differ only in rounding.
_GELU = {
  **dict.fromkeys(("gelu", "gelu_python"), "erf"),
  **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh", "gelu_pytorch_tanh"), "tanh"),
  "gelu_tanh": "tanh",  # of timm
}
_POOL = {"token": "cls", "avg": "gap", "map": "map"}
_COUNTS = {
  "hidden_size": "width",
  "num_hidden_layers": "depth",
  "num_attention_heads": "heads",
  "num_heads": "heads",
  "intermediate_size": "hidden",
  "patch_size": "patch",
  "num_channels": "channels",
}
# Further counts and switches in the arguments of timm's models: their names -> our names.
_TIMM_COUNTS = {"embed_dim": "width", "depth": "depth", "in_chans": "channels"}
_TIMM_SWITCHES = {"qkv_bias": "has_qkv_bias", "qk_norm": "has_qk_norm", "class_token": "has_class_token"}
# Arguments of timm's models that the tensors determine, or that have no effect on classification.
_SHOWN = {
  *("img_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "class_token", "reg_tokens"),
  *("init_values", "no_embed_class", "fc_norm", "window_size", "weight_init", "fix_init", "strict_img_size"),
  *("dynamic_img_size", "dynamic_img_pad", "drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate"),
  *("attn_drop_rate", "drop_path_rate", "head_init_scale"),
  *("num_reg_tokens", "use_fc_norm", "qkv_bias", "qkv_fused", "qk_norm", "attn_type", "use_abs_pos_emb"),
  *("swiglu_mlp", "swiglu_align_to", "scale_mlp", "scale_attn_inner"),
}
# {hint: name of the same value in `stated`}
_STATED_HINTS = {
  "heads": "heads",
  "norm_eps": "eps",
  "gelu": "gelu",
  "image_size": "image_size",
  "norm_order": "norm_order",
  "turning": "rotary",
}
SIDECARS = ("config.json", "preprocessor_config.json")  # names of the JSON files
_DEFAULT_NAME = re.compile(r"LABEL_\d+")  # Transformers' name of a class without a name
_NORMALISED = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}  # the default of a config


def merge_image_metadata(hints: Hints) -> ImageMetadata:
  """Returns the metadata of images and classes that hints contain.

  The crop, its size and the loss in the weight file have priority, because they are exact. The class names, mean and
  std in JSON files next to it have priority over those in the weight file, because users edit them.

  Args:
    hints: the result of `read_hints`.
  """
  inside, sidecar = hints.get("use", ImageMetadata()), hints.get("sidecar", ImageMetadata())
  exact = inside if inside.crop else sidecar
  normalised = {**inside.normalised, **sidecar.normalised}
  return ImageMetadata(normalised, exact.crop, exact.size, sidecar.labels or inside.labels, inside.loss or sidecar.loss)


def read_hints(weights: pathlib.Path) -> Hints:
  """Reads the JSON files next to a weight file.

  Args:
    weights: the weight file.

  Returns:
    Hints for `importers.recognise`. "stated" contains the values with which the model must agree. "prepared_side" is
    the size of the images that a preprocessor makes. "notes" are messages for the user. The metadata of images and
    classes are a `preprocessing.ImageMetadata`.

  Raises:
    ConfigError: if a value is invalid, or describes a model that this package cannot build.
  """
  if weights.suffix.lower() == ".npz":
    return {"name": weights.name} | _read_own_hints(weights.with_suffix(".json"))
  file, prepared = map(weights.with_name, SIDECARS)
  config, preparation = files.read_json(file) or {}, files.read_json(prepared) or {}
  with add_file_to_errors(file):
    arguments, pretrained = _read_mapping(config, "model_args"), _read_mapping(config, "pretrained_cfg")
    flat = {**config, **pretrained}
    sizes = timm_names.find_sizes(config, arguments)
    stated = _merge_statements(
      _read_transformers(config), _read_timm_arguments(arguments), _read_timm_config(config, pretrained)
    )
    derived = {key: value for key, value in sizes.items() if key not in stated}
    if not isinstance(config.get("model_type"), str | None):
      raise ConfigError(f"model_type is {show(config['model_type'])}. Allowed: a name, such as 'vit'")
    stem = _find_folder_name(weights.parent) if weights.stem in ("model", "pytorch_model") else weights.name
    images, (crop, size), labels = (
      preprocessing.parse_normalisation(flat, "mean", "std"),
      preprocessing.read_timm_crop(flat),
      _read_labels(config),
    )
    preprocessing.check_range(images, "mean", "std")
    loss = "sigmoid" if config.get("problem_type") == "multi_label_classification" else None
    built_for = _read_input_size(flat, arguments)
  with add_file_to_errors(prepared):
    prepared_as = preprocessor.read(preparation)
    images |= prepared_as.image_metadata.normalised
    if crop is None:
      crop, size = prepared_as.image_metadata.crop, prepared_as.image_metadata.size
    normed = next((arguments[key] for key in ("fc_norm", "use_fc_norm") if key in arguments), None)
  hints: Hints = {
    "name": config.get("architecture") or stem,
    "stated": stated,
    "derived": derived,
    "notes": [*_describe_alike(labels), *prepared_as.notes],
    "prepared_side": prepared_as.side,
    "sidecar": ImageMetadata(images, crop, size, labels, loss),
  }
  more: Any = {key: stated[name] for key, name in _STATED_HINTS.items() if name in stated}
  if normed is not None:
    hints["fc_norm"] = normed
  if built_for is not None:
    hints["input_size"] = built_for  # a table of positions, if there is one, has priority
  if "heads" in derived:  # valid for this width only
    hints |= {"heads": sizes["heads"], "width": sizes["width"]}
  more |= {key: config[key] for key in ("architecture", "model_type") if config.get(key) is not None}
  hints |= more
  return hints


def list_names(weights: pathlib.Path) -> list[str]:
  """Returns the names that weights may have in a hub: the one in config.json with its tag, the folder and the file.

  Args:
    weights: the weight file, or a folder that contains it.
  """
  folder = weights if weights.is_dir() else weights.parent
  config: Mapping[str, Any] = {}
  # Some formats do not need config.json. A file of this name next to them may have another form.
  with contextlib.suppress(ConfigError, OSError):
    config = files.read_json(folder / SIDECARS[0]) or {}
  pretrained = config.get("pretrained_cfg")
  tag = pretrained.get("tag") if isinstance(pretrained, dict) else None
  return [f"{config.get('architecture')}.{tag}", _find_folder_name(folder), weights.stem]


def _find_folder_name(folder: pathlib.Path) -> str:
  """Returns the name of a directory, or of the repository for a directory in the Hub's cache."""
  return hub_files.find_repository_name(folder) or folder.name


def parse_own_hints(values: object) -> Hints:
  """Returns the hints of the JSON values that this project writes: the description of the model and image metadata.

  Args:
    values: the JSON values.

  Raises:
    ConfigError: if the values are not an object.
  """
  if not isinstance(values, Mapping):
    raise ConfigError(f"{show(values)} does not describe a model. Allowed: an object of names and values")
  hints: Hints = {"description": values}
  if "use" in values:
    hints["use"] = preprocessing.from_json(values["use"])
  return hints


def _read_own_hints(file: pathlib.Path) -> Hints:
  """Returns the hints of a JSON file that `convert` wrote next to an .npz, or {} for a JSON object without our header.

  Raises ConfigError for any other content: a damaged file may have contained the normalisation and the class names.
  """
  values = files.read_json(file) or {}
  with add_file_to_errors(file):
    return parse_own_hints(values["vit_jax"]) if "vit_jax" in values else {}


def describe_normalisation(images: Mapping[str, tuple[float, ...]]) -> list[str]:
  """Returns a note with the flags of a config for images with an unusual normalisation.

  Args:
    images: "mean" and "std" of the images.
  """
  flags = [texts.format_flag(f"config.data.{key}", value) for key, value in images.items() if value != _NORMALISED[key]]
  return [f"its images were normalised with {' '.join(flags)}"] if flags else []


@contextlib.contextmanager
def add_file_to_errors(file: pathlib.Path) -> Iterator[None]:
  """Adds the name of a file to the errors that are raised inside a `with` block.

  Args:
    file: the file.
  """
  try:
    yield
  except ConfigError as error:
    raise ConfigError(f"{file}: {error}") from error


def _read_transformers(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the statements of Transformers' keys, under our names."""
  config, more = transformers_config.read(config)
  stated = {ours: _read_count(config, theirs) for theirs, ours in _COUNTS.items() if config.get(theirs) is not None}
  if config.get("image_size") is not None:
    stated["image_size"] = _read_count(config, "image_size", oblong=True)
  if config.get("hidden_act") is not None:
    stated["gelu"] = _read_name(config, "hidden_act", _GELU)
  if (eps := config.get("layer_norm_eps")) is not None:
    if not preprocessing.is_number(eps) or not 0 < eps < 1:
      raise ConfigError(f"layer_norm_eps is {show(eps)}. Allowed: a number between 0 and 1")
    stated["eps"] = float(eps)
  if config.get("num_labels") is not None:
    stated["classes"] = _read_count(config, "num_labels", low=0)
  for key, built in (("qkv_bias", True), ("pooler_act", "tanh")):
    if config.get(key, built) != built:
      raise ConfigError(f"{key} is {show(config[key])}. Supported: {built!r}")
  return stated | more


def _read_timm_arguments(arguments: Mapping[str, object]) -> dict[str, Any]:
  """Returns the statements of timm's model arguments, under our names. Unknown arguments raise ConfigError."""
  counts = {**_COUNTS, **_TIMM_COUNTS}
  stated = {ours: _read_count(arguments, theirs) for theirs, ours in counts.items() if theirs in arguments}
  if key := next((key for key in ("reg_tokens", "num_reg_tokens") if key in arguments), None):
    stated["registers"] = _read_count(arguments, key, low=0)
  stated |= {ours: _read_flag(arguments, theirs) for theirs, ours in _TIMM_SWITCHES.items() if theirs in arguments}
  if "img_size" in arguments:
    stated["image_size"] = _read_count(arguments, "img_size", oblong=True)
  if "num_classes" in arguments:
    stated["classes"] = _read_count(arguments, "num_classes", low=0)
  if "mlp_ratio" in arguments:
    stated["mlp_ratio"] = _read_ratio(arguments)
  if "init_values" in arguments:
    stated["has_layer_scale"] = arguments["init_values"] is not None
  if "act_layer" in arguments:
    stated["gelu"] = _read_name(arguments, "act_layer", _GELU)
  if "global_pool" in arguments:
    stated["pool"] = _read_name(arguments, "global_pool", _POOL)
  if arguments.get("pos_embed", "learn") not in ("learn", "none"):
    raise ConfigError(f"model_args has pos_embed={show(arguments['pos_embed'])}. Supported: 'learn' and 'none'")
  if "use_post_norm" in arguments:
    stated["norm_order"] = "post" if arguments["use_post_norm"] is True else "pre"
  if (turning := timm_arguments.find_rotary(arguments)) is not None:
    stated["rotary"] = turning
  known = _SHOWN | timm_arguments.TURNING | _COUNTS.keys() | {"act_layer", "global_pool", "use_post_norm", "pos_embed"}
  if unknown := arguments.keys() - known:
    key = min(unknown)
    raise ConfigError(f"model_args has {key}={show(arguments[key])}, which may mean another model")
  return stated


def _read_timm_config(config: Mapping[str, object], pretrained: Mapping[str, object]) -> dict[str, Any]:
  """Returns the statements of timm outside of the arguments.

  As in timm, the upper level has priority over pretrained_cfg.
  """
  stated = {}
  if config.get("global_pool") is not None:
    stated["pool"] = _read_name(config, "global_pool", _POOL)
  for values in (config, pretrained):
    if values.get("num_classes") is not None:
      return stated | {"classes": _read_count(values, "num_classes", low=0)}
  return stated


def _merge_statements(*statements: Mapping[str, object]) -> dict[str, Any]:
  """Returns all statements, or raises ConfigError if two of them contradict each other."""
  result = {}
  for statement in statements:
    for key, value in statement.items():
      if result.setdefault(key, value) != value:
        raise ConfigError(f"it states both {key}={show(result[key])} and {key}={show(value)}. Correct one of them")
  return result


def _read_input_size(config: Mapping[str, object], arguments: Mapping[str, object]) -> int | None:
  """Returns the size in pixels of the images for which timm builds a model, or None if the size is not stated."""
  if "img_size" in arguments:
    return _read_count(arguments, "img_size", oblong=True)
  sides = config.get("input_size")
  return (
    _read_count({"input_size": sides[1:]}, "input_size", oblong=True) if isinstance(sides, list) and sides[1:] else None
  )


def _read_labels(config: Mapping[str, object]) -> tuple[str, ...]:
  """Returns the class names by number, from Transformers' id2label or timm's label_names.

  The upper level has priority.
  """
  named = _read_mapping(config, "id2label")
  config = {**_read_mapping(config, "pretrained_cfg"), **config}
  listed = config.get("label_names")
  if not named and listed is None:
    return ()
  names = listed if not named else [named.get(str(i)) for i in range(len(named))]
  if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
    key = "id2label" if named else "label_names"
    raise ConfigError(f"{key} is {show(config[key])}. Allowed: a name for each class, from 0 on")
  if named:
    _check_numbers(_read_mapping(config, "label2id"), names)
  return () if all(map(_DEFAULT_NAME.fullmatch, names)) else tuple(names)


def _describe_alike(labels: Sequence[str]) -> list[str]:
  """Returns a note on classes that have the same name."""
  numbers: dict[str, list[int]] = {}
  for number, name in enumerate(labels):
    numbers.setdefault(name, []).append(number)
  alike = [f"{show(name)} ({', '.join(map(str, same))})" for name, same in numbers.items() if len(same) > 1]
  return [f"config.json gives several classes the same name: {', '.join(alike[:3])}"] if alike else []


def _check_numbers(numbers: Mapping[str, object], names: Sequence[str]) -> None:
  """Raises ConfigError for a label2id that contradicts id2label. Missing names and repeated names are allowed."""
  for name, number in numbers.items():
    text = str(number)
    known = text.isdecimal() and type(number) in (int, str) and int(text) < len(names)
    if not known or names[int(text)] != name:
      other = f"id2label calls class {text} {show(names[int(text)])}" if known else "id2label has no such class"
      raise ConfigError(
        f"label2id gives {show(name)} the number {show(number)}, but {other}. Correct one of them, or remove label2id"
      )


def _read_mapping(config: Mapping[str, object], key: str) -> Mapping[str, Any]:
  value = config.get(key)
  if not isinstance(value, Mapping | None):
    raise ConfigError(f"{key} is {show(value)}. Allowed: an object of names and values")
  return value or {}


def _read_flag(config: Mapping[str, Any], key: str) -> bool | None:
  if not isinstance(config[key], bool):
    raise ConfigError(f"{key} is {show(config[key])}. Allowed: true or false")
  return config[key]


def _read_ratio(arguments: Mapping[str, Any]) -> float | None:
  """Returns timm's mlp_ratio, a single number."""
  value = arguments["mlp_ratio"]
  if not preprocessing.is_number(value) or not 0 < value < 2**10:
    raise ConfigError(f"mlp_ratio is {show(value)}. Allowed: a number above 0 and below 1024")
  return float(value)


def _read_count(config: Mapping[str, Any], key: str, oblong: bool = False, low: int = 1) -> Any:
  """Returns a whole number of at least `low`. A pair of equal numbers (height, width) counts as one number."""
  value = config[key]
  sides = value if isinstance(value, list) and len(value) == 2 else [value]
  if not all(type(side) is int and low <= side < 2**20 for side in sides) or (len(set(sides)) > 1 and not oblong):
    raise ConfigError(f"{key} is {show(value)}. Allowed: a whole number from {low} to {2**20 - 1}")
  return sides[0] if len(set(sides)) == 1 else tuple(sides)


def _read_name(config: Mapping[str, object], key: str, table: Mapping[str, object]) -> Any:
  value = config[key]
  if not isinstance(value, str) or value not in table:
    raise ConfigError(f"{key} is {show(value)}, which is not supported.{suggest_nearest(str(value), table)}")
  return table[value]

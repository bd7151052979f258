"""Layouts of MLP-Mixer: Google's arrays, and timm's state dicts of the same weights."""

import math
import re

from vit_jax.importers import layout
from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, Tensors
from vit_jax.importers.layouts import published_sizes
from vit_jax.models import Description
from vit_jax.models.published import mixer
from vit_jax.schema import Choice, ConfigError

GOOGLE = (
  *layout.flax_conv("stem", "embedding"),
  *layout.flax_norm("MixerBlock_{l}/LayerNorm_0", "blocks/{l}/norm1"),
  *layout.flax_linear("MixerBlock_{l}/token_mixing/Dense_0", "blocks/{l}/tokens/up"),
  *layout.flax_linear("MixerBlock_{l}/token_mixing/Dense_1", "blocks/{l}/tokens/down"),
  *layout.flax_norm("MixerBlock_{l}/LayerNorm_1", "blocks/{l}/norm2"),
  *layout.flax_linear("MixerBlock_{l}/channel_mixing/Dense_0", "blocks/{l}/mlp/up"),
  *layout.flax_linear("MixerBlock_{l}/channel_mixing/Dense_1", "blocks/{l}/mlp/down"),
  *layout.flax_norm("pre_head_layer_norm", "norm"),
  *layout.flax_linear("head", "head"),
)

TIMM = (
  *layout.torch_conv("stem.proj", "embedding"),
  *layout.torch_norm("blocks.{l}.norm1", "blocks/{l}/norm1"),
  *layout.torch_linear("blocks.{l}.mlp_tokens.fc1", "blocks/{l}/tokens/up"),
  *layout.torch_linear("blocks.{l}.mlp_tokens.fc2", "blocks/{l}/tokens/down"),
  *layout.torch_norm("blocks.{l}.norm2", "blocks/{l}/norm2"),
  *layout.torch_linear("blocks.{l}.mlp_channels.fc1", "blocks/{l}/mlp/up"),
  *layout.torch_linear("blocks.{l}.mlp_channels.fc2", "blocks/{l}/mlp/down"),
  *layout.torch_norm("norm", "norm"),
  *layout.torch_linear("head", "head"),
)


def _describe_google(tensors: Tensors, hints: Hints) -> Description:
  patch, _, channels, width = tensors["stem/kernel"].shape
  patches, token_hidden = tensors["MixerBlock_0/token_mixing/Dense_0/kernel"].shape
  hidden = tensors["MixerBlock_0/channel_mixing/Dense_0/kernel"].shape[1]
  depth = _count_layers(r"MixerBlock_\d+/LayerNorm_0/scale", tensors)
  classes = tensors["head/bias"].shape[0] if "head/bias" in tensors else 0
  return _create_description(
    (width, depth, token_hidden, hidden), patch, patches, channels, classes, {"gelu": "tanh", **hints}
  )


def _describe_timm(tensors: Tensors, hints: Hints) -> Description:
  width, channels, patch, _ = tensors["stem.proj.weight"].shape
  token_hidden, patches = tensors["blocks.0.mlp_tokens.fc1.weight"].shape
  hidden = tensors["blocks.0.mlp_channels.fc1.weight"].shape[0]
  depth = _count_layers(r"blocks\.\d+\.norm1\.weight", tensors)
  classes = tensors["head.bias"].shape[0] if "head.bias" in tensors else 0
  return _create_description(
    (width, depth, token_hidden, hidden), patch, patches, channels, classes, {"gelu": "erf", **hints}
  )


def _count_layers(pattern: str, tensors: Tensors) -> int:
  return sum(re.fullmatch(pattern, name) is not None for name in tensors)


def _create_description(
  sizes: tuple[int, ...], patch: int, patches: int, channels: int, classes: int, hints: Hints
) -> Description:
  # A published name with this patch and, if possible, with this GELU. Differing values become arguments.
  rows = {name: (size, gelu) for name, (size, other, gelu) in mixer.VARIANTS.items() if other == patch}
  if not rows:
    known = sorted({other for _, other, _ in mixer.VARIANTS.values()})
    raise ConfigError(f"the file contains a Mixer with patch {patch}. Allowed: {', '.join(map(str, known))}")
  near = {name: mixer.SIZES[size] for name, (size, gelu) in rows.items() if gelu == hints["gelu"]}
  near = near or {name: mixer.SIZES[size] for name, (size, _) in rows.items()}
  name, arguments = published_sizes.find_nearest_size(near, sizes, ("width", "depth", "token_hidden", "hidden"))
  if rows[name][1] != hints["gelu"]:
    arguments["gelu"] = hints["gelu"]
  if hints.get("norm_eps", 1e-6) != 1e-6:
    arguments["eps"] = hints["norm_eps"]

  return Description(
    Choice(name, arguments), _find_image_size(patch, patches, hints.get("image_size")), classes, channels
  )


def _find_image_size(patch: int, patches: int, hint: int | tuple[int, int] | None) -> int | tuple[int, int]:
  """Returns the hint if it gives this number of patches, otherwise the side of a square."""
  rows, columns = (side // patch for side in (hint if isinstance(hint, tuple | list) else (hint or 0,) * 2))
  if hint is not None and rows * columns == patches:
    return hint
  if math.isqrt(patches) ** 2 != patches:
    raise ConfigError(f"the token MLP is made for {patches} patches, which do not form a square. Give the image size")
  return patch * math.isqrt(patches)


LAYOUTS = (
  Layout(
    name="vit_jax",
    family="mixer",
    rows=GOOGLE,
    recognises=lambda tensors: {"stem/kernel", "MixerBlock_0/token_mixing/Dense_0/kernel"} <= set(tensors),
    describe=_describe_google,
  ),
  Layout(
    name="timm",
    family="mixer",
    rows=TIMM,
    recognises=lambda tensors: {"stem.proj.weight", "blocks.0.mlp_tokens.fc1.weight"} <= set(tensors),
    describe=_describe_timm,
  ),
)

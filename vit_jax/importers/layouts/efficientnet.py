"""Layout of EfficientNet in timm. Both variants have tensors of the same names, so hints distinguish them."""

import re
from collections.abc import Sequence

from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, TensorRow, Tensors, torch_linear, torch_norm
from vit_jax.models import Description
from vit_jax.models.published.efficientnet import NAMES, SIZES, STAGES, STEM, TOP, count_blocks, round_channels
from vit_jax.schema import Choice, ConfigError

_BLOCK = ("blocks.{i}.{j}", "stages/{i}/{j}")
_FIRST = ("blocks.0.{j}", "stages/0/{j}")  # blocks without expansion, which have other names


def _norm(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  return (
    *torch_norm(theirs, ours),
    TensorRow(f"{theirs}.running_mean", f"{ours}/mean", "d -> d"),
    TensorRow(f"{theirs}.running_var", f"{ours}/var", "d -> d"),
  )


def _convolution(theirs: str, ours: str) -> TensorRow:
  return TensorRow(f"{theirs}.weight", f"{ours}/kernel", "o i p q -> p q i o")


def _pointwise(theirs: str, ours: str) -> TensorRow:
  return TensorRow(f"{theirs}.weight", f"{ours}/kernel", "o i 1 1 -> i o")


def _block(
  theirs: str, ours: str, expand: str | None, depthwise_norm: str, project: str, project_norm: str
) -> tuple[TensorRow, ...]:
  return (
    *(
      (_pointwise(f"{theirs}.{expand}", f"{ours}/expand"), *_norm(f"{theirs}.bn1", f"{ours}/expand_norm"))
      if expand
      else ()
    ),
    _convolution(f"{theirs}.conv_dw", f"{ours}/depthwise"),
    *_norm(f"{theirs}.{depthwise_norm}", f"{ours}/depthwise_norm"),
    _pointwise(f"{theirs}.se.conv_reduce", f"{ours}/squeeze"),
    TensorRow(f"{theirs}.se.conv_reduce.bias", f"{ours}/squeeze/bias", "o -> o"),
    _pointwise(f"{theirs}.se.conv_expand", f"{ours}/excite"),
    TensorRow(f"{theirs}.se.conv_expand.bias", f"{ours}/excite/bias", "o -> o"),
    _pointwise(f"{theirs}.{project}", f"{ours}/project"),
    *_norm(f"{theirs}.{project_norm}", f"{ours}/project_norm"),
  )


ROWS = (
  _convolution("conv_stem", "stem"),
  *_norm("bn1", "stem_norm"),
  *_block(*_FIRST, None, "bn1", "conv_pw", "bn2"),
  *_block(*_BLOCK, "conv_pw", "bn2", "conv_pwl", "bn3"),
  _pointwise("conv_head", "top"),
  *_norm("bn2", "top_norm"),
  *torch_linear("classifier", "head"),
)

# Names that exclude related models. MobileNets have no norm after the last convolution, "lite" models have no gates,
# and version 2 has other blocks in stage 0.
_MARKS = {
  "conv_stem.weight",
  "conv_head.weight",
  "bn2.weight",
  "blocks.0.0.conv_dw.weight",
  "blocks.0.0.se.conv_reduce.weight",
}


def _describe(tensors: Tensors, hints: Hints) -> Description:
  blocks = [
    (int(match[1]), int(match[2])) for match in map(re.compile(r"blocks\.(\d+)\.(\d+)\..*").fullmatch, tensors) if match
  ]
  count = 1 + max(i for i, _ in blocks)
  stages = tuple(1 + max((j for i, j in blocks if i == stage), default=-1) for stage in range(count))
  ends = [tensors[f"blocks.{i}.0.{'conv_pwl' if i else 'conv_pw'}.weight"].shape[0] for i in range(count)]
  widths = (tensors["conv_stem.weight"].shape[0], *ends, tensors["conv_head.weight"].shape[0])

  # The published size, or the arguments for another size.
  published = [
    name
    for name, size in SIZES.items()
    if (_compute_widths(size.width, 7), count_blocks(size.depth)) == (widths, stages)
  ]
  arguments = {} if published else {"width_factor": _find_width_factor(widths), "stages": stages}

  # The variant: TensorFlow's padding and epsilon, or PyTorch's.
  named_tf = re.search(r"(^|/)tf_|tf_efficientnet", str(hints.get("name", "")))
  same = str(hints["padding"]).lower().startswith("same") if "padding" in hints else bool(named_tf)
  name = f"{'tf_' if same else ''}efficientnet_{published[0] if published else 'b0'}"
  standard = NAMES[name].defaults["eps"]
  if (eps := float(hints.get("norm_eps", standard))) != standard:
    arguments["eps"] = eps

  classes = tensors["classifier.weight"].shape[0] if "classifier.weight" in tensors else 0
  image_size = hints.get("image_size") or NAMES[name].image_size
  return Description(Choice(name, arguments), image_size, classes, tensors["conv_stem.weight"].shape[1])


def _compute_widths(factor: float, stages: int) -> tuple[int, ...]:
  """Returns the channels of the stem, of every stage and of the top."""
  return tuple(round_channels(base, factor) for base in (STEM, *(stage.width for stage in STAGES[:stages]), TOP))


def _find_width_factor(widths: Sequence[int]) -> float:
  """Returns the factor with the fewest decimals that gives these widths."""
  low, high = ((widths[-1] + change) * 1000 // TOP for change in (-16, 16))  # thousandths, near the top's
  fitting = [n for n in range(max(low, 50), high + 1) if _compute_widths(n / 1000, len(widths) - 2) == widths]
  if not fitting:
    raise ConfigError(f"widths {list(widths)} of stem, stages and top do not belong to an EfficientNet")
  return min(fitting, key=lambda n: (n % 10 > 0, n % 100 > 0, n)) / 1000


LAYOUTS = (
  Layout(
    name="timm",
    family="efficientnet",
    rows=ROWS,
    recognises=lambda tensors: tensors.keys() >= _MARKS,
    describe=_describe,
    ignored=r"(.*\.)?num_batches_tracked",
  ),
)

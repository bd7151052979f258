"""Layouts of BiT: the names of big_vision, and those of the first published files, BiT-*.npz."""

import re

from vit_jax.importers.formats.lazy_tensors import Tensors
from vit_jax.importers.hints import Hints
from vit_jax.importers.layout import Layout, TensorRow, flax_linear
from vit_jax.importers.layouts import published_sizes
from vit_jax.models import Description
from vit_jax.models.published import bit
from vit_jax.models.resnet import WIDTH
from vit_jax.schema import Choice

_KERNEL = "p q i o -> p q i o"

# Layout of big_vision/models/bit_paper.py.


def _big_vision_norm(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  return tuple(TensorRow(f"{theirs}/{word}", f"{ours}/{word}", "1 1 1 c -> c") for word in ("scale", "bias"))


_UNIT = "block{i1}/unit{j1:02}"
_BIG_VISION = (
  TensorRow("root_block/conv_root/kernel", "root/kernel", _KERNEL),
  *(TensorRow(f"{_UNIT}/conv{n}/kernel", f"stages/{{i}}/{{j}}/conv{n}/kernel", _KERNEL) for n in (1, 2, 3)),
  *(row for n in (1, 2, 3) for row in _big_vision_norm(f"{_UNIT}/gn{n}", f"stages/{{i}}/{{j}}/norm{n}")),
  TensorRow(f"{_UNIT}/conv_proj/kernel", "stages/{i}/{j}/projection/kernel", _KERNEL),
  *_big_vision_norm("norm-pre-head", "norm"),
  *flax_linear("head", "head"),
)

# Layout of the published files. Letters denote the three convolutions of a unit, each with the norm before it.


def _bit_norm(theirs: str, ours: str) -> tuple[TensorRow, ...]:
  return (
    TensorRow(f"{theirs}/group_norm/gamma", f"{ours}/scale", "c -> c"),
    TensorRow(f"{theirs}/group_norm/beta", f"{ours}/bias", "c -> c"),
  )


_LETTERS = tuple(enumerate("abc", 1))
_BIT = (
  TensorRow("resnet/root_block/standardized_conv2d/kernel", "root/kernel", _KERNEL),
  *(
    TensorRow(f"resnet/{_UNIT}/{letter}/standardized_conv2d/kernel", f"stages/{{i}}/{{j}}/conv{n}/kernel", _KERNEL)
    for n, letter in _LETTERS
  ),
  *(row for n, letter in _LETTERS for row in _bit_norm(f"resnet/{_UNIT}/{letter}", f"stages/{{i}}/{{j}}/norm{n}")),
  TensorRow(f"resnet/{_UNIT}/a/proj/standardized_conv2d/kernel", "stages/{i}/{j}/projection/kernel", _KERNEL),
  *_bit_norm("resnet", "norm"),
  TensorRow("resnet/head/conv2d/kernel", "head/kernel", "1 1 d v -> d v"),
  TensorRow("resnet/head/conv2d/bias", "head/bias", "v -> v"),
)


def _remove_numbers(tensors: Tensors) -> Tensors:
  """Returns the tensors without the global numbers of convolutions in some files, as in standardized_conv2d_17."""
  return {re.sub(r"/standardized_conv2d_\d+/", "/standardized_conv2d/", name): t for name, t in tensors.items()}


def _describe(tensors: Tensors, hints: Hints, root: str, head: str) -> Description:
  """Returns the model from the shapes of the tensors `root` and `head`, and from the units that have tensors."""
  channels, width = tensors[root].shape[2:]
  units = {
    match.groups() for match in map(re.compile(r"(?:resnet/)?block(\d+)/unit(\d+)/.*").fullmatch, tensors) if match
  }
  blocks = [int(block) for block, _ in units]
  stages = tuple(blocks.count(block) for block in range(1, max(blocks, default=0) + 1))
  name, sizes = published_sizes.find_nearest_size(bit.SIZES, (width / WIDTH, stages), ("width_factor", "stages"))
  classes = tensors[head].shape[-1] if head in tensors else 0
  return Description(Choice(name, sizes), hints.get("image_size", 224), classes, channels)


LAYOUTS = (
  Layout(
    name="big_vision",
    family="bit",
    rows=_BIG_VISION,
    recognises=lambda tensors: "root_block/conv_root/kernel" in tensors,
    describe=lambda tensors, hints: _describe(tensors, hints, "root_block/conv_root/kernel", "head/kernel"),
  ),
  Layout(
    name="bit",
    family="bit",
    rows=_BIT,
    recognises=lambda tensors: "resnet/root_block/standardized_conv2d/kernel" in _remove_numbers(tensors),
    describe=lambda tensors, hints: _describe(
      _remove_numbers(tensors), hints, "resnet/root_block/standardized_conv2d/kernel", "resnet/head/conv2d/kernel"
    ),
    canonical=lambda tensors, hints: _remove_numbers(tensors),
  ),
)

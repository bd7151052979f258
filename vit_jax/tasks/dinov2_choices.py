"""Choices of the task `dinov2`: the masked patches, and Gram anchoring."""

import dataclasses
from collections.abc import Callable
from typing import Literal

from vit_jax.data.crops import Size
from vit_jax.schema import ConfigError, Fraction, Positive
from vit_jax.selfsup import losses, patch_masks
from vit_jax.selfsup.patch_masks import PatchMasks
from vit_jax.shapes import PRNGKey

Drawer = Callable[[PRNGKey, int, int, tuple[int, int]], PatchMasks]  # (key, groups, crops of a group, grid) -> masks


def blocks(*, ratio: tuple[Fraction, Fraction] = (0.1, 0.5), share: Fraction = 0.5, fill: bool = False) -> Drawer:
  """Returns the masks of DINOv2 and DINOv3: blocks of patches, see `patch_masks.draw_masks`.

  Args:
    ratio: limits (low, high) of the share of masked patches in a masked crop.
    share: share of the crops that are masked.
    fill: true: mask i covers exactly the upper limit of interval i, as in DINOv3. false: the ratio is drawn inside the
      interval, and a mask may cover fewer patches, as in DINOv2.

  Raises:
    ConfigError: if `ratio` is not in the order (low, high).
  """
  _check_ordered("ratio", ratio)
  return lambda key, groups, crops, grid: patch_masks.draw_masks(key, groups, crops, grid, ratio, share, fill)


def ratios(*, ratio: tuple[Fraction, Fraction] = (0.1, 0.5), shape: Literal["block", "random"] = "block") -> Drawer:
  """Returns the masks of iBOT, see `patch_masks.draw_ratio_masks`. Each crop has a mask with probability 0.5.

  Args:
    ratio: limits (low, high) of the share of masked patches. The share is drawn for each masked crop, uniformly between
      the limits.
    shape: "block" masks rectangles of patches, "random" masks single patches.

  Raises:
    ConfigError: if `ratio` is not in the order (low, high).
  """
  _check_ordered("ratio", ratio)
  middle, deviation = (ratio[0] + ratio[1]) / 2, (ratio[1] - ratio[0]) / 2
  pairs = ((0.0, 0.0), (middle, deviation))
  return lambda key, groups, crops, grid: patch_masks.draw_ratio_masks(key, groups, crops, grid, pairs, shape)


def _check_ordered(name: str, pair: tuple[float, float]) -> None:
  if pair[0] > pair[1]:
    raise ConfigError(f"{pair} goes from high to low. Write (low, high)", name)


MASKS: dict[str, Callable[..., Drawer]] = {"blocks": blocks, "ratios": ratios}


@dataclasses.dataclass(frozen=True)
class Gram:
  """Gram anchoring: a loss that keeps the similarities between patches close to those of an earlier teacher.

  Attributes:
    path: weight file or workdir of the earlier teacher.
    ema: whether to read averaged weights, or None for the default of the file.
    prefix: common prefix of the parameter names to read, or None.
    weight: weight of the loss.
    size: side of the teacher's crops in pixels. Its features are resampled to the student's grid.
    negatives: treatment of negative similarities, see `losses.gram_loss`.
    across: true also compares patches of different crops of a group, false only patches of the same crop.
  """

  path: str
  ema: bool | None
  prefix: str | None
  weight: float
  size: int | None
  negatives: losses.Negatives
  across: bool


def no_gram() -> None:
  """Returns None: no Gram anchoring."""


def anchor(
  *,
  teacher: str,
  ema: bool | None = None,
  prefix: str | None = None,
  weight: Positive = 2.0,
  size: Size | None = None,
  negatives: losses.Negatives = "keep",
  across: bool = False,
) -> Gram:
  """Returns the Gram anchoring of DINOv3 (Siméoni et al. 2025).

  Args:
    teacher: weight file or workdir of the earlier teacher.
    ema: true selects averaged weights, false raw weights. The default is as for `init.ema`.
    prefix: common prefix of the parameter names to read, for a file that contains several models.
    weight: weight of the loss.
    size: side of the teacher's crops in pixels. None: twice the size of the global crops.
    negatives: "keep", "zero" for both models, or "zero_in_teacher".
    across: true also compares patches of different crops of a group, false only patches of the same crop.
  """
  return Gram(path=teacher, ema=ema, prefix=prefix, weight=weight, size=size, negatives=negatives, across=across)


GRAMS: dict[str, Callable[..., Gram | None]] = {"none": no_gram, "anchor": anchor}

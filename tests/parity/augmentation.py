"""Parity checks of the operations of RandAugment, mixup and CutMix."""

import pathlib
import re
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from tests.parity.compare import Result, compare
from vit_jax import losses
from vit_jax.data import coordinates, mixup, randaugment


def check(file: pathlib.Path) -> Iterator[Result]:
  """Checks operations of RandAugment if the file lists any, else mixing."""
  yield from (check_operations if "ops" in np.load(file) else check_mixing)(file)


def check_operations(file: pathlib.Path) -> Iterator[Result]:
  """Checks arguments by magnitude and sign, and images. Interpolated pixels may differ by one gray level."""
  arrays = np.load(file)
  fill = tuple(arrays["fill"].tolist())
  for name in arrays["ops"]:
    op = randaugment.INCREASING[name]
    arguments = [[op.argument(m, s) for s in arrays["signs"]] for m in arrays["magnitudes"]]
    # An operation without an argument has None here and NaN in the file.
    ours, theirs = (np.nan_to_num(np.asarray(x, float), nan=-1) for x in (arguments, arrays[f"{name}_argument"]))
    yield compare(f"{file.stem}/{name}_argument", ours, theirs, 1e-12)
    for key, interpolation in (("out", "bilinear"), ("out_bicubic", "bicubic")):
      if f"{name}_{key}" in arrays:
        outputs = [[[op.apply(i, a, fill, interpolation) for i in arrays["images"]] for a in row] for row in arguments]
        tolerance = 1 if f"{name}_out_bicubic" in arrays else 0
        yield compare(f"{file.stem}/{name}_{key}", outputs, arrays[f"{name}_{key}"], tolerance)


def check_mixing(file: pathlib.Path) -> Iterator[Result]:
  """Checks mixup and CutMix with given weights and boxes. The partner is the batch in reverse order."""
  arrays = np.load(file)

  def smooth(targets, smoothing):
    return losses.smooth_labels(jnp.asarray(targets), float(smoothing))

  def labels(key, classes):
    return jax.nn.one_hot(arrays[key], int(classes))

  batch = arrays["batch_images"].transpose(0, 2, 3, 1) if "batch_images" in arrays else None
  for key in arrays:
    name = f"{file.stem}/{key.removesuffix('_out')}"
    if match := re.fullmatch(r"(targets\d+)_out", key):
      classes, share, smoothing = arrays[f"{match[1]}_classes_lam_smoothing"]
      targets = labels(f"{match[1]}_labels", classes)
      _, mixed = mixup.blend_with_partners(jnp.zeros((len(targets), 1, 1, 1)), targets, share, share)
      yield compare(name, smooth(mixed, smoothing), arrays[key], 1e-6)
    elif key == "mixup_images":
      share = arrays["mixup_lam"].item()
      mixed, targets = mixup.blend_with_partners(jnp.asarray(batch), labels("batch_labels", 10), share, share)
      yield compare(name, mixed.transpose(0, 3, 1, 2), arrays[key], 1e-6)
      yield compare(f"{file.stem}/mixup_targets", smooth(targets, 0.1), arrays["mixup_targets"], 1e-6)
    elif match := re.fullmatch(r"(cutmix\d+)_images", key):
      share, *centre = arrays[f"{match[1]}_lam_cy_cx"]
      box, kept = mixup.compute_cut_box(*batch.shape[1:3], share, np.array(centre, int))
      top, left, height, width = map(int, box)
      expected = arrays[f"{match[1]}_box"]
      yield compare(f"{file.stem}/{match[1]}_box", [top, top + height, left, left + width], expected, 0)
      mask = 1 - coordinates.is_inside(coordinates.compute_pixel_coordinates(batch, None), box).astype(np.float32)
      yield compare(f"{file.stem}/{match[1]}_lam_after", kept, arrays[f"{match[1]}_lam_after"], 1e-6)
      mixed, targets = mixup.blend_with_partners(jnp.asarray(batch), labels("batch_labels", 10), mask, kept)
      yield compare(name, mixed.transpose(0, 3, 1, 2), arrays[key], 0)
      yield compare(f"{file.stem}/{match[1]}_targets", smooth(targets, 0.1), arrays[f"{match[1]}_targets"], 1e-6)

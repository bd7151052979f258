"""Table of parity checks for files that the original programs of DINO, iBOT and DINOv2 computed."""

import json
import pathlib
from collections.abc import Iterator

import jax
import numpy as np

from tests.parity import distillation_training, mask_statistics, self_distillation
from tests.parity.compare import Result

CHECKS = {  # prefix of a file name -> its check; the longest matching prefix is used
  "ibot_head": self_distillation.check_ibot_head,
  "ibot_masks": mask_statistics.check_ibot,
  "ibot_loss": self_distillation.check_ibot,
  "v1_clip": distillation_training.check_clipping,
  "v1_knn": distillation_training.check_neighbours,
  "v1_schedules": distillation_training.check_dino,
  "v2_param_groups": distillation_training.check_groups,
  "v2_schedules": distillation_training.check_dinov2,
  "v1_dino_loss": self_distillation.check_dino,
  "v1_head": self_distillation.check_head,
  "v2_cls_centering": self_distillation.check_centering,
  "v2_cls_sinkhorn": self_distillation.check_sinkhorn,
  "v2_collate": mask_statistics.check_batches,
  "v2_masks": mask_statistics.check_blocks,
  "v2_head": self_distillation.check_head,
  "v2_koleo": self_distillation.check_koleo,
  "v2_patch_loss": self_distillation.check_patches,
  "v2_total": self_distillation.check_total,
}


def find_check(file: pathlib.Path):
  """Returns the check of a file, or None."""
  names = [name for name in CHECKS if file.stem.startswith(name)]
  return CHECKS[max(names, key=len)] if names else None


def check(file: pathlib.Path) -> Iterator[Result]:
  """Checks all numbers of a file, with float32 products at the highest precision."""
  function = find_check(file)
  if function is None:
    yield Result(file.stem, float("inf"), f"no check of this name is known; known: {', '.join(CHECKS)}")
    return
  with np.load(file, allow_pickle=False) as archive:
    arrays = {name: archive[name] for name in archive.files}
  with jax.default_matmul_precision("highest"):
    yield from function(file.stem, arrays, json.loads(str(arrays.pop("meta"))))

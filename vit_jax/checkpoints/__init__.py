"""Checkpoints of training runs: saved atomically and verified when they are read.

An unreadable checkpoint is never deleted.
"""

from vit_jax.checkpoints.aliases import check_workdir_name
from vit_jax.checkpoints.reading import (
  check_same_arrays,
  describe_damage,
  has_checkpoint,
  has_unfinished_save,
  read_description,
  read_weights,
)
from vit_jax.checkpoints.store import Checkpoints, write_weights

"""Checkpoints of training runs: saved atomically and verified when they are read.

An unreadable checkpoint is never deleted.
"""

from vit_jax.checkpoints.aliases import check_name
from vit_jax.checkpoints.reading import about, begun, damage, exist, read_weights, same
from vit_jax.checkpoints.store import Checkpoints, write_weights

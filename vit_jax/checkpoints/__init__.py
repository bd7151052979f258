"""Checkpoints: saved atomically, verified when read, never deleted because unreadable."""

from vit_jax.checkpoints.aliases import check_name
from vit_jax.checkpoints.reading import about, begun, damage, exist, read_weights, same
from vit_jax.checkpoints.store import Checkpoints, write_weights

__all__ = ["Checkpoints", "about", "begun", "check_name", "damage", "exist", "read_weights", "same", "write_weights"]

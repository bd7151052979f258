"""Schemas of config files: `recipe` for training runs, `measurement` for weights, and `Sweep` for sweeps."""

from vit_jax.config.run import (
  Checkpoint,
  Init,
  Limits,
  Log,
  Measurement,
  Mesh,
  Run,
  Target,
  dumps,
  is_measurement,
  measurement,
  recipe,
  resolve,
)
from vit_jax.config.sweep import TRIALS, Changes, Sweep, log_uniform, product, sample, uniform, zipped
from vit_jax.schema.types import required

"""Optimizers: update rules with weight decay, gradient clipping, frozen parameters and layer-wise learning rates.

`RULES` contains the update rules and `schedules.SCHEDULES` the learning rate schedules. The keyword-only parameters of
their functions are the keys of `config.optim`. Several keys select parameters with patterns for whole parameter paths
(see `trees`). A pattern that has no effect raises an error.
"""

from vit_jax.optim.averages import create_average_decay
from vit_jax.optim.points import schedule_free
from vit_jax.optim.rules import (
  RULES,
  Optimizer,
  adafactor,
  create_optimizer,
  lion,
  list_paths_without_gradients,
  nadamw,
  optimizer,
  sam,
)
from vit_jax.optim.schedules import Schedule

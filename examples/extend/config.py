"""A run with a user-defined reader, model, task and evaluation. Their four modules are in the directory of this file.

python -m vit_jax.train --config=examples/extend/config.py --workdir=runs/own --config.data.path=digits.npz
"""

import array_reader  # noqa: F401  each import registers a name
import brier_evaluation  # noqa: F401
import focal_task  # noqa: F401
import patch_mlp  # noqa: F401

from vit_jax.config import recipe, required


def get_config():
  """Returns the run: a small model on arrays of 32 px images."""
  return recipe(
    model=dict(name="patch_mlp", patch=8),
    data=dict(name="arrays", path=required, image_size=32, crop=dict(name="resize"), test_crop=dict(name="resize")),
    task=dict(name="focal", gamma=2.0),
    optim=dict(name="adamw", lr=3e-3, weight_decay=0.05, warmup="10%"),
    total="5ep",
    batch=64,
    evals=dict(test=dict(name="accuracy"), calibration=dict(name="brier")),
  )


def sweep():
  """Returns two trials with different exponents of the loss."""
  return [{"task.gamma": gamma} for gamma in (0.0, 2.0)]

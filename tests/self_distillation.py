"""Runs of `dino` and `dinov2` that are small enough for a test: digits, a ViT of one narrow block, a few steps."""

import dataclasses

import jax

from tests import runs
from vit_jax import config
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.training import build, experiment

SMALL = {
  "data.name": "digits", "model.width": "16", "model.heads": "2", "model.hidden": "16", "model.depth": "1",
  "task.prototypes": "24", "task.bottleneck": "8", "task.hidden": "12", "task.local_crops": "2", "optim.ema": "0.9",
  "optim.accumulate": "1", "batch": "16", "checkpoint.every": "3", "log.every": "2",
  "log.images": "false",
}  # fmt: skip
PATCHES = {"task.patch_prototypes": "20", "task.patch_bottleneck": "6", "task.patch_hidden": "10", "task.group": "4"}
MEASURED = {"evals.digits.every": "100%", "evals.digits.shots": "(1,)"}
KEYS = {"dino": SMALL | {"total": "12"}, "dinov2": SMALL | PATCHES | {"total": "8"}}


def run(task: str, **changes) -> config.Run:
  """Returns the shipped demonstration of a task on digits, shrunk and without evaluations.

  Args:
    task: "dino" or "dinov2".
    **changes: values by key, with __ for dots.
  """
  return dataclasses.replace(runs.run(f"configs/{task}.py:glyphs", KEYS[task], **changes), evals={})


def parts(task: str, devices: int = 8, **changes) -> experiment.Experiment:
  """Returns the shrunk run on so many of the fake devices."""
  prepare_dataset("digits")
  return build.build(run(task, **changes), jax.devices()[:devices])


def words(task: str, workdir, **changes) -> list[str]:
  """Returns the flags of `train` for the shrunk run."""
  keys = KEYS[task] | MEASURED | {k.replace("__", "."): str(v) for k, v in changes.items()}
  flags = [f"--config=configs/{task}.py:glyphs", f"--workdir={workdir}", "--no-report"]
  return [*flags, *(f"--config.{key}={value}" for key, value in keys.items())]

"""A small run for tests: digits, a CCT with one narrow block, a few steps."""

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys

import jax

from vit_jax import config
from vit_jax.config import flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.training import build, experiment

ROOT = pathlib.Path(__file__).parent.parent
SMALL = {
    "model.depth": "1", "model.width": "16", "model.heads": "1", "model.hidden": "16",
    "optim.accumulate": "1", "batch": "16", "total": "12", "checkpoint.every": "3", "log.every": "2",
    "evals.test.every": "6", "log.images": "false",
}  # fmt: skip


IMAGENET = {
    "data.image_size": "32", "model.depth": "2", "model.width": "128", "model.hidden": "256", "model.heads": "2",
    "batch": "64",
}  # fmt: skip


def run(file="configs/digits.py", small=SMALL, **changes) -> config.Run:
  """Returns the shipped digits recipe with a small model. Changes name keys with __ instead of dots."""
  overrides = small | {k.replace("__", "."): str(v) for k, v in changes.items()}
  return build.complete(config.resolve(flags.load_config(str(ROOT / file), overrides)))


def imagenet(**changes) -> config.Run:
  """Returns the ImageNet baseline with two narrow blocks and small images. Its data are not available in tests."""
  return run("configs/vit_s16_i1k.py", IMAGENET, **changes)


def parts(devices=8, **changes) -> experiment.Experiment:
  """Builds the small run on some of the fake devices."""
  prepare_dataset("digits")
  return build.build(run(**changes), jax.devices()[:devices])


def start(module: str, *words: str, devices: int = 1, **environment) -> subprocess.Popen:
  """Starts `python -m module words` on some fake devices."""
  flags = re.sub(r"device_count=\d+", f"device_count={devices}", os.environ["XLA_FLAGS"])
  return subprocess.Popen(
      [sys.executable, "-m", module, *words], cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags} | environment,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )  # fmt: skip


def command(verb: str, *words: str, devices: int = 1, **environment) -> subprocess.Popen:
  """Starts a verb like a user."""
  return start(f"vit_jax.{verb}", *words, devices=devices, **environment)


def several(*commands: list[str], devices: int = 1, **environment) -> subprocess.Popen:
  """Starts one process that runs several verbs with their flags in sequence."""
  return start("tests.several", json.dumps(commands), devices=devices, **environment)


def words(workdir, **changes) -> list[str]:
  """Returns the flags of `train` for the small run."""
  keys = SMALL | {k.replace("__", "."): str(v) for k, v in changes.items()}
  return [
    "--config=configs/digits.py",
    f"--workdir={workdir}",
    "--no-report",
    *(f"--config.{k}={v}" for k, v in keys.items()),
  ]


def finish(process: subprocess.Popen, code: int = 0, seconds: float = 300) -> str:
  """Waits for a process and returns its output. Fails if the exit code is not `code`."""
  out, err = process.communicate(timeout=seconds)
  assert process.returncode == code, f"exit {process.returncode}, expected {code}\n{out[-3000:]}\n{err[-5000:]}"
  return out + err


def changed(run: config.Run, **fields) -> config.Run:
  """Returns the run with other fields."""
  return dataclasses.replace(run, **fields)


def dying(parts: experiment.Experiment, step: int) -> experiment.Experiment:
  """Returns a run that ends with InterruptedError at a step, between two saves."""

  def die(params, poll):
    raise InterruptedError

  return dataclasses.replace(parts, evals={**parts.evals, "death": experiment.Eval(step, die)})

"""A run small enough for a test: digits, a CCT of one narrow block, a few steps."""

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
    "evals.test.every": "6",
}  # fmt: skip


IMAGENET = {
    "data.image_size": "32", "model.depth": "2", "model.width": "128", "model.hidden": "256", "model.heads": "2",
    "batch": "64",
}  # fmt: skip


def run(file="configs/digits.py", small=SMALL, **changes) -> config.Run:
  """The shipped digits recipe, shrunk; changes name keys with __ for dots."""
  overrides = small | {k.replace("__", "."): str(v) for k, v in changes.items()}
  return build.complete(config.resolve(flags.load_config(str(ROOT / file), overrides)))


def imagenet(**changes) -> config.Run:
  """The ImageNet baseline with two narrow blocks and small images; its data are not here."""
  return run("configs/vit_s16_i1k.py", IMAGENET, **changes)


def parts(devices=8, **changes) -> experiment.Experiment:
  """The shrunk run on so many of the fake devices."""
  prepare_dataset("digits")
  return build.build(run(**changes), jax.devices()[:devices])


def start(module: str, *words: str, devices: int = 1, **environment) -> subprocess.Popen:
  """`python -m module words`, on so many fake devices."""
  flags = re.sub(r"device_count=\d+", f"device_count={devices}", os.environ["XLA_FLAGS"])
  return subprocess.Popen(
      [sys.executable, "-m", module, *words], cwd=ROOT, env=os.environ | {"XLA_FLAGS": flags} | environment,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
  )  # fmt: skip


def command(verb: str, *words: str, devices: int = 1, **environment) -> subprocess.Popen:
  """A verb as a user starts it."""
  return start(f"vit_jax.{verb}", *words, devices=devices, **environment)


def several(*commands: list[str], devices: int = 1, **environment) -> subprocess.Popen:
  """Verbs with their flags, one after the other in one process."""
  return start("tests.several", json.dumps(commands), devices=devices, **environment)


def words(workdir, **changes) -> list[str]:
  """Flags of `train` for the shrunk run."""
  keys = SMALL | {k.replace("__", "."): str(v) for k, v in changes.items()}
  return [
    "--config=configs/digits.py",
    f"--workdir={workdir}",
    "--no-report",
    *(f"--config.{k}={v}" for k, v in keys.items()),
  ]


def finish(process: subprocess.Popen, code: int = 0, seconds: float = 300) -> str:
  """Waits; everything it printed. Fails unless it exits with `code`."""
  out, err = process.communicate(timeout=seconds)
  assert process.returncode == code, f"exit {process.returncode}, expected {code}\n{out[-3000:]}\n{err[-5000:]}"
  return out + err


def changed(run: config.Run, **fields) -> config.Run:
  """The run with other fields."""
  return dataclasses.replace(run, **fields)


def dying(parts: experiment.Experiment, step: int) -> experiment.Experiment:
  """A run that ends with InterruptedError at a step, between two saves."""

  def die(params, poll):
    raise InterruptedError

  return dataclasses.replace(parts, evals={**parts.evals, "death": experiment.Eval(step, die)})

"""Runs a verb with a fault: python -m tests.campaigns.faulty FAULT NUMBER VERB FLAGS

- stuck: the main thread of this process stops before step NUMBER, and its other threads continue
- nan: the parameters on this process's devices are not numbers from step NUMBER on
- bug: step NUMBER raises an exception
- input: the read with this number does not end
- bad: the read with this number returns bytes that are not an image
- slow: each wait for a save takes NUMBER additional seconds

Reads are counted from 0 in each process.
"""

import dataclasses
import importlib
import itertools
import sys
import time

import jax

from vit_jax import checkpoints, cli
from vit_jax.data import catalog
from vit_jax.training import build, experiment


def main() -> None:
  """Injects the fault and runs the verb."""
  fault, number, verb, *words = sys.argv[1:]
  sys.argv = [verb, *words]
  if fault in ("input", "bad"):
    build.build.__defaults__ = (make_open_split(int(number), fault == "bad"), *build.build.__defaults__[1:])
  elif fault == "slow":
    wait = checkpoints.Checkpoints.wait
    checkpoints.Checkpoints.wait = lambda store: (time.sleep(int(number)), wait(store))[1]
  else:
    experiment.Experiment.compile = wrap_compile(experiment.Experiment.compile, FAULTS[fault], int(number))
  cli.run_verb(importlib.import_module(f"vit_jax.{verb}").main)


def wrap_compile(compile, fault, number):
  """Returns `Experiment.compile` with a fault before step `number`."""

  def faulty(parts):
    step, calls = compile(parts), iter(range(10**9))

    def train_step(state, *arguments):
      return step(fault(state) if next(calls) == number else state, *arguments)

    return train_step

  return faulty


def make_open_split(number, bad):
  """Returns `catalog.open_split` with sources in which read `number` of this process blocks or is not an image."""
  reads = itertools.count()

  def open_split(choice, split):
    source = catalog.open_split(choice, split)

    def read(i):
      faulty = next(reads) == number
      while faulty and not bad:
        time.sleep(1)
      return (b"no image", source.label(i)) if faulty else source.read(i)

    return dataclasses.replace(source, read=read)

  return open_split


def stuck(state):
  """Sleeps without end."""
  while True:
    time.sleep(1)


def nan(state):
  """Returns the state with NaN in all parameters on this process's devices."""

  def fill_with_nan(array):
    parts = [shard.data * float("nan") for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)

  with jax.transfer_guard("allow"):
    return dataclasses.replace(state, params={path: fill_with_nan(array) for path, array in state.params.items()})


def bug(state):
  """Raises an AssertionError."""
  raise AssertionError("a bug")


FAULTS = {"stuck": stuck, "nan": nan, "bug": bug}

if __name__ == "__main__":
  main()

"""A verb with something wrong in it: python -m tests.campaigns.faulty FAULT NUMBER VERB FLAGS

stuck: the main thread of this process stops before step NUMBER, its other threads live. nan: the parameters on this
process's devices are no numbers from step NUMBER on. bug: an exception at step NUMBER. input: the read with this
number never ends. bad: the read with this number gives no image. slow: each wait for a save takes NUMBER seconds more.
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
  """Puts the fault in and runs the verb."""
  fault, number, verb, *words = sys.argv[1:]
  sys.argv = [verb, *words]
  if fault in ("input", "bad"):
    build.build.__defaults__ = (opening(int(number), fault == "bad"), *build.build.__defaults__[1:])
  elif fault == "slow":
    wait = checkpoints.Checkpoints.wait
    checkpoints.Checkpoints.wait = lambda store: (time.sleep(int(number)), wait(store))[1]
  else:
    experiment.Experiment.compile = compiling(experiment.Experiment.compile, FAULTS[fault], int(number))
  cli.run_verb(importlib.import_module(f"vit_jax.{verb}").main)


def compiling(compile, fault, number):
  """`Experiment.compile` of a step that has the fault."""

  def faulty(parts):
    step, calls = compile(parts), iter(range(10**9))

    def train_step(state, *arguments):
      return step(fault(state) if next(calls) == number else state, *arguments)

    return train_step

  return faulty


def opening(number, bad):
  """Returns `catalog.open_split` with sources in which read `number` of this process blocks or gives no image."""
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
  """Never returns."""
  while True:
    time.sleep(1)


def nan(state):
  """The state with no numbers on this process's devices."""

  def spoiled(array):
    parts = [shard.data * float("nan") for shard in array.addressable_shards]
    return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)

  with jax.transfer_guard("allow"):
    return dataclasses.replace(state, params={path: spoiled(array) for path, array in state.params.items()})


def bug(state):
  """Raises."""
  raise AssertionError("a bug")


FAULTS = {"stuck": stuck, "nan": nan, "bug": bug}

if __name__ == "__main__":
  main()

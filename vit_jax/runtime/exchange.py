"""What the processes of a run tell each other: texts through JAX's coordinator, and arrays, `from_first`, by devices.

All functions here are called by all processes in the same order. They wait for the others without a limit of their
own: the watchdog has one, and `missing` tells it for whom, but for the arrays.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Mapping

import jax
import numpy as np
from jax._src import distributed  # its store has no public name; Orbax uses it the same way
from jax.experimental import multihost_utils

from vit_jax import trees
from vit_jax.schema import ConfigError

ROOT = "vit_jax/"
_numbers = itertools.count()
_waiting = ("", frozenset())  # name of an exchange, and the processes that have not come to it yet


class Store:
  """The coordinator's table of texts: what one process writes, all can read."""

  def __init__(self):
    self._client = distributed.global_state.client

  def set(self, key: str, text: str) -> None:
    """Writes or replaces."""
    self._client.key_value_set(ROOT + key, text, allow_overwrite=True)

  def propose(self, key: str, text: str) -> None:
    """Writes unless a process was first."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._client.key_value_set(ROOT + key, text)

  def all(self, folder: str) -> dict[str, str]:
    """Texts by the rest of their keys, of those that begin with `folder`."""
    start = f"{ROOT}{folder}/"
    return {key.removeprefix(start): text for key, text in self._client.key_value_dir_get(start)}


def count() -> int:
  """How many processes the run has. As for all here, JAX's devices are not asked for, which would take them."""
  return distributed.global_state.num_processes if distributed.global_state.client else 1


def alone() -> bool:
  """Whether there is one process."""
  return count() == 1


def process() -> int:
  """The number of this process."""
  return distributed.global_state.process_id if distributed.global_state.client else 0


def gather(text: str, name: str) -> list[str]:
  """The texts of all processes, in their order; `name` says in errors what for."""
  global _waiting
  if alone():
    return [text]
  store, folder = Store(), f"exchange/{next(_numbers)}-{name}"
  store.set(f"{folder}/{process()}", text)
  wanted, pause = range(count()), 0.01
  while True:
    texts = store.all(folder)
    absent = frozenset(i for i in wanted if str(i) not in texts)
    _waiting = (name, absent)
    if not absent:
      return [texts[str(i)] for i in wanted]
    time.sleep(pause)
    pause = min(0.5, 1.5 * pause)


def missing() -> str:
  """For whom this process waits, in words; empty if for nobody."""
  name, absent = _waiting
  return f"waiting at {name!r} for process {', '.join(map(str, sorted(absent)))}" if absent else ""


def barrier(name: str) -> None:
  """Returns when all processes are here."""
  gather("", name)


def agree(problem: str | None) -> None:
  """Raises ConfigError in every process if any of them has a problem, so that none waits for one that has left."""
  problems = [json.loads(text) for text in gather(json.dumps(problem), "agreement")]
  if problem:
    raise ConfigError(problem)
  for number, other in enumerate(problems):
    if other:
      raise ConfigError(f"process {number}: {other}")


def compare(facts: Mapping) -> None:
  """ConfigError in every process unless all have the same facts, a JSON object; says which differs in what."""
  texts = gather(json.dumps(facts, sort_keys=True), "comparison")
  first = json.loads(texts[0])
  differences = [
    f"process {number}: {line}"
    for number, text in enumerate(texts)
    if text != texts[0]
    for line in trees.diff(first, json.loads(text))[:5]
  ]
  if differences:
    listed = "\n  ".join(differences)
    raise ConfigError(
      f"the processes of this run were not started alike; of process 0 -> of the other:\n  {listed}\n"
      "Start the same command with the same code and the same data on all"
    )


def from_first(values: np.ndarray) -> np.ndarray:
  """The first process's values, bit for bit, on all; every process gives an array of that shape and type.

  The devices carry them: there may be a value for each image of a data set, too many for the coordinator.
  """
  if alone():
    return values
  # As bytes: JAX would round float64.
  content = multihost_utils.broadcast_one_to_all(np.frombuffer(values.tobytes(), np.uint8))
  return np.frombuffer(np.asarray(content, np.uint8).tobytes(), values.dtype).reshape(values.shape)

"""Exchange between processes: of texts through JAX's coordinator, and of arrays through the devices.

All processes must call these functions in the same order. The functions wait for the other processes without a time
limit. The watchdog enforces a limit. `describe_missing` reports the processes for which this process waits, except
during the exchange of arrays.
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
_waiting = ("", frozenset())  # name of an exchange, and the processes that have not reached it yet


class Store:
  """The coordinator's table of texts. Each process can read what any process writes."""

  def __init__(self) -> None:
    client = distributed.global_state.client
    assert client is not None, "one process has no coordinator"
    self._client = client

  def set(self, key: str, text: str) -> None:
    """Writes a text, and replaces an earlier one.

    Args:
      key: key of the text. Slashes separate folders.
      text: the text.
    """
    self._client.key_value_set(ROOT + key, text, allow_overwrite=True)

  def propose(self, key: str, text: str) -> None:
    """Writes a text unless another process has already written one.

    Args:
      key: key of the text. Slashes separate folders.
      text: the text.
    """
    with contextlib.suppress(jax.errors.JaxRuntimeError):
      self._client.key_value_set(ROOT + key, text)

  def read_all(self, folder: str) -> dict[str, str]:
    """Returns all texts of a folder.

    Args:
      folder: the first part of the keys.

    Returns:
      {key without the folder: text}.
    """
    start = f"{ROOT}{folder}/"
    return {key.removeprefix(start): text for key, text in self._client.key_value_dir_get(start)}


def count_processes() -> int:
  """Returns the number of processes of the run.

  Like all functions of this module, it does not query JAX's devices, because a query would acquire them.
  """
  return distributed.global_state.num_processes if distributed.global_state.client else 1


def is_alone() -> bool:
  """Returns true if the run has one process."""
  return count_processes() == 1


def process_index() -> int:
  """Returns the index of this process."""
  return distributed.global_state.process_id if distributed.global_state.client else 0


def gather_texts(text: str, name: str) -> list[str]:
  """Returns the texts of all processes, in the order of their indices.

  Args:
    text: the text of this process.
    name: the purpose of the exchange, for error messages.
  """
  global _waiting
  if is_alone():
    return [text]
  store, folder = Store(), f"exchange/{next(_numbers)}-{name}"
  store.set(f"{folder}/{process_index()}", text)
  wanted, pause = range(count_processes()), 0.01
  while True:
    texts = store.read_all(folder)
    absent = frozenset(i for i in wanted if str(i) not in texts)
    _waiting = (name, absent)
    if not absent:
      return [texts[str(i)] for i in wanted]
    time.sleep(pause)
    pause = min(0.5, 1.5 * pause)


def describe_missing() -> str:
  """Returns a phrase that names the processes for which this process waits, or "" if it does not wait."""
  name, absent = _waiting
  return f"waiting at {name!r} for process {', '.join(map(str, sorted(absent)))}" if absent else ""


def barrier(name: str) -> None:
  """Waits until all processes have called this function with the same name."""
  gather_texts("", name)


def raise_together(problem: str | None) -> None:
  """Raises an error on every process if any process has a problem, so that no process waits for a process that has
  ended.

  Args:
    problem: the problem of this process, or None.

  Raises:
    ConfigError: at least one process has a problem.
  """
  problems = [json.loads(text) for text in gather_texts(json.dumps(problem), "agreement")]
  if problem:
    raise ConfigError(problem)
  for number, other in enumerate(problems):
    if other:
      raise ConfigError(f"process {number}: {other}")


def check_equal_facts(facts: Mapping[str, object]) -> None:
  """Checks that all processes have the same facts.

  Args:
    facts: a JSON object.

  Raises:
    ConfigError: raised on every process if the facts differ. The message lists up to 5 differences of each process.
  """
  texts = gather_texts(json.dumps(facts, sort_keys=True), "comparison")
  first = json.loads(texts[0])
  differences = [
    f"process {number}: {line}"
    for number, text in enumerate(texts)
    if text != texts[0]
    for line in trees.list_differences(first, json.loads(text))[:5]
  ]
  if differences:
    listed = "\n  ".join(differences)
    raise ConfigError(
      f"the processes of this run were started differently. Process 0 -> the other process:\n  {listed}\n"
      "Start the same command with the same code and the same data on all hosts"
    )


def copy_from_first(values: np.ndarray) -> np.ndarray:
  """Returns the first process's values on all processes, bit for bit.

  The devices transport the values. There may be one value per image of a dataset, which is too much for the
  coordinator.

  Args:
    values: an array. All processes must pass arrays of the same shape and type.
  """
  if is_alone():
    return values
  # The array is sent as bytes because JAX would round float64.
  content = multihost_utils.broadcast_one_to_all(np.frombuffer(values.tobytes(), np.uint8))
  return np.frombuffer(np.asarray(content, np.uint8).tobytes(), values.dtype).reshape(values.shape)

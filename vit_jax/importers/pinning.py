"""Commits of the weights on the Hugging Face Hub that a run reads.

A branch of a repository moves. Therefore a run records the commit of the weights with which it started, in its config:
`hf:OWNER/NAME` becomes `hf:OWNER/NAME@main:COMMIT`. A restart uses the recorded commit, although its command names only
the branch. The trials of a sweep share the commits with which the sweep started.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from vit_jax import runtime
from vit_jax.config import Run
from vit_jax.schema import ConfigError, to_plain
from vit_jax.storage import hub_addresses, hub_files

GROUPS = ("init", "task")  # groups of the config with keys that name weights


def find_addresses(run: Run) -> dict[str, str]:
  """Returns the addresses on the Hub that a run names: {key of the config: address}.

  Args:
    run: a resolved run.

  Raises:
    ConfigError: an address is invalid. The message starts with its key.
  """
  values = to_plain(run)
  result = {
    key: text
    for group in GROUPS
    for key, text in _list_values(values[group], group)
    if isinstance(text, str) and hub_addresses.is_address(text)
  }
  for key, text in result.items():
    try:
      hub_addresses.parse_address(text)
    except ConfigError as error:
      raise ConfigError(f"config.{key}: {error}") from error
  return result


def _list_values(values: object, key: str) -> Iterator[tuple[str, object]]:
  """Yields the values in a group of a config with their keys, such as "task.gram.teacher"."""
  if isinstance(values, Mapping):
    for name, value in values.items():
      yield from _list_values(value, f"{key}.{name}")
  else:
    yield key, values


def pin_weights(run: Run, stored: Mapping[str, Any]) -> dict[str, str]:
  """Returns the addresses on the Hub that a run names, with their commits.

  Args:
    run: a resolved run.
    stored: the config of the run in the workdir as JSON values, or {} for a new run. Its commits are used for the same
      repository and revision.

  Returns:
    {key of the config: address with a commit}.

  Raises:
    ConfigError: a commit cannot be found. The message starts with the key.
  """
  before = {key: value for group in GROUPS for key, value in _list_values(stored.get(group), group)}
  return {key: _pin_address(f"config.{key}", text, [before.get(key)]) for key, text in find_addresses(run).items()}


def pin_together(run: Run, stored: Mapping[str, Any]) -> dict[str, str]:
  """Returns the result of `pin_weights` in the first process, on all processes of a run.

  Without this function, processes could find different commits if a branch moves during the start. All processes must
  call this function.

  Args:
    run: a resolved run.
    stored: the config of the run in the workdir, see `pin_weights`. Only that of the first process is used.

  Raises:
    ConfigError: the processes name different weights, or a commit cannot be found. All processes raise the error.
  """
  # Compare the addresses first, because the pins of the first process replace those of all processes.
  runtime.check_equal_facts({f"config.{key}": address for key, address in find_addresses(run).items()})
  return _share_pins(lambda: pin_weights(run, stored))


def pin_flag(flag: str, path: str) -> str:
  """Returns the value of a flag for weights with the commit that the first process finds, on all processes of a run.

  Weights on the Hub are downloaded to the cache of each host. All processes must call this function with the same path.

  Args:
    flag: the flag, for error messages.
    path: an address, or any other path, which is returned unchanged.

  Raises:
    ConfigError: a process cannot find the commit or download the weights. All processes raise the error.
  """
  if not hub_files.is_address(path):
    return path
  pinned = _share_pins(lambda: {flag: _pin_address(flag, path, ())})[flag]
  runtime.raise_together(_find_download_problem(flag, pinned))
  return pinned


def _share_pins(find: Callable[[], dict[str, str]]) -> dict[str, str]:
  """Returns the pins that the first process finds, or raises its error on all processes."""
  pins, problem = {}, None
  if runtime.process_index() == 0:
    try:
      pins = find()
    except ConfigError as error:
      problem = str(error)
  runtime.raise_together(problem)
  return dict(json.loads(runtime.gather_texts(json.dumps(pins), "pins")[0]))


def pin_shared_weights(run: Run, pins: list[str]) -> dict[str, str]:
  """Returns the addresses on the Hub that a run names, with commits that several runs share.

  Args:
    run: a resolved run.
    pins: addresses with the commits that are already in use. New addresses with commits are appended.

  Returns:
    {key of the config: address with a commit}.

  Raises:
    ConfigError: a commit cannot be found. The message starts with the key.
  """
  result = {}
  for key, text in find_addresses(run).items():
    result[key] = _pin_address(f"config.{key}", text, pins)
    if result[key] != text and result[key] not in pins:
      pins.append(result[key])
  return result


def _pin_address(place: str, text: str, pins: Iterable[object]) -> str:
  """Returns an address with a commit: the commit in `pins`, or else the current one."""
  try:
    return next((str(pin) for pin in pins if is_pin(pin, text)), None) or hub_files.pin_commit(text)
  except ConfigError as error:
    raise ConfigError(f"{place}: {error}") from error


def is_pin(pinned: object, text: str) -> bool:
  """Returns whether an address has a commit and names the same repository and revision as another address.

  Args:
    pinned: a value of a stored config.
    text: an address without a commit.
  """
  if not isinstance(pinned, str) or not hub_addresses.is_address(pinned):
    return False
  address = hub_addresses.parse_address(pinned)
  return address.commit is not None and str(address._replace(commit=None)) in (text, f"{text}@main")


def download(pins: Mapping[str, str], needs: Callable[[str], bool] = lambda key: True) -> str | None:
  """Downloads weights to the cache of this host.

  Args:
    pins: {key of the config: address}.
    needs: function that returns whether the weights of a key are needed.

  Returns:
    The reason for which weights cannot be downloaded, or None.
  """
  problems = (_find_download_problem(f"config.{key}", pins[key]) for key in filter(needs, pins))
  return next(filter(None, problems), None)


def _find_download_problem(place: str, address: str) -> str | None:
  """Downloads weights. Returns the reason for which they cannot be downloaded, or None."""
  try:
    hub_files.resolve_weights(address)
  except ConfigError as error:
    return f"{place}: {error}"
  return None

"""Commits of the weights on the Hugging Face Hub that a run reads.

A branch of a repository moves. Therefore a run records the commit of the weights with which it started, in its config:
`hf:OWNER/NAME` becomes `hf:OWNER/NAME@main:COMMIT`. A restart uses the recorded commit, although its command names only
the branch.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.config import Run
from vit_jax.schema import ConfigError
from vit_jax.storage import hub_files

# Keys of the config that name weights: the group, and the key inside the group.
KEYS = (("init", "from"), ("task", "teacher"))


def find_unpinned(run: Run) -> dict[str, str]:
  """Returns the addresses on the Hub whose commit a run does not specify: {key of the config: address}.

  Args:
    run: a resolved run.

  Raises:
    ConfigError: an address is invalid. The message starts with its key.
  """
  values: dict[str, Mapping[str, Any]] = {"init": {"from": run.init.from_}, "task": run.task.args}
  result = {}
  for group, key in KEYS:
    text = values[group].get(key)
    if isinstance(text, str) and hub_files.is_address(text):
      try:
        if not hub_files.parse_address(text).commit:
          result[f"{group}.{key}"] = text
      except ConfigError as error:
        raise ConfigError(f"config.{group}.{key}: {error}") from error
  return result


def pin_weights(run: Run, stored: Mapping[str, Any]) -> dict[str, str]:
  """Returns the addresses on the Hub that a run names without a commit, with their commits.

  Args:
    run: a resolved run.
    stored: the config of the run in the workdir as JSON values, or {} for a new run. Its commits are used for the same
      repository and revision.

  Returns:
    {key of the config: address with a commit}.

  Raises:
    ConfigError: a commit cannot be found. The message starts with the key.
  """
  result = {}
  for key, text in find_unpinned(run).items():
    group, _, name = key.partition(".")
    before = (stored.get(group) or {}).get(name)
    try:
      result[key] = str(before) if is_pin(before, text) else hub_files.pin_commit(text)
    except ConfigError as error:
      raise ConfigError(f"config.{key}: {error}") from error
  return result


def is_pin(pinned: object, text: str) -> bool:
  """Returns whether an address has a commit and names the same repository and revision as another address.

  Args:
    pinned: a value of a stored config.
    text: an address without a commit.
  """
  if not isinstance(pinned, str) or not hub_files.is_address(pinned):
    return False
  address = hub_files.parse_address(pinned)
  return address.commit is not None and str(address._replace(commit=None)) in (text, f"{text}@main")


def download(pins: Mapping[str, str], keys: Iterable[str]) -> str | None:
  """Downloads weights to the cache of this host.

  Args:
    pins: {key of the config: address}.
    keys: keys of the weights to download, if they are in `pins`.

  Returns:
    The reason for which weights cannot be downloaded, or None.
  """
  for key in keys:
    try:
      if key in pins:
        hub_files.resolve_weights(pins[key])
    except ConfigError as error:
      return f"config.{key}: {error}"
  return None

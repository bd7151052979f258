"""Reading of the weights and the description of the checkpoints in a workdir, without changing files."""

import contextlib
import errno
import functools
import gc
import hashlib
import json
import logging
import math
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax import runtime
from vit_jax.checkpoints import aliases, digests
from vit_jax.schema import ConfigError
from vit_jax.storage import errors, paths

MAX_READ_BACK_BYTES = 2**24  # larger arrays are not read back after a save, except the smallest array
# Weights are rejected before they are read if they need more memory than both limits.
MAX_COMPRESSION, MIN_SUSPICIOUS_BYTES = 10, 2**28
CheckDescription = Callable[[dict[str, Any]], None]  # raises ValueError if the description of a state cannot be used


def read_description(workdir: pathlib.Path, check: CheckDescription = lambda about: None) -> dict[str, Any] | None:
  """Returns the description of the newest usable state of a workdir without reading the state, or None.

  Args:
    workdir: directory of a run.
    check: raises ValueError if a description cannot be used.

  Returns:
    The JSON object that was passed to `Checkpoints.save`, or None if no checkpoint has a usable description.

  Example:
    import pathlib
    from vit_jax import checkpoints

    workdir = pathlib.Path("/tmp/run")
    if checkpoints.has_checkpoint(workdir):
      print(checkpoints.read_description(workdir))
  """
  for step in reversed(list_steps(workdir)):
    sealed, problem = try_read(functools.partial(read_sealed_description, workdir / "checkpoints" / str(step), check))
    if not problem:
      return sealed["run"]
  return None


def list_steps(workdir: pathlib.Path) -> list[int]:
  """Returns the steps with a complete checkpoint in a workdir, oldest first.

  Args:
    workdir: directory of a run.
  """
  # In a bucket a folder is not renamed when it is complete. An object marks a complete checkpoint instead.
  is_complete = ocp.utils.is_checkpoint_finalized if paths.is_in_bucket(workdir) else pathlib.Path.exists
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    folders = [path for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()]
    return sorted(int(path.name) for path in folders if is_complete(path))
  return []


def has_checkpoint(workdir: pathlib.Path) -> bool:
  """Returns true if a workdir contains a complete checkpoint. A killed start may leave an empty folder without one.

  Args:
    workdir: directory of a run.
  """
  return bool(list_steps(workdir))


def has_unfinished_save(workdir: pathlib.Path) -> bool:
  """Returns true if a workdir contains only files of a first save that failed or was killed.

  Args:
    workdir: an existing directory.
  """
  if not {path.name for path in workdir.iterdir()} <= {"checkpoints", "lock"}:
    return False
  with contextlib.suppress(FileNotFoundError):
    return all(ocp.utils.is_tmp_checkpoint(epath.Path(path)) for path in (workdir / "checkpoints").iterdir())
  return True


def read_weights(workdir: pathlib.Path, averaged: bool | None = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Reads the weights of the newest readable checkpoint to the host, without the optimizer state.

  A warning names newer checkpoints that cannot be read.

  Args:
    workdir: directory of a run.
    averaged: true reads the moving average of the weights, false the trained weights. None reads the average if the
      task of the run learns from it, as in self-distillation, else the trained weights.

  Returns:
    ({path: array} of the parameters, description of the state).

  Raises:
    ConfigError: no checkpoint can be read, or it contains no moving average.
  """
  part, bad = {True: "ema/", False: "params/", None: None}[averaged], []
  for step in reversed(list_steps(workdir)):
    folder = workdir / "checkpoints" / str(step)
    weights, problem = try_read(functools.partial(_read_part, folder, part))
    if not problem:
      for unreadable, why in bad:
        logging.warning("%s cannot be read (%s). The weights of step %d are used", unreadable, why, step)
      return weights
    bad.append((folder, problem))
  reasons = "".join(f"\n  {unreadable}: {why}" for unreadable, why in bad)
  raise ConfigError(f"{workdir} has no checkpoint that can be read{reasons}")


def describe_damage(workdir: str) -> str:
  """Returns the reason why the newest state of a workdir cannot be read, for the end of a sentence.

  Args:
    workdir: directory of a run.

  Returns:
    The reason in brackets, or "" if the state can be read or does not exist.

  Raises:
    OSError: the bucket failed.
  """
  if not (steps := list_steps(paths.resolve_path(workdir))):
    return ""
  folder = paths.resolve_path(workdir) / "checkpoints" / str(steps[-1])
  _, problem = try_read(lambda: _read_part(folder, ""))
  return f" ({folder} cannot be read: {problem})" if problem else ""


def _read_part(folder: pathlib.Path, part: str | None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Returns the verified arrays with a path that starts with `part`, and the description of the state.

  None selects the moving average if the task of the run learns from it, otherwise the trained weights.
  """
  sealed = read_sealed_description(folder)
  if part is None:
    part = "ema/" if sealed["run"].get("weights") == "average" else "params/"
  with aliases.alias_folder(folder) as usable:
    tree = ocp.PyTreeCheckpointHandler().metadata(usable / "state")
    wanted = {path: leaf for path, leaf in tree.items() if path.startswith(part)}
    if not wanted:
      raise ConfigError(
        f"step {folder.name} does not contain {part.rstrip('/')}. Train with config.optim.ema to store averaged weights"
      )
    _check_size(usable, wanted)
    arrays = _read_arrays(usable / "state", wanted)
  verify_fingerprint(jax.jit(digests.fingerprint)(arrays), sealed)
  return {path.removeprefix(part): array for path, array in arrays.items()}, sealed["run"]


def _check_size(folder: pathlib.Path, wanted: Mapping[str, Any]) -> None:
  """Raises ValueError if arrays would need far more memory than the folder on a disk contains, by their metadata."""
  if paths.is_in_bucket(folder):
    return
  # A part of an array is stored as a chunk, and a whole chunk is read. A manipulated chunk is larger than its array.
  needed = sum(
    max(math.prod(leaf.shape), math.prod(getattr(leaf.storage, "chunk_shape", None) or ()))
    * np.dtype(leaf.dtype).itemsize
    for leaf in wanted.values()
  )
  held = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
  if needed > max(MIN_SUSPICIOUS_BYTES, MAX_COMPRESSION * held):
    raise ValueError(f"the files have {held:,} bytes, but the arrays need {needed:,}")


def check_readable(folder: pathlib.Path) -> None:
  """Reads a part of a save, to check at low cost that the save can be restored.

  Reads the description, the manifest and the bytes of two arrays: the smallest array, and the largest array of at most
  `MAX_READ_BACK_BYTES`. In a run of several processes, the larger array is probably divided among the processes.

  Args:
    folder: folder of the save, as yielded by `aliases.alias_folder`.

  Raises:
    ValueError: the save is incomplete or contains other bytes than the state that was saved.
    Exception: Orbax raises errors of many types.
  """
  sealed, tree = read_sealed_description(folder), ocp.PyTreeCheckpointHandler().metadata(folder / "state")
  if absent := sorted(sealed["fingerprint"].keys() - tree.keys()):
    raise ValueError(f"{', '.join(absent[:3])} is missing from the checkpoint")
  sizes = {path: math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for path, leaf in tree.items()}
  ordered = sorted(sizes, key=lambda path: (sizes[path], path))
  chosen = {ordered[0], *[path for path in ordered if sizes[path] <= MAX_READ_BACK_BYTES][-1:]}
  arrays = _read_arrays(folder / "state", {path: tree[path] for path in chosen})
  verify_fingerprint({path: digests.fingerprint_on_host(array) for path, array in arrays.items()}, sealed)


def _read_arrays(state: pathlib.Path, wanted: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """Reads the arrays that the metadata `wanted` describes into host memory."""
  items = {path: np.empty(leaf.shape, leaf.dtype) for path, leaf in wanted.items()}
  on_host = {path: ocp.RestoreArgs(restore_type=np.ndarray) for path in items}
  # The handlers are used directly because a manager's `restore` waits for all other processes at its end.
  arguments = ocp.args.PyTreeRestore(item=items, restore_args=on_host, partial_restore=True)
  return ocp.PyTreeCheckpointHandler().restore(state, args=arguments)


def check_same_arrays(arrays: dict[str, np.ndarray], path: str | None) -> dict[str, np.ndarray]:
  """Checks that all processes have read the same arrays, possibly from different disks, and returns them.

  Args:
    arrays: {path: array} that this process has read.
    path: file or workdir of the arrays, for the error message.

  Returns:
    `arrays`, unchanged.

  Raises:
    ConfigError: the arrays of two processes differ.
  """
  process_digests = [] if runtime.is_alone() else runtime.gather_texts(digests.sha256_on_host(arrays)[:12], "weights")
  if len(set(process_digests)) > 1:
    raise ConfigError(
      f"{path} differs between hosts (SHA-256 {', '.join(process_digests)}). Copy one file to all hosts"
    )
  return arrays


def try_read(read: Callable[[], object], default: object = None) -> tuple[Any, str | None]:
  """Calls `read` and returns its result, or the reason why a checkpoint cannot be read.

  Args:
    read: reads a checkpoint.
    default: result to return after a failure.

  Returns:
    (result of `read`, None), or (`default`, reason).

  Raises:
    ConfigError: `read` raised it, because the user can fix the error.
    OSError: the bucket failed, which gives no information on the checkpoint.
  """
  try:
    with _silence_threads():
      return read(), None
  except ConfigError:
    raise
  except Exception as error:  # Orbax also raises plain Exception, and each exception has the same meaning here
    number = errors.get_bucket_errno(error)
    if number is not None and number != errno.ENOENT:  # an error of the bucket, not of the checkpoint
      raise OSError(number, f"a checkpoint cannot be read: {' '.join(str(error).split())[:200]}", "gs://") from error
    sys.unraisablehook = errors.hide_request_errors
    text, _, _ = str(error).partition(" See full TensorStore details")
    return default, f"{type(error).__name__}: {' '.join(text.split())[:200]}"


def seal_description(about: dict[str, Any], fingerprint: dict[str, jax.Array]) -> dict[str, Any]:
  """Returns the JSON object that is stored with a state.

  Args:
    about: JSON values that describe the state.
    fingerprint: {path: digest} of the state's arrays.

  Returns:
    The description, the fingerprint, and the SHA-256 of both.
  """
  sealed = {"run": about, "fingerprint": _fingerprint_values(fingerprint)}
  return sealed | {"sha256": _sha256(sealed)}


def _fingerprint_values(fingerprint: Mapping[str, jax.Array | int]) -> dict[str, int]:
  return {path: int(value) for path, value in jax.device_get(fingerprint).items()}


def _sha256(sealed: Mapping[str, object]) -> str:
  """Returns the SHA-256 of a state's description and fingerprint."""
  covered = {"run": sealed["run"], "fingerprint": sealed["fingerprint"]}
  return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def read_sealed_description(folder: pathlib.Path, check: CheckDescription = lambda about: None) -> dict[str, Any]:
  """Reads and checks the object that `seal_description` returned for a checkpoint. Old checkpoints have no SHA-256.

  Args:
    folder: folder of the checkpoint.
    check: raises ValueError if the description cannot be used.

  Returns:
    The object with the keys "run" and "fingerprint".

  Raises:
    ValueError: the object is damaged or cannot be used.
    Exception: Orbax raises errors of many types.
  """
  sealed = ocp.JsonCheckpointHandler().restore(folder / "about")
  if not isinstance(sealed["run"], dict) or not isinstance(sealed["fingerprint"], dict):
    raise ValueError("the metadata of the state are not a JSON object")
  if sealed.get("sha256", _sha256(sealed)) != _sha256(sealed):
    raise ValueError("the metadata of the state differ from those that were saved")
  check(sealed["run"])
  return sealed


def verify_fingerprint(fingerprint: Mapping[str, jax.Array | int], sealed: dict[str, Any]) -> None:
  """Checks that the fingerprint of arrays equals the saved one.

  Args:
    fingerprint: {path: digest} of the arrays.
    sealed: the result of `read_sealed_description`.

  Raises:
    ValueError: the arrays differ from those that were saved.
  """
  actual, expected = _fingerprint_values(fingerprint), sealed["fingerprint"]
  if changed := sorted(path for path in actual if actual[path] != expected.get(path)):
    raise ValueError(f"the bytes of {', '.join(changed[:3])} differ from those that were saved")


@contextlib.contextmanager
def _silence_threads() -> Iterator[None]:
  """Suppresses the messages of Orbax's background threads after a failed read. One error is raised instead."""
  hooks = sys.unraisablehook, threading.excepthook
  sys.unraisablehook, threading.excepthook = (lambda _: None), (lambda _: None)
  try:
    yield
  except BaseException:
    gc.collect()  # coroutines that did not finish print messages when they are collected
    raise
  finally:
    sys.unraisablehook, threading.excepthook = hooks

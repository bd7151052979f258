"""What a checkpoint holds, read without changing anything: the weights of a workdir, and what is said about them."""

import contextlib
import errno
import gc
import hashlib
import json
import logging
import math
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax import digests, disk, paths, runtime
from vit_jax.checkpoints import aliases
from vit_jax.schema import ConfigError

SAMPLE = 2**24  # bytes of the largest array that is read back after a save
Check = Callable[[dict], None]  # raises ValueError for what is said about a state and cannot be used


def about(workdir: pathlib.Path, check: Check = lambda about: None) -> dict | None:
  """What is said about the newest state of a workdir, without reading it; None where nothing is that can be used."""
  for step in reversed(whole_steps(workdir)):
    said, problem = attempt(lambda step=step: read_sealed(workdir / "checkpoints" / str(step), check))
    if not problem:
      return said["run"]
  return None


def whole_steps(workdir: pathlib.Path) -> list[int]:
  """Steps that a workdir has whole, oldest first."""
  # In a bucket no folder takes another name at the end: a whole one has an object that says so.
  whole = ocp.utils.is_checkpoint_finalized if paths.in_bucket(workdir) else pathlib.Path.exists
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    folders = [path for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()]
    return sorted(int(path.name) for path in folders if whole(path))
  return []


def exist(workdir: pathlib.Path) -> bool:
  """Whether a workdir holds checkpoints; an empty folder is a start that was killed."""
  return bool(whole_steps(workdir))


def begun(workdir: pathlib.Path) -> bool:
  """Whether a workdir holds nothing but what a first save that failed or was killed has left."""
  if not {path.name for path in workdir.iterdir()} <= {"checkpoints", "lock"}:
    return False
  with contextlib.suppress(FileNotFoundError):
    return all(ocp.utils.is_tmp_checkpoint(epath.Path(path)) for path in (workdir / "checkpoints").iterdir())
  return True


def read_weights(workdir: pathlib.Path, averaged: bool = False) -> tuple[dict[str, np.ndarray], dict]:
  """(parameters by path, about) of the newest readable checkpoint, on the host and without its optimizer.

  `averaged` takes the moving average instead. ConfigError where there is none, or none that can be read.
  """
  bad = []
  for step in reversed(whole_steps(workdir)):
    folder = workdir / "checkpoints" / str(step)
    weights, problem = attempt(lambda folder=folder: _read_part(folder, "ema/" if averaged else "params/"))
    if not problem:
      for unreadable, why in bad:
        logging.warning("%s cannot be read (%s); the weights are those of step %d", unreadable, why, step)
      return weights
    bad.append((folder, problem))
  reasons = "".join(f"\n  {unreadable}: {why}" for unreadable, why in bad)
  raise ConfigError(f"{workdir} has no checkpoint that can be read{reasons}")


def damage(workdir: str) -> str:
  """Why the newest state of a workdir cannot be read, as the end of a sentence; "" where it can, or is none."""
  if not (steps := whole_steps(paths.path(workdir))):
    return ""
  folder = paths.path(workdir) / "checkpoints" / str(steps[-1])
  _, problem = attempt(lambda: _read_part(folder, ""))
  return f" ({folder} cannot be read: {problem})" if problem else ""


def _read_part(folder, part):
  """Arrays whose path begins with `part`, verified, and what is said about them."""
  said = read_sealed(folder)
  with aliases.usable(folder) as usable:
    tree = ocp.PyTreeCheckpointHandler().metadata(usable / "state")
    wanted = {path: leaf for path, leaf in tree.items() if path.startswith(part)}
    if not wanted:
      raise ConfigError(
        f"step {folder.name} holds no {part.rstrip('/')}; the run keeps an average with config.optim.ema"
      )
    arrays = _read_arrays(usable / "state", wanted)
  verify(jax.jit(digests.fingerprint)(arrays), said)
  return {path.removeprefix(part): array for path, array in arrays.items()}, said["run"]


def check_readable(folder: pathlib.Path) -> None:
  """Raises an error unless a save can be restored, as far as a cheap test shows.

  Reads the description, the manifest and the bytes of two arrays: the smallest one, and the largest one of at most
  `SAMPLE` bytes, which in a run of several processes is likely to be divided among them.

  Args:
    folder: of the save, as `aliases.usable` gives it.

  Raises:
    ValueError: the save is incomplete or contains other bytes than the state that was saved.
    Exception: Orbax raises errors of many types.
  """
  said, tree = read_sealed(folder), ocp.PyTreeCheckpointHandler().metadata(folder / "state")
  if absent := sorted(said["fingerprint"].keys() - tree.keys()):
    raise ValueError(f"{', '.join(absent[:3])} is not in the save")
  sizes = {path: math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for path, leaf in tree.items()}
  ordered = sorted(sizes, key=lambda path: (sizes[path], path))
  chosen = {ordered[0], *[path for path in ordered if sizes[path] <= SAMPLE][-1:]}
  arrays = _read_arrays(folder / "state", {path: tree[path] for path in chosen})
  verify({path: digests.fingerprint_on_host(array) for path, array in arrays.items()}, said)


def _read_arrays(state, wanted):
  """Reads arrays to the host: those of the metadata `wanted`, by path."""
  items = {path: np.empty(leaf.shape, leaf.dtype) for path, leaf in wanted.items()}
  on_host = {path: ocp.RestoreArgs(restore_type=np.ndarray) for path in items}
  # The handlers themselves: a manager's `restore` would wait for all other processes at its end.
  arguments = ocp.args.PyTreeRestore(item=items, restore_args=on_host, partial_restore=True)
  return ocp.PyTreeCheckpointHandler().restore(state, args=arguments)


def same(arrays: dict[str, np.ndarray], path: str | None) -> dict[str, np.ndarray]:
  """The arrays that each process has read from `path`, on a disk of its own perhaps; ConfigError if they differ."""
  of_each = [] if runtime.alone() else runtime.gather(digests.on_host(arrays)[:12], "weights")
  if len(set(of_each)) > 1:
    raise ConfigError(f"{path} holds other weights on each host (SHA-256 {', '.join(of_each)}); copy one to all")
  return arrays


def attempt(read: Callable[[], Any], nothing: Any = None) -> tuple[Any, str | None]:
  """(what `read` gives, None), or (nothing, why a checkpoint cannot be read). What the user can mend is raised."""
  try:
    with _quiet_threads():
      return read(), None
  except ConfigError:
    raise
  except Exception as error:  # Orbax raises plain Exception too, and any of them means the same here
    if (number := disk.of_bucket(error)) not in (None, errno.ENOENT):  # which says nothing of the checkpoint
      raise OSError(number, f"a checkpoint cannot be read: {' '.join(str(error).split())[:200]}", "gs://") from error
    sys.unraisablehook = disk.unraisable
    text, _, _ = str(error).partition(" See full TensorStore details")
    return nothing, f"{type(error).__name__}: {' '.join(text.split())[:200]}"


def seal(about: dict, fingerprint: dict[str, jax.Array]) -> dict:
  """What is written beside a state: JSON values `about` it and the fingerprint of its arrays, with their SHA-256."""
  said = {"run": about, "fingerprint": _values(fingerprint)}
  return said | {"sha256": _sha256(said)}


def _values(fingerprint):
  return {path: int(value) for path, value in jax.device_get(fingerprint).items()}


def _sha256(said):
  """Of what is said about a state, and of its fingerprint."""
  covered = {"run": said["run"], "fingerprint": said["fingerprint"]}
  return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def read_sealed(folder: pathlib.Path, check: Check = lambda about: None) -> dict:
  """What `seal` gave for the checkpoint in a folder, checked; those of before have no SHA-256.

  Raises ValueError, and what Orbax raises.
  """
  said = ocp.JsonCheckpointHandler().restore(folder / "about")
  if not isinstance(said["run"], dict) or not isinstance(said["fingerprint"], dict):
    raise ValueError("what is said about the state is no JSON object")
  if said.get("sha256", _sha256(said)) != _sha256(said):
    raise ValueError("what is said about the state is not what was saved")
  check(said["run"])
  return said


def verify(fingerprint: dict[str, jax.Array], said: dict) -> None:
  """ValueError unless the arrays' fingerprint is the one that was saved."""
  actual, expected = _values(fingerprint), said["fingerprint"]
  if changed := sorted(path for path in actual if actual[path] != expected.get(path)):
    raise ValueError(f"the bytes of {', '.join(changed[:3])} are not those that were saved")


@contextlib.contextmanager
def _quiet_threads():
  """Drops what Orbax's background threads print when a read fails: pages, beside the one error that is raised."""
  hooks = sys.unraisablehook, threading.excepthook
  sys.unraisablehook = threading.excepthook = lambda _: None
  try:
    yield
  except BaseException:
    gc.collect()  # coroutines that were never finished complain when they are collected
    raise
  finally:
    sys.unraisablehook, threading.excepthook = hooks

"""Checkpoints by Orbax: saved asynchronously and atomically, verified when read, never deleted because unreadable."""

import contextlib
import errno
import gc
import hashlib
import json
import logging
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from vit_jax import digests, disk, paths, runtime, trees
from vit_jax.schema import ConfigError

Check = Callable[[dict], None]  # raises ValueError for what is said about a state and cannot be used


class _Manager(ocp.CheckpointManager):
  """Orbax's, which asks JAX about preemption by step; here `runtime.Watch` does, by poll."""

  def reached_preemption(self, step):
    return False


def _meet(key: str, timeout_ms: int) -> None:
  """Waits for all processes at a point of a save; one that has failed waits for none, and `runtime` tells them."""
  if sys.exc_info()[1] is None:
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


class Checkpoints:
  """The checkpoints of one workdir, `checkpoints/<step>`: a resource, closed when the run ends."""

  def __init__(
    self,
    workdir: pathlib.Path,
    replicated: jax.sharding.Sharding,
    keep: int = 2,
    keep_every: int | None = None,
    read_only: bool = False,
  ):
    self.directory = workdir / "checkpoints"
    options = ocp.CheckpointManagerOptions(
      max_to_keep=keep,
      keep_period=keep_every,
      create=not read_only,
      read_only=read_only,
      cleanup_tmp_directories=True,
      # Where a folder cannot be made in the background, Orbax's other threads wait for it for five minutes.
      async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False, barrier_sync_fn=_meet),
    )
    self._read_only = read_only
    self._fingerprint = jax.jit(digests.fingerprint, out_shardings=replicated)
    if not read_only:
      self.directory.mkdir(parents=True, exist_ok=True)
      self._descriptor = disk.hold(self.directory)
    with self._writing():
      self._manager = _Manager(paths.absolute(self.directory), options=options, item_names=("state", "about"))

  def steps(self) -> list[int]:
    """Steps that have a complete checkpoint, oldest first."""
    return sorted(self._manager.all_steps())

  def save(self, step: int, state: Any, about: dict) -> None:
    """Starts to save `state` and the JSON values `about`; returns once the arrays are copied off the devices.

    OSError where the disk fails, or failed since the last save.
    """
    arrays = trees.flatten(state)
    said = {"run": about, "fingerprint": _values(self._fingerprint(arrays))}
    said["sha256"] = _sha256(said)
    disk.check_there(self.directory, self._descriptor)
    with self._writing():
      self._manager.save(
        step, args=ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(said))
      )

  def restore(self, state: Any, check: Check = lambda about: None) -> tuple[Any, dict] | None:
    """The newest readable (state, about), None where there is no checkpoint yet.

    Newer ones that cannot be read are renamed to `<step>.unreadable` and named in a warning. Where none can be read
    everything stays as it is, and the program ends. All processes take the same one: what one of them cannot read, none
    does, and none waits for another while it reads.

    Args:
      state: abstract, with the shapes and shardings that are wanted.
      check: raises ValueError for an `about` that cannot be used; its checkpoint counts as unreadable.
    """
    bad = []
    for step in reversed(json.loads(runtime.gather(json.dumps(self.steps()), "checkpoints")[0])):
      restored, problem = self._read(step, state, check)
      if problem:
        bad.append((step, problem))
        continue
      for unreadable, why in bad:
        self._set_aside(unreadable, why, step)
      return restored
    if not bad:
      return None
    reasons = "".join(f"\n  {self.directory / str(step)}: {why}" for step, why in bad)
    raise runtime.Stop(
      runtime.EXIT_MISSING,
      f"none of the checkpoints can be read; nothing was changed:{reasons}\n"
      "Bring back a good copy, or take another --workdir to start anew.",
    )

  def _read(self, step, state, check):
    """((state, about), None) of one step, or (None, why it cannot be read), the same on all processes."""
    folder, wanted = self.directory / str(step), trees.flatten(state)

    def read():
      said = _said(folder, check)
      return said, ocp.StandardCheckpointHandler().restore(folder / "state", args=ocp.args.StandardRestore(wanted))

    (said, arrays), problem = _attempt(read, (None, None))
    problem = _shared(problem)
    if not problem:  # the fingerprint is computed by all processes together
      _, problem = _attempt(lambda: _verify(self._fingerprint(arrays), said))
      problem = _shared(problem)
    return (None, problem) if problem else ((trees.unflatten(state, arrays), said["run"]), None)

  def _set_aside(self, step, why, used):
    if self._read_only:
      logging.warning("checkpoint %d cannot be read (%s); reading step %d", step, why, used)
      return
    target = self.directory / f"{step}.unreadable"
    number = 1
    while target.exists():
      number += 1
      target = self.directory / f"{step}.unreadable-{number}"
    if jax.process_index() == 0:
      (self.directory / str(step)).rename(target)
    logging.warning(
      "checkpoint %d cannot be read (%s); set aside as %s, continuing from step %d", step, why, target, used
    )
    runtime.barrier("set aside")
    self._manager.reload()

  def wait(self) -> None:
    """Returns when the last save is on disk; OSError where the disk failed."""
    with self._writing():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits as `wait` does, and frees the background threads."""
    try:
      with self._writing():
        self._manager.close()
    finally:
      if not self._read_only:
        disk.release(self._descriptor)

  @contextlib.contextmanager
  def _writing(self):
    """An error of the disk becomes an OSError that says which checkpoint is the last whole one; a reader's passes."""
    try:
      yield
    except Exception as error:  # Orbax and TensorStore raise the disk's errors as their own
      if self._read_only or (number := disk.number(error)) is None:
        raise
      disk.check_there(self.directory, self._descriptor)
      try:
        steps = _steps(self.directory.parent)
        last = f"the last whole one is step {steps[-1]}" if steps else "there is none before it"
      except OSError:  # the bucket's own, again
        last = "the last whole one stays as it is"
      said = f"a checkpoint could not be saved: {getattr(error, 'strerror', None) or os.strerror(number)}; {last}"
      raise OSError(number, said, str(self.directory)) from error


def _attempt(read, nothing=None):
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


def _shared(problem):
  """The problem of this process, or else of another."""
  others = enumerate(runtime.gather(problem or "", "restore"))
  return problem or next((f"in process {i}: {other}" for i, other in others if other), None)


def _values(fingerprint):
  return {path: int(value) for path, value in jax.device_get(fingerprint).items()}


def _sha256(said):
  """Of what is said about a state, and of its fingerprint."""
  covered = {"run": said["run"], "fingerprint": said["fingerprint"]}
  return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


def _said(folder, check=lambda about: None):
  """What is said about the state in a folder, checked, and its fingerprint; those of before have no SHA-256."""
  said = ocp.JsonCheckpointHandler().restore(folder / "about")
  if not isinstance(said["run"], dict) or not isinstance(said["fingerprint"], dict):
    raise ValueError("what is said about the state is no JSON object")
  if said.get("sha256", _sha256(said)) != _sha256(said):
    raise ValueError("what is said about the state is not what was saved")
  check(said["run"])
  return said


def _verify(fingerprint, said):
  """ValueError unless the arrays' fingerprint is the one that was saved."""
  actual, expected = _values(fingerprint), said["fingerprint"]
  if changed := sorted(path for path in actual if actual[path] != expected.get(path)):
    raise ValueError(f"the bytes of {', '.join(changed[:3])} are not those that were saved")


def about(workdir: pathlib.Path, check: Check = lambda about: None) -> dict | None:
  """What is said about the newest state of a workdir, without reading it; None where nothing is that can be used."""
  for step in reversed(_steps(workdir)):
    said, problem = _attempt(lambda step=step: _said(workdir / "checkpoints" / str(step), check))
    if not problem:
      return said["run"]
  return None


def _steps(workdir):
  """Steps that a workdir has whole, oldest first."""
  # In a bucket no folder takes another name at the end: a whole one has an object that says so.
  whole = ocp.utils.is_checkpoint_finalized if paths.in_bucket(workdir) else pathlib.Path.exists
  with contextlib.suppress(FileNotFoundError, NotADirectoryError):
    folders = [path for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()]
    return sorted(int(path.name) for path in folders if whole(path))
  return []


def exist(workdir: pathlib.Path) -> bool:
  """Whether a workdir holds checkpoints; an empty folder is a start that was killed."""
  return bool(_steps(workdir))


def read_weights(workdir: pathlib.Path, averaged: bool = False) -> tuple[dict[str, np.ndarray], dict]:
  """(parameters by path, about) of the newest readable checkpoint, on the host and without its optimizer.

  `averaged` takes the moving average instead. ConfigError where there is none, or none that can be read.
  """
  bad = []
  for step in reversed(_steps(workdir)):
    folder = workdir / "checkpoints" / str(step)
    weights, problem = _attempt(lambda folder=folder: _read_part(folder, "ema/" if averaged else "params/"))
    if not problem:
      for unreadable, why in bad:
        logging.warning("%s cannot be read (%s); the weights are those of step %d", unreadable, why, step)
      return weights
    bad.append((folder, problem))
  reasons = "".join(f"\n  {unreadable}: {why}" for unreadable, why in bad)
  raise ConfigError(f"{workdir} has no checkpoint that can be read{reasons}")


def same(arrays: dict[str, np.ndarray], path: str | None) -> dict[str, np.ndarray]:
  """The arrays that each process has read from `path`, on a disk of its own perhaps; ConfigError if they differ."""
  of_each = [] if runtime.alone() else runtime.gather(digests.on_host(arrays)[:12], "weights")
  if len(set(of_each)) > 1:
    raise ConfigError(f"{path} holds other weights on each host (SHA-256 {', '.join(of_each)}); copy one to all")
  return arrays


def damage(workdir: str) -> str:
  """Why the newest state of a workdir cannot be read, as the end of a sentence; "" where it can, or is none."""
  if not (steps := _steps(paths.path(workdir))):
    return ""
  folder = paths.path(workdir) / "checkpoints" / str(steps[-1])
  _, problem = _attempt(lambda: _read_part(folder, ""))
  return f" ({folder} cannot be read: {problem})" if problem else ""


def _read_part(folder, part):
  """Arrays whose path begins with `part`, verified, and what is said about them."""
  said, handler = _said(folder), ocp.PyTreeCheckpointHandler()
  tree = handler.metadata(folder / "state")
  wanted = {path: np.empty(leaf.shape, leaf.dtype) for path, leaf in tree.items() if path.startswith(part)}
  if not wanted:
    raise ConfigError(f"step {folder.name} holds no {part.rstrip('/')}; the run keeps an average with config.optim.ema")
  on_host = {path: ocp.RestoreArgs(restore_type=np.ndarray) for path in wanted}
  # The handlers themselves: a manager's `restore` would wait for all other processes at its end.
  arrays = handler.restore(
    folder / "state", args=ocp.args.PyTreeRestore(item=wanted, restore_args=on_host, partial_restore=True)
  )
  _verify(jax.jit(digests.fingerprint)(arrays), said)
  return {path.removeprefix(part): array for path, array in arrays.items()}, said["run"]


def write_weights(workdir: pathlib.Path, params: dict[str, np.ndarray], about: dict) -> None:
  """A checkpoint of parameters alone, as step 0 of a workdir."""
  whole = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  with contextlib.closing(Checkpoints(workdir, whole)) as store:
    store.save(0, {"step": jnp.zeros((), jnp.int32), "params": jax.device_put(params, whole)}, about)


@contextlib.contextmanager
def _quiet_threads():
  """Drops what Orbax's background threads print when a read fails: pages, beside the one error that is raised."""
  hooks = sys.unraisablehook, threading.excepthook
  sys.unraisablehook = threading.excepthook = lambda _: None
  try:
    yield
  finally:
    gc.collect()  # coroutines that were never finished complain when they are collected
    sys.unraisablehook, threading.excepthook = hooks

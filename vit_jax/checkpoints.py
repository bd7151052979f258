"""Checkpoints by Orbax: saved asynchronously and atomically, verified when read, never deleted because unreadable."""

import contextlib
import gc
import hashlib
import logging
import os
import pathlib
import re
import sys
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from vit_jax import disk, runtime, trees
from vit_jax.schema import ConfigError


def fingerprint(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """Path -> uint32: the array's words, each mixed with its place, summed modulo 2**32.

  Integer sums do not depend on order, so the same values give the same fingerprint on every mesh. The mixing is that of
  MurmurHash3's finalizer (Appleby 2011), so that any changed bit changes the sum.
  """

  def mixed(x):
    width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
    words = jax.lax.bitcast_convert_type(x, width).astype(jnp.uint32).ravel()
    h = words ^ (jax.lax.iota(jnp.uint32, words.size) * jnp.uint32(0x9E3779B1))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
      h = (h ^ (h >> shift)) * jnp.uint32(factor)
    return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)

  return {path: mixed(x) for path, x in arrays.items()}


class _Manager(ocp.CheckpointManager):
  """Orbax's, which asks JAX about preemption by step; here `runtime.Watch` does, by poll."""

  def reached_preemption(self, step):
    return False


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
      async_options=ocp.options.AsyncOptions(create_directories_asynchronously=False),
    )
    self._read_only = read_only
    self._fingerprint = jax.jit(fingerprint, out_shardings=replicated)
    if not read_only:
      self.directory.mkdir(parents=True, exist_ok=True)
      self._descriptor = os.open(self.directory, os.O_RDONLY)
    with self._writing():
      self._manager = _Manager(self.directory.absolute(), options=options, item_names=("state", "about"))

  def steps(self) -> list[int]:
    """Steps that have a complete checkpoint, oldest first."""
    return sorted(self._manager.all_steps())

  def save(self, step: int, state: Any, about: dict) -> None:
    """Starts to save `state` and the JSON values `about`; returns once the arrays are copied off the devices.

    OSError where the disk fails, or failed since the last save.
    """
    arrays = trees.flatten(state)
    digest = self._digest(arrays)
    disk.check_there(self.directory, self._descriptor)
    with self._writing():
      self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave({"run": about, "fingerprint": digest})
        ),
      )

  def read(self, step: int, state: Any) -> tuple[Any, dict]:
    """(state, about) of one step, onto the shapes and shardings of the abstract `state`.

    Raises whatever Orbax does where a file is missing, short or changed, and ValueError where a value is.
    """
    args = ocp.args.Composite(state=ocp.args.StandardRestore(trees.flatten(state)), about=ocp.args.JsonRestore())
    restored = self._manager.restore(step, args=args)
    _verify(self._digest(restored.state), restored.about)
    return trees.unflatten(state, restored.state), restored.about["run"]

  def restore(self, state: Any) -> tuple[Any, dict] | None:
    """The newest readable (state, about), None where there is no checkpoint yet.

    Newer ones that cannot be read are renamed to `<step>.unreadable` and named in a warning. Where none can be read
    everything stays as it is, and the program ends.
    """
    bad = []
    for step in reversed(self.steps()):
      restored, problem = _attempt(self.read, step, state)
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

  def _digest(self, arrays):
    return _digest(self._fingerprint, arrays)

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
        os.close(self._descriptor)

  @contextlib.contextmanager
  def _writing(self):
    """An error of the disk becomes an OSError that says which checkpoint is the last whole one; others pass."""
    try:
      yield
    except Exception as error:  # Orbax and TensorStore raise the disk's errors as their own
      if (number := _disk_error(error)) is None:
        raise
      if not self._read_only:
        disk.check_there(self.directory, self._descriptor)
      whole = max((int(path.name) for path in self.directory.glob("[0-9]*") if path.name.isdigit()), default=None)
      last = "there is none before it" if whole is None else f"the last whole one is step {whole}"
      text = f"a checkpoint could not be saved: {os.strerror(number)}; {last}"
      raise OSError(number, text, str(self.directory)) from error


def _disk_error(error: BaseException) -> int | None:
  """The number of the operating system's error that this one is or was made of; None for an error of a program."""
  if isinstance(error, OSError) and error.errno:
    return error.errno
  if numbered := re.search(r"os_error_code='(\d+)'", str(error)):
    return int(numbered[1])
  return _disk_error(error.__cause__) if error.__cause__ else None


def _attempt(read, *arguments):
  """(what `read` gives, None), or (None, why a checkpoint cannot be read). What the user can mend is raised."""
  try:
    with _quiet_threads():
      return read(*arguments), None
  except ConfigError:
    raise
  except Exception as error:  # Orbax raises plain Exception too, and any of them means the same here
    return None, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _digest(function, arrays):
  return {path: int(value) for path, value in jax.device_get(function(arrays)).items()}


def _verify(actual, about):
  """ValueError unless the fingerprints are those that were saved."""
  expected = dict(about["fingerprint"])
  changed = sorted(path for path in actual if actual[path] != expected.get(path))
  if changed or not isinstance(about["run"], dict):
    raise ValueError(f"the bytes of {', '.join(changed[:3])} are not those that were saved")


def exist(workdir: pathlib.Path) -> bool:
  """Whether a workdir holds checkpoints; an empty folder is a start that was killed."""
  return any((workdir / "checkpoints").glob("[0-9]*"))


def read_weights(workdir: pathlib.Path, averaged: bool = False) -> tuple[dict[str, np.ndarray], dict]:
  """(parameters by path, about) of the newest readable checkpoint, on the host and without its optimizer.

  `averaged` takes the moving average instead. ConfigError where there is none, or none that can be read.
  """
  directory, part = workdir / "checkpoints", "ema/" if averaged else "params/"
  handlers = {"state": ocp.PyTreeCheckpointHandler(), "about": ocp.JsonCheckpointHandler()}
  with contextlib.closing(
    ocp.CheckpointManager(
      directory.absolute(), options=ocp.CheckpointManagerOptions(read_only=True), item_handlers=handlers
    )
  ) as manager:
    bad = []
    for step in sorted(manager.all_steps(), reverse=True):
      weights, problem = _attempt(_read_part, manager, step, part)
      if not problem:
        return weights
      bad.append(f"\n  {directory / str(step)}: {problem}")
      logging.warning("checkpoint %d of %s cannot be read (%s)", step, workdir, problem)
  raise ConfigError(f"{workdir} has no checkpoint that can be read{''.join(bad)}")


def _read_part(manager, step, part):
  """Arrays whose path begins with `part`, verified, and what is said about them."""
  tree = manager.item_metadata(step)["state"]
  wanted = {path: np.empty(leaf.shape, leaf.dtype) for path, leaf in tree.items() if path.startswith(part)}
  if not wanted:
    raise ConfigError(f"step {step} holds no {part.rstrip('/')}; the run keeps an average with config.optim.ema")
  on_host = {path: ocp.RestoreArgs(restore_type=np.ndarray) for path in wanted}
  args = ocp.args.Composite(
    state=ocp.args.PyTreeRestore(item=wanted, restore_args=on_host, partial_restore=True),
    about=ocp.args.JsonRestore(),
  )
  restored = manager.restore(step, args=args)
  _verify(_digest(jax.jit(fingerprint), restored.state), restored.about)
  return {path.removeprefix(part): array for path, array in restored.state.items()}, restored.about["run"]


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


def weights_digest(params: dict[str, jax.Array], replicated: jax.sharding.Sharding) -> str:
  """SHA-256 over the parameters' little-endian bytes in path order; gathers one parameter at a time."""
  gather = jax.jit(lambda x: x, out_shardings=replicated)
  digest = hashlib.sha256()
  for _, value in sorted(params.items()):
    value = np.asarray(gather(value))
    digest.update(value.astype(value.dtype.newbyteorder("<")).tobytes())
  return digest.hexdigest()

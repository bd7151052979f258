"""Checkpoints of a run with Orbax: asynchronous and atomic saves, and restoring of the newest readable checkpoint."""

import contextlib
import errno
import itertools
import json
import logging
import os
import pathlib
import sys
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax import runtime, trees
from vit_jax.checkpoints import aliases, digests
from vit_jax.checkpoints.reading import (
  CheckDescription,
  check_readable,
  list_steps,
  read_sealed_description,
  seal_description,
  try_read,
  verify_fingerprint,
)
from vit_jax.storage import errors, paths

# Orbax divides a replicated array among the devices that hold it. Each shape of a slice needs its own program, so the
# division of a small array costs more time than it gains. With this limit, the first save of a small run on eight
# devices takes 1.4 CPU-seconds instead of 3.4.
MIN_SLICE_BYTES = 2**16


class _Manager(ocp.CheckpointManager):
  """Orbax's manager without its check for preemption by step. `runtime.Watch` checks by poll instead."""

  def reached_preemption(self, step: int) -> bool:
    return False


def _wait_for_processes(key: str, timeout_ms: int) -> None:
  """Waits for all processes during a save.

  A failed process does not wait, and `runtime` informs the other processes.
  """
  if sys.exc_info()[1] is None:
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def _make_handlers() -> dict[str, ocp.CheckpointHandler]:
  """Returns the handlers that save the parts of a checkpoint."""
  arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=MIN_SLICE_BYTES)
  registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
  return {"state": ocp.PyTreeCheckpointHandler(type_handler_registry=registry), "about": ocp.JsonCheckpointHandler()}


class Checkpoints:
  """The checkpoints of one workdir, `checkpoints/<step>`. Must be closed when the run ends.

  A save is read back before it is completed, and older saves are removed only afterwards. See `check_readable`.

  Args:
    workdir: directory of the run.
    replicated: sharding that places an array on all devices.
    keep: number of the newest checkpoints that are kept.
    keep_every: additionally keeps each checkpoint with a step that is divisible by this number.
    read_only: true prevents any change of the directory.

  Raises:
    ConfigError: checkpoints cannot be saved under the name of the workdir.

  Example:
    import contextlib, pathlib
    import jax
    from vit_jax import checkpoints

    replicated = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with contextlib.closing(checkpoints.Checkpoints(pathlib.Path("/tmp/run"), replicated)) as store:
      store.save(1, {"kernel": jax.numpy.ones((2, 3))}, {"note": "a test"})
      abstract = {"kernel": jax.ShapeDtypeStruct((2, 3), "float32", sharding=replicated)}
      state, about = store.restore(abstract)
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    replicated: jax.sharding.Sharding,
    keep: int = 2,
    keep_every: int | None = None,
    read_only: bool = False,
  ) -> None:
    self.directory = workdir / "checkpoints"
    self._has_verified_save = False  # true after a save of this process has been read back
    self._saving = 0  # the step of the newest save
    options = ocp.CheckpointManagerOptions(
      max_to_keep=keep,
      keep_period=keep_every,
      create=not read_only,
      read_only=read_only,
      # If folders are created in the background and one fails, Orbax's other threads wait for five minutes.
      async_options=ocp.options.AsyncOptions(
        create_directories_asynchronously=False,
        barrier_sync_fn=_wait_for_processes,
        post_finalization_callback=self._check_saved,
      ),
    )
    self._read_only = read_only
    self._fingerprint = jax.jit(digests.fingerprint, out_shardings=replicated)
    with contextlib.ExitStack() as resources:
      if not read_only:
        aliases.check_workdir_name(workdir)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = errors.open_directory(self.directory)
        resources.callback(errors.close_directory, self._descriptor)
        with self._convert_write_errors():
          _remove_unfinished(self.directory)
      self._orbax_directory = resources.enter_context(aliases.alias_folder(self.directory))
      with self._convert_write_errors():
        self._manager = _Manager(self._orbax_directory, options=options, item_handlers=_make_handlers())
      self._resources = resources.pop_all()

  def list_steps(self) -> list[int]:
    """Returns the steps that have a complete checkpoint, oldest first."""
    return sorted(self._manager.all_steps())

  def save(self, step: int, state: object, about: dict[str, Any]) -> None:
    """Starts to save a state, and returns when the arrays have been copied from the devices.

    The first call in a process returns only after the save is complete and has been read back. A workdir that cannot
    be restored therefore ends the run at once.

    Args:
      step: number of completed training steps, which names the folder of the save.
      state: a pytree of arrays.
      about: JSON values that describe the state.

    Raises:
      OSError: this save or the previous one could not be written or read back.
    """
    arrays = trees.flatten(state)
    sealed = seal_description(about, self._fingerprint(arrays))
    errors.check_there(self.directory, self._descriptor)
    with self._convert_write_errors():
      self._manager.wait_until_finished()  # before the step changes, because the read-back of the last save uses it
      self._saving = step
      self._manager.save(
        step, args=ocp.args.Composite(state=ocp.args.PyTreeSave(arrays), about=ocp.args.JsonSave(sealed))
      )
    if not self._has_verified_save:
      self.wait()
      self._has_verified_save = True

  def _check_saved(self) -> None:
    """Raises OSError if the save that is about to be completed cannot be read. Called by Orbax in process 0."""
    # In a bucket, this is the final folder, because an object marks a save as complete.
    folder = self._orbax_directory / str(self._saving)
    if not paths.is_in_bucket(folder):
      started = [path for path in self._orbax_directory.iterdir() if path.name.startswith(f"{self._saving}.")]
      (folder,) = [path for path in started if ocp.utils.is_tmp_checkpoint(epath.Path(path))]
    _, problem = try_read(lambda: check_readable(folder))
    if problem:
      raise OSError(errno.EIO, f"the data that were written cannot be read back ({problem})", str(self.directory))

  def restore(self, state: object, check: CheckDescription = lambda about: None) -> tuple[Any, dict[str, Any]] | None:
    """Restores the newest readable checkpoint.

    Newer checkpoints that cannot be read are renamed to `<step>.unreadable` and named in a warning. All processes
    restore the same step. If one process cannot read a checkpoint, all processes skip it. Processes do not wait for
    each other while they read.

    Args:
      state: an abstract state with the required shapes and shardings.
      check: function that raises ValueError if a description cannot be used. Its checkpoint then counts as unreadable.

    Returns:
      (state, description), or None if the workdir contains no checkpoint yet.

    Raises:
      Stop: no checkpoint can be read. The files are left unchanged.
      ConfigError: the user can fix the error.
      OSError: the bucket failed, which gives no information on the checkpoints.
    """
    bad = []
    for step in reversed(json.loads(runtime.gather_texts(json.dumps(self.list_steps()), "checkpoints")[0])):
      restored, problem = self._read(step, state, check)
      if problem:
        bad.append((step, problem))
        continue
      for unreadable, why in bad:
        self._move_aside(unreadable, why, step)
      return restored
    if not bad:
      return None
    reasons = "".join(f"\n  {self.directory / str(step)}: {why}" for step, why in bad)
    raise runtime.Stop(
      runtime.EXIT_MISSING,
      f"no checkpoint can be read, for these reasons:{reasons}\nNo file was changed. "
      "Restore a good copy, or use another --workdir to start again.",
    )

  def _read(self, step: int, state: object, check: CheckDescription) -> tuple[Any, str | None]:
    """Returns ((state, about), None) for a step, or (None, problem). The result is the same on all processes."""
    folder, wanted = self._orbax_directory / str(step), trees.flatten(state)

    def read() -> tuple[Any, dict[str, Any]]:
      sealed = read_sealed_description(folder, check)
      return sealed, ocp.StandardCheckpointHandler().restore(folder / "state", args=ocp.args.StandardRestore(wanted))

    (sealed, arrays), problem = try_read(read, (None, None))
    problem = _share_problem(problem)
    if not problem:  # all processes compute the fingerprint together
      _, problem = try_read(lambda: verify_fingerprint(self._fingerprint(arrays), sealed))
      problem = _share_problem(problem)
    return (None, problem) if problem else ((trees.unflatten(state, arrays), sealed["run"]), None)

  def _move_aside(self, step: int, why: str, used: int) -> None:
    """Renames the folder of a step that cannot be read, and names it and the step that is used in a warning."""
    if self._read_only:
      logging.warning("checkpoint %d cannot be read (%s). Reading step %d", step, why, used)
      return
    target = self.directory / f"{step}.unreadable"
    number = 1
    while target.exists():
      number += 1
      target = self.directory / f"{step}.unreadable-{number}"
    runtime.barrier("name chosen")  # before the folder exists, so that all processes choose the same name
    if jax.process_index() == 0:
      (self.directory / str(step)).rename(target)
    logging.warning("checkpoint %d cannot be read (%s). Moved to %s, resuming from step %d", step, why, target, used)
    runtime.barrier("set aside")
    self._manager.reload()

  def wait(self) -> None:
    """Waits until the last save is on disk.

    Raises:
      OSError: the disk failed.
    """
    with self._convert_write_errors():
      self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits like `wait` and releases the background threads.

    Raises:
      OSError: the disk failed.
    """
    try:
      with self._convert_write_errors():
        self._manager.close()
    finally:
      self._resources.close()

  @contextlib.contextmanager
  def _convert_write_errors(self) -> Iterator[None]:
    """Converts errors of the disk to an OSError that names the last complete checkpoint, unless opened read-only."""
    try:
      yield
    except Exception as error:  # Orbax and TensorStore raise errors of the disk as their own types
      if self._read_only or (number := errors.get_errno(error)) is None:
        raise
      errors.check_there(self.directory, self._descriptor)
      try:
        steps = list_steps(self.directory.parent)
        last = f"The last complete checkpoint is step {steps[-1]}" if steps else "No earlier checkpoint exists"
      except OSError:  # the bucket fails again
        last = "The last complete checkpoint is unchanged"
      message = f"a checkpoint could not be saved: {getattr(error, 'strerror', None) or os.strerror(number)}. {last}"
      raise OSError(number, message, str(self.directory)) from error


def _remove_unfinished(directory: pathlib.Path) -> None:
  """Removes the files of saves that were killed.

  Must be called before the manager is created. The manager would remove the files in the background while all processes
  list the folder. In a bucket, an empty folder disappears.
  """
  if jax.process_index() == 0 and directory.exists():
    folders = [epath.Path(folder) for folder in directory.iterdir()]
    with futures.ThreadPoolExecutor() as pool:
      for folder in itertools.compress(folders, pool.map(ocp.utils.is_tmp_checkpoint, folders)):
        folder.rmtree(missing_ok=True)
  runtime.barrier("unfinished")


def _share_problem(problem: str | None) -> str | None:
  """Returns the problem of this process, or the first problem of another process."""
  others = enumerate(runtime.gather_texts(problem or "", "restore"))
  return problem or next((f"in process {i}: {other}" for i, other in others if other), None)


def write_weights(workdir: pathlib.Path, params: dict[str, np.ndarray], about: dict[str, Any]) -> None:
  """Saves parameters without optimizer state as the checkpoint of step 0 of a workdir.

  Args:
    workdir: the directory. It is created if necessary.
    params: {path: array}.
    about: JSON values that describe the weights.

  Raises:
    OSError: the checkpoint could not be written.
  """
  one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  with contextlib.closing(Checkpoints(workdir, one_device)) as store:
    store.save(0, {"step": jnp.zeros((), jnp.int32), "params": jax.device_put(params, one_device)}, about)

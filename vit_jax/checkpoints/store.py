"""The checkpoints of a run by Orbax: saved asynchronously and atomically, and the newest that can be read restored."""

import contextlib
import errno
import itertools
import json
import logging
import os
import pathlib
import sys
from concurrent import futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from vit_jax import digests, disk, paths, runtime, trees
from vit_jax.checkpoints import aliases
from vit_jax.checkpoints.reading import Check, attempt, check_readable, read_sealed, seal, verify, whole_steps


class _Manager(ocp.CheckpointManager):
  """Orbax's, which asks JAX about preemption by step; here `runtime.Watch` does, by poll."""

  def reached_preemption(self, step):
    return False


def _meet(key: str, timeout_ms: int) -> None:
  """Waits for all processes at a point of a save; one that has failed waits for none, and `runtime` tells them."""
  if sys.exc_info()[1] is None:
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


class Checkpoints:
  """The checkpoints of one workdir, `checkpoints/<step>`: a resource, closed when the run ends.

  A save is read back before it is completed, and older saves are removed only then. See `check_readable`. Raises
  ConfigError for a workdir whose name checkpoints cannot be saved under.
  """

  def __init__(
    self,
    workdir: pathlib.Path,
    replicated: jax.sharding.Sharding,
    keep: int = 2,
    keep_every: int | None = None,
    read_only: bool = False,
  ):
    self.directory = workdir / "checkpoints"
    self._proven = False  # a save of this process has been read back
    self._saving = 0  # the step of the newest save
    options = ocp.CheckpointManagerOptions(
      max_to_keep=keep,
      keep_period=keep_every,
      create=not read_only,
      read_only=read_only,
      # Where a folder cannot be made in the background, Orbax's other threads wait for it for five minutes.
      async_options=ocp.options.AsyncOptions(
        create_directories_asynchronously=False, barrier_sync_fn=_meet, post_finalization_callback=self._read_back
      ),
    )
    self._read_only = read_only
    self._fingerprint = jax.jit(digests.fingerprint, out_shardings=replicated)
    with contextlib.ExitStack() as resources:
      if not read_only:
        aliases.check_name(workdir)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._descriptor = disk.hold(self.directory)
        resources.callback(disk.release, self._descriptor)
        with self._writing():
          _remove_unfinished(self.directory)
      self._usable = resources.enter_context(aliases.usable(self.directory))
      with self._writing():
        self._manager = _Manager(self._usable, options=options, item_names=("state", "about"))
      self._resources = resources.pop_all()

  def steps(self) -> list[int]:
    """Steps that have a complete checkpoint, oldest first."""
    return sorted(self._manager.all_steps())

  def save(self, step: int, state: Any, about: dict) -> None:
    """Starts to save a state, and returns once the arrays are copied off the devices.

    The first save of a process returns once it is complete and was read back, so that a workdir that cannot be
    restored ends the run at once.

    Args:
      step: the number of the save.
      state: a pytree of arrays.
      about: JSON values that describe the state.

    Raises:
      OSError: this save or the one before could not be written or could not be read back.
    """
    arrays = trees.flatten(state)
    said = seal(about, self._fingerprint(arrays))
    disk.check_there(self.directory, self._descriptor)
    with self._writing():
      self._manager.wait_until_finished()  # before the step of the save that is read back changes
      self._saving = step
      self._manager.save(
        step, args=ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(said))
      )
    if not self._proven:
      self.wait()
      self._proven = True

  def _read_back(self):
    """Raises OSError unless the save can be read that is about to be completed. Called by Orbax in process 0."""
    folder = self._usable / str(self._saving)  # in a bucket, where an object marks a save as complete
    if not paths.in_bucket(folder):
      started = [path for path in self._usable.iterdir() if path.name.startswith(f"{self._saving}.")]
      (folder,) = [path for path in started if ocp.utils.is_tmp_checkpoint(epath.Path(path))]
    _, problem = attempt(lambda: check_readable(folder))
    if problem:
      raise OSError(errno.EIO, f"what was written cannot be read back ({problem})", str(self.directory))

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
    folder, wanted = self._usable / str(step), trees.flatten(state)

    def read():
      said = read_sealed(folder, check)
      return said, ocp.StandardCheckpointHandler().restore(folder / "state", args=ocp.args.StandardRestore(wanted))

    (said, arrays), problem = attempt(read, (None, None))
    problem = _shared(problem)
    if not problem:  # the fingerprint is computed by all processes together
      _, problem = attempt(lambda: verify(self._fingerprint(arrays), said))
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
      self._resources.close()

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
        steps = whole_steps(self.directory.parent)
        last = f"the last whole one is step {steps[-1]}" if steps else "there is none before it"
      except OSError:  # the bucket's own, again
        last = "the last whole one stays as it is"
      said = f"a checkpoint could not be saved: {getattr(error, 'strerror', None) or os.strerror(number)}; {last}"
      raise OSError(number, said, str(self.directory)) from error


def _remove_unfinished(directory):
  """Takes away what saves that were killed have left.

  Before the manager is made, which would do so in the background while all processes list the folder: in a bucket it is
  gone when it is empty.
  """
  if jax.process_index() == 0 and directory.exists():
    folders = [epath.Path(folder) for folder in directory.iterdir()]
    with futures.ThreadPoolExecutor() as pool:
      for folder in itertools.compress(folders, pool.map(ocp.utils.is_tmp_checkpoint, folders)):
        folder.rmtree(missing_ok=True)
  runtime.barrier("unfinished")


def _shared(problem):
  """The problem of this process, or else of another."""
  others = enumerate(runtime.gather(problem or "", "restore"))
  return problem or next((f"in process {i}: {other}" for i, other in others if other), None)


def write_weights(workdir: pathlib.Path, params: dict[str, np.ndarray], about: dict) -> None:
  """A checkpoint of parameters alone, as step 0 of a workdir."""
  whole = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  with contextlib.closing(Checkpoints(workdir, whole)) as store:
    store.save(0, {"step": jnp.zeros((), jnp.int32), "params": jax.device_put(params, whole)}, about)

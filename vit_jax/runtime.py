"""The processes of a run: how they start, agree, speak, are asked to stop, and hold a workdir."""

import contextlib
import fcntl
import os
import pathlib
import signal
import socket
from collections.abc import Iterator

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax import files
from vit_jax.schema import ConfigError

EXIT_CONFIG = 2  # a mistake that a retry repeats: config, flags, missing data, a workdir in use
EXIT_PREEMPTED = 42  # asked to stop; the same command continues
EXIT_NOT_FINITE = 44  # the loss or a gradient is not finite
EXIT_NO_CHECKPOINT = 45  # there are checkpoints, and none can be read

IN_USE = "is in use by process"  # in the error of a workdir that another process holds


class Stop(Exception):
  """Ends the program with a message and an exit code of the contract above."""

  def __init__(self, code: int, message: str):
    super().__init__(message)
    self.code = code


def start() -> None:
  """Joins `jax.distributed`, also as a single process: preemption notices come through its coordinator.

  VITJAX_COORDINATOR (host:port), VITJAX_PROCESSES and VITJAX_PROCESS place a process by hand. Without them JAX asks
  the cluster that it finds (Cloud TPU, Slurm, Open MPI, Kubernetes), else the process is alone.
  """
  if jax.distributed.is_initialized():
    return
  _cpu_devices()
  _keep_programs()
  names = ("VITJAX_COORDINATOR", "VITJAX_PROCESSES", "VITJAX_PROCESS")
  values = [os.environ.get(name) for name in names]
  if any(values):
    if not all(values) or not values[1].isdigit() or not values[2].isdigit() or not int(values[2]) < int(values[1]):
      raise ConfigError(f"set all of {', '.join(names)} (host:port, number, index below it) or none; they are {values}")
    jax.distributed.initialize(values[0], int(values[1]), int(values[2]))
    return
  try:
    jax.distributed.initialize()
  except ValueError as error:
    if "coordinator_address" not in str(error):
      raise
    # No cluster: a coordinator of our own, on a port that is free now, for preemption notices. Devices of one process
    # need no network between them: through Gloo, the default, a step on two CPU devices takes twice as long.
    jax.config.update("jax_cpu_collectives_implementation", None)
    with socket.socket() as probe:
      probe.bind(("127.0.0.1", 0))
      port = probe.getsockname()[1]
    jax.distributed.initialize(f"127.0.0.1:{port}", 1, 0)


def _cpu_devices() -> None:
  """One CPU device per core, up to 8: XLA runs small operations on one core, so a batch is faster cut over several.

  A power of two, that batches divide; the user's own setting goes first. Measured on two cores with CCT-2/3x2, batch
  64: 533 images/s on two devices, 407 on one.
  """
  chosen = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
  if not chosen and "JAX_NUM_CPU_DEVICES" not in os.environ:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    jax.config.update("jax_num_cpu_devices", 2 ** min(3, cores.bit_length() - 1))


def _keep_programs() -> None:
  """Compiled programs are kept for the next start, in JAX_COMPILATION_CACHE_DIR or in ~/.cache/vit_jax.

  A restart of a large model then takes seconds instead of minutes. The directory may be shared, also a bucket.
  """
  if jax.config.jax_compilation_cache_dir is None:
    jax.config.update("jax_compilation_cache_dir", str(files.cache("programs")))


class Preempted(Exception):
  """Some process got a SIGTERM: what is at hand is to be saved."""


class Preemption:
  """Whether a SIGTERM reached any process, agreed by all of them at the same tick.

  With several processes JAX's coordinator catches the signal, a second or two late, and a Python handler would silently
  replace it. A single process needs no agreement and catches it itself.
  """

  def __init__(self):
    self._tick, self._asked = 0, False
    if jax.process_count() == 1:
      signal.signal(signal.SIGTERM, self._ask)

  def _ask(self, *_):
    self._asked = True

  def poll(self) -> None:
    """Raises Preempted where the run shall stop. Called at the same points in every process: between steps and between
    batches of an evaluation."""
    self._tick += 1
    alone = jax.process_count() == 1
    if self._asked if alone else multihost_utils.reached_preemption_sync_point(self._tick):
      raise Preempted


def say(text: str) -> None:
  """Prints a line at once, on the first process only.

  A process that has joined no others is the first, and JAX is not asked: that would take the devices.
  """
  if not jax.distributed.is_initialized() or jax.process_index() == 0:
    print(text, flush=True)


def agree(problem: str | None) -> None:
  """Raises ConfigError in every process if any of them has a problem, so that none waits for one that has left."""
  alone = jax.process_count() == 1
  any_problem = problem is not None
  if not alone:
    any_problem = multihost_utils.process_allgather(np.bool_(any_problem)).any()
  if any_problem:
    raise ConfigError(problem or "another process of this run found a mistake; it says which")


def gather(text: str, name: str) -> list[str]:
  """The texts of all processes, in their order; `name` says in errors what for."""
  if jax.process_count() == 1:
    return [text]
  content = np.frombuffer(text.encode(), np.uint8)
  lengths = multihost_utils.process_allgather(np.int32(len(content)))
  rows = multihost_utils.process_allgather(np.pad(content, (0, lengths.max() - len(content))))
  return [bytes(row[:length]).decode() for row, length in zip(rows, lengths, strict=True)]


def from_first(values: np.ndarray) -> np.ndarray:
  """The first process's values, bit for bit, on all; every process gives an array of that shape and type."""
  if jax.process_count() == 1:
    return values
  # As bytes: JAX would round float64.
  content = multihost_utils.broadcast_one_to_all(np.frombuffer(values.tobytes(), np.uint8))
  return np.frombuffer(np.asarray(content, np.uint8).tobytes(), values.dtype).reshape(values.shape)


def barrier(name: str) -> None:
  """Returns when all processes are here."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(name)


@contextlib.contextmanager
def claim(workdir: pathlib.Path) -> Iterator[None]:
  """Holds the workdir for this run; a second one is refused. The lock dies with the process, however it dies."""
  if jax.process_index() != 0:
    agree(None)
    yield
    return
  workdir.mkdir(parents=True, exist_ok=True)
  with open(workdir / "lock", "a+") as file:
    agree(_lock(file, workdir))
    yield


@contextlib.contextmanager
def locked(workdir: pathlib.Path) -> Iterator[None]:
  """As `claim`, for a program of one process that touches no device; ConfigError if another holds the workdir."""
  workdir.mkdir(parents=True, exist_ok=True)
  with open(workdir / "lock", "a+") as file:
    if problem := _lock(file, workdir):
      raise ConfigError(problem)
    yield


def holder(workdir: pathlib.Path) -> str | None:
  """The process that holds a workdir now, in words; None if it is free."""
  try:
    with open(workdir / "lock", "r+") as file:
      fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
  except FileNotFoundError:
    return None
  except BlockingIOError:
    return (workdir / "lock").read_text().strip() or "unknown"
  return None


def _lock(file, workdir):
  """Locks the file, or says who holds it."""
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.seek(0)
    holder = file.read().strip() or "unknown"
    return f"{workdir} {IN_USE} {holder}; wait for it, stop it, or take another --workdir"
  file.truncate(0)
  file.write(f"{os.getpid()} on {socket.gethostname()}\n")
  file.flush()
  return None

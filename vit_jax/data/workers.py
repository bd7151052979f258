"""Worker processes that make parts of batches, for devices that are faster than a single Python process.

A worker is a separate Python process that opens the data itself. A pipe connects each thread of a worker to a thread of
the trainer. The trainer sends the number of a chunk, and the worker returns the chunk in shared memory. A worker exits
when a pipe is closed. Workers therefore never outlive the trainer.
"""

import contextlib
import ctypes
import logging
import mmap
import multiprocessing.connection
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from vit_jax.config import extensions
from vit_jax.data import images
from vit_jax.data.images import ImageError
from vit_jax.schema import ConfigError


class ChunkMaker(Protocol):
  """Makes chunks of batches, see `loader.Chunks`."""

  @property
  def examples(self) -> Any:
    """Examples of the batches."""

  @property
  def images(self) -> images.Images:
    """Decoded images of the source of the examples."""

  @property
  def parts(self) -> list[np.ndarray]:
    """Rows of each chunk of a batch."""

  def empty(self, rows: int) -> dict[str, np.ndarray]:
    """Returns arrays for a number of rows."""

  def fill(self, index: int, arrays: dict[str, np.ndarray], ended: Callable[[], bool]) -> None:
    """Fills the arrays with a chunk."""

  def place(self, index: int) -> str:
    """Returns a description of a chunk."""


class WorkerError(RuntimeError):
  """An error for a worker process that has ended unexpectedly. The message names the process and the reason."""


class WorkerConnection:
  """The trainer's connection to a thread of a worker: a pipe, and shared memory for chunks.

  Args:
    size: size of the shared memory in bytes.
  """

  def __init__(self, size: int) -> None:
    self.connection, self.worker_end = multiprocessing.connection.Pipe()
    self.file = _create_shared_file(size)
    self.memory = mmap.mmap(self.file, size)
    self.process: subprocess.Popen[bytes] | None = None
    self.waiting: tuple[int, float] | None = None  # (chunk, start time) of the chunk in progress


class WorkerPool:
  """Worker processes that make chunks. `close` stops them.

  Args:
    opened: function that returns the same chunks in another process. It can be pickled.
    chunks: a `loader.Chunks`.
    workers: number of processes.
    threads: number of threads of all processes together. Each process has at least one.
  """

  def __init__(self, opened: Callable[[], ChunkMaker], chunks: ChunkMaker, workers: int, threads: int) -> None:
    self._chunks, self._closed = chunks, False
    size = sum(array.nbytes for array in chunks.empty(max(map(len, chunks.parts))).values())
    self.lines = [WorkerConnection(size) for _ in range(max(threads, workers))]
    decoded_descriptor = _create_shared_file(chunks.images.decoded.nbytes)
    self._processes = [self._start(opened, size, decoded_descriptor, self.lines[i::workers]) for i in range(workers)]
    chunks.images.decoded = _map_bits(decoded_descriptor)
    os.close(decoded_descriptor)
    # The same worker always makes rows that share records that are read together.
    self._idle = [queue.SimpleQueue() for _ in range(workers if chunks.examples.order.rows > 1 else 1)]
    for i, line in enumerate(self.lines):
      self._idle[i % workers % len(self._idle)].put(line)

  def _start(
    self, opened: Callable[[], object], size: int, decoded_descriptor: int, lines: Sequence[WorkerConnection]
  ) -> "subprocess.Popen[bytes]":
    descriptors = [decoded_descriptor, *(number for line in lines for number in (line.worker_end.fileno(), line.file))]
    process = subprocess.Popen(
      [sys.executable, "-m", "vit_jax.data.workers", str(size), str(_find_parent()), *map(str, descriptors)],
      stdin=subprocess.DEVNULL,
      stdout=2,
      # Only the trainer uses the devices.
      env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
      pass_fds=descriptors,
      start_new_session=True,
    )
    for line in lines:
      line.process = process
      line.worker_end.close()
      os.close(line.file)
    with contextlib.suppress(OSError):  # the process has already ended, which the next request detects
      lines[0].connection.send(extensions.list_active())
      lines[0].connection.send(opened)
    return process

  def fill(self, index: int, arrays: dict[str, np.ndarray], ended: Callable[[], bool]) -> None:
    """Makes a chunk in the given arrays with an idle thread of a worker. See `loader.Chunks.fill`.

    Args:
      index: number of the chunk.
      arrays: arrays of the chunk's rows, by name.
      ended: not used.

    Raises:
      ImageError: if an image is bad and bad images are not skipped.
      WorkerError: if the worker has ended.
    """
    idle = self._idle[index % len(self._chunks.parts) % len(self._idle)]
    line = idle.get()
    line.waiting = index, time.monotonic()
    try:
      line.connection.send(index)
      reasons, problem = line.connection.recv()
      for record, reason in reasons.items():
        self._chunks.images.skip(record, reason)
      if problem:
        raise self._chunks.images.stop(problem)
      for name, view in _create_views(arrays, line.memory).items():
        arrays[name][:] = view
    except (EOFError, OSError):
      raise WorkerError("it was closed" if self._closed else _describe_end(line.process)) from None
    finally:
      line.waiting = None
      idle.put(line)

  def reading(self) -> list[tuple[str, float]]:
    """Returns (description, seconds) of the chunks that are being made, the longest-running first."""
    waits = [(*line.waiting, line.process.pid) for line in self.lines if line.waiting and line.process]
    now = time.monotonic()
    return [
      (f"{self._chunks.place(index)}, by input process {pid}", now - since)
      for index, since, pid in sorted(waits, key=lambda wait: wait[1])
    ]

  def close(self) -> None:
    """Stops the processes immediately. They hold no data that could be lost."""
    self._closed = True
    for process in self._processes:
      process.kill()
    for process in self._processes:
      process.wait()


def _find_parent() -> int:
  """Returns the process that a worker must not outlive, or 0 outside of the main thread.

  The kernel watches the thread that started the worker. Only the main thread exists as long as the process.
  """
  return os.getpid() if threading.current_thread() is threading.main_thread() else 0


def _describe_end(process: "subprocess.Popen[bytes]") -> str:
  """Returns a description of how a worker ended."""
  code = process.wait()
  how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
  advice = ". If memory ran out (see dmesg), set a smaller --config.data.workers" if code == -signal.SIGKILL else ""
  return f"input process {process.pid}, one of config.data.workers, {how}{advice}"


def _create_shared_file(size: int) -> int:
  """Returns a descriptor of an unnamed file in memory, which disappears when all processes have closed it."""
  if hasattr(os, "memfd_create"):
    descriptor = os.memfd_create("images")
  else:
    with tempfile.TemporaryFile() as file:
      descriptor = os.dup(file.fileno())
  os.ftruncate(descriptor, size)
  return descriptor


def _map_bits(descriptor: int) -> np.ndarray:
  """Returns a shared file as a uint8 array."""
  return np.frombuffer(mmap.mmap(descriptor, 0), np.uint8)


def _create_views(arrays: Mapping[str, np.ndarray], memory: mmap.mmap) -> dict[str, np.ndarray]:
  """Returns arrays with the shapes of the given ones that use the shared memory."""
  views, at = {}, 0
  for name, array in arrays.items():
    views[name] = np.frombuffer(memory, array.dtype, array.size, at).reshape(array.shape)
    at += array.nbytes
  return views


# Code that runs in a worker.

_PDEATHSIG = 1  # PR_SET_PDEATHSIG: sets the signal for the end of the thread that started this process


def main(size: int, parent: int, decoded_descriptor: int, descriptors: list[int]) -> None:
  """Makes chunks until a pipe is closed.

  Args:
    size: size of the shared memory of each connection in bytes.
    parent: number of the trainer's process, or 0 if the kernel does not watch it.
    decoded_descriptor: descriptor of the shared memory of `Images.decoded`. The memory is shared so that usually only
      one worker decodes an image completely.
    descriptors: descriptors of the pipe and the shared memory of each connection.
  """
  if parent and sys.platform == "linux":
    # The worker ends with the trainer in all cases, even if the worker is stopped or waits for a disk.
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
      os._exit(0)
  # Ignored because these signals reach all processes, and the trainer needs images until it stops.
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  threading.excepthook = _exit_with_traceback
  logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s: input process {os.getpid()}: %(message)s")
  images.LOG.disabled = True  # the trainer logs skipped images
  connections = [multiprocessing.connection.Connection(number) for number in descriptors[::2]]
  memories = [mmap.mmap(number, size) for number in descriptors[1::2]]
  try:
    extensions.import_active(connections[0].recv())  # before the data are opened, because the reader may be the user's
    chunks = connections[0].recv()()
    chunks.images.decoded = _map_bits(decoded_descriptor)
    lines = [
      threading.Thread(target=_serve_chunks, args=(chunks, *line)) for line in zip(connections, memories, strict=True)
    ]
  # The trainer could open the data before, so its bucket or its files have changed.
  except (ConfigError, OSError) as error:
    lines = [threading.Thread(target=_send_problem, args=(str(error), connection)) for connection in connections]
  for line in lines:
    line.start()


def _serve_chunks(chunks: ChunkMaker, connection: Any, memory: mmap.mmap) -> None:
  """Makes the chunks that one connection requests."""
  known = set()  # bad records that this connection has already reported
  while (index := _receive_request(connection)) is not None:
    problem = None
    try:
      arrays = chunks.empty(len(chunks.parts[index % len(chunks.parts)]))
      chunks.fill(index, _create_views(arrays, memory), lambda: False)
    except ImageError as error:
      problem = str(error)
    reasons = {record: reason for record, reason in chunks.images.reasons.copy().items() if record not in known}
    known.update(reasons)
    connection.send((reasons, problem))
  os._exit(0)  # the trainer has ended; other threads may be in a read that never ends


def _send_problem(problem: str, connection: Any) -> None:
  """Answers all requests of one connection with the reason why the data cannot be opened."""
  while _receive_request(connection) is not None:
    connection.send(({}, problem))
  os._exit(0)


def _receive_request(connection: Any) -> int | None:
  """Returns the number of the next requested chunk, or None if the trainer has ended."""
  try:
    return connection.recv()
  except (EOFError, ConnectionError):
    return None


def _exit_with_traceback(error: threading.ExceptHookArgs) -> None:
  """Ends the worker with a traceback after a bug in one thread. The trainer reports the end."""
  assert error.exc_value is not None
  sys.excepthook(error.exc_type, error.exc_value, error.exc_traceback)
  sys.stderr.flush()
  os._exit(1)


if __name__ == "__main__":
  main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [int(number) for number in sys.argv[4:]])

"""Worker processes that make pieces of batches, where one process's Python is too slow for its devices.

A worker is a Python of its own, which opens the data itself. Each of its threads has a pipe to a thread of the
trainer: the number of a chunk goes there, and the chunk comes back in memory that both share. A worker ends when a
pipe does, so none is left however the trainer ends.
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
from collections.abc import Callable

import numpy as np

from vit_jax import extensions
from vit_jax.data import images
from vit_jax.data.images import ImageError
from vit_jax.schema import ConfigError


class WorkerError(RuntimeError):
  """A worker process has ended; says which, and how."""


class Line:
  """A thread of a worker as the trainer sees it: a pipe, and the memory that chunks come in."""

  def __init__(self, size: int):
    self.connection, self.far = multiprocessing.connection.Pipe()
    self.file = _shared(size)
    self.memory = mmap.mmap(self.file, size)
    self.process = None
    self.waiting = None  # (chunk, since)


class Pool:
  """Worker processes with `lines` that take chunks to be made; `close` ends them."""

  def __init__(self, opened: Callable, chunks, workers: int, threads: int):
    """Starts the processes.

    Args:
      opened: gives the same chunks in another process, and can be pickled.
      chunks: a `loader.Chunks`.
      workers: how many processes.
      threads: of all of them together, at least one of each.
    """
    self._chunks, self._closed = chunks, False
    size = sum(array.nbytes for array in chunks.empty(max(map(len, chunks.parts))).values())
    self.lines = [Line(size) for _ in range(max(threads, workers))]
    self._processes = [self._start(opened, size, self.lines[i::workers]) for i in range(workers)]
    # Rows that share what is read together are always made by the same worker.
    self._idle = [queue.SimpleQueue() for _ in range(workers if chunks.examples.order.rows > 1 else 1)]
    for i, line in enumerate(self.lines):
      self._idle[i % workers % len(self._idle)].put(line)

  def _start(self, opened, size, lines):
    descriptors = [number for line in lines for number in (line.far.fileno(), line.file)]
    process = subprocess.Popen(
      [sys.executable, "-m", "vit_jax.data.workers", str(size), str(_parent()), *map(str, descriptors)],
      stdin=subprocess.DEVNULL,
      stdout=2,
      # The devices are the trainer's, and its alone.
      env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
      pass_fds=descriptors,
      start_new_session=True,
    )
    for line in lines:
      line.process = process
      line.far.close()
      os.close(line.file)
    with contextlib.suppress(OSError):  # it is dead already, which is seen by who asks it for something
      lines[0].connection.send(extensions.active())
      lines[0].connection.send(opened)
    return process

  def fill(self, index: int, arrays: dict[str, np.ndarray], ended: Callable[[], bool]) -> None:
    """As `loader.Chunks.fill`, by a line that is idle. Raises WorkerError where its worker has died."""
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
      for name, view in _views(arrays, line.memory).items():
        arrays[name][:] = view
    except (EOFError, OSError):
      raise WorkerError("it was closed" if self._closed else _death(line.process)) from None
    finally:
      line.waiting = None
      idle.put(line)

  def reading(self) -> list[tuple[str, float]]:
    """(what, seconds) of the chunks that are being made now, those that take longest first."""
    waits = [(*waiting, line.process.pid) for line in self.lines if (waiting := line.waiting)]
    now = time.monotonic()
    return [
      (f"{self._chunks.place(index)}, by input process {pid}", now - since)
      for index, since, pid in sorted(waits, key=lambda wait: wait[1])
    ]

  def close(self) -> None:
    """Ends the processes at once: they hold nothing that could be lost."""
    self._closed = True
    for process in self._processes:
      process.kill()
    for process in self._processes:
      process.wait()


def _parent():
  """The process that a worker shall not outlive; 0 where a thread starts it, which the kernel would watch instead."""
  return os.getpid() if threading.current_thread() is threading.main_thread() else 0


def _death(process):
  """How a worker ended, in words."""
  code = process.wait()
  how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
  advice = "; if memory was short (see dmesg), set a smaller --config.data.workers" if code == -signal.SIGKILL else ""
  return f"input process {process.pid}, one of config.data.workers, {how}{advice}"


def _shared(size):
  """A file of so many bytes in memory, without a name: it goes with those who have it open."""
  if hasattr(os, "memfd_create"):
    descriptor = os.memfd_create("images")
  else:
    with tempfile.TemporaryFile() as file:
      descriptor = os.dup(file.fileno())
  os.ftruncate(descriptor, size)
  return descriptor


def _views(arrays, memory):
  """Such arrays where they lie in the shared memory."""
  views, at = {}, 0
  for name, array in arrays.items():
    views[name] = np.frombuffer(memory, array.dtype, array.size, at).reshape(array.shape)
    at += array.nbytes
  return views


# In a worker.

_PDEATHSIG = 1  # PR_SET_PDEATHSIG: the signal that comes when the thread that started this process ends


def main(size: int, parent: int, descriptors: list[int]) -> None:
  """Makes chunks until a pipe ends."""
  if parent and sys.platform == "linux":
    # Also one that is stopped, or waits for a disk, goes with the trainer, however that ends.
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
      os._exit(0)
  for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # to all: the trainer stops first, and needs images to
    signal.signal(number, signal.SIG_IGN)
  threading.excepthook = _die
  logging.basicConfig(level=logging.WARNING, format=f"%(levelname)s: input process {os.getpid()}: %(message)s")
  images.LOG.disabled = True  # the trainer says what is skipped
  connections = [multiprocessing.connection.Connection(number) for number in descriptors[::2]]
  memories = [mmap.mmap(number, size) for number in descriptors[1::2]]
  try:
    extensions.adopt(connections[0].recv())  # before the data, whose reader may be the user's
    chunks = connections[0].recv()()
    lines = [threading.Thread(target=_serve, args=(chunks, *line)) for line in zip(connections, memories, strict=True)]
  except (ConfigError, OSError) as error:  # the trainer could open it: its bucket has gone since, or its files changed
    lines = [threading.Thread(target=_refuse, args=(str(error), connection)) for connection in connections]
  for line in lines:
    line.start()


def _serve(chunks, connection, memory):
  """Makes the chunks that are asked for on one line."""
  known = set()  # records of which the trainer has heard on this line that they are bad
  while (index := _asked(connection)) is not None:
    problem = None
    try:
      arrays = chunks.empty(len(chunks.parts[index % len(chunks.parts)]))
      chunks.fill(index, _views(arrays, memory), lambda: False)
    except ImageError as error:
      problem = str(error)
    reasons = {record: reason for record, reason in chunks.images.reasons.copy().items() if record not in known}
    known.update(reasons)
    connection.send((reasons, problem))
  os._exit(0)  # the trainer is gone; other threads may be inside of a read that never ends


def _refuse(problem, connection):
  """Answers whatever is asked for on one line with why the data cannot be opened."""
  while _asked(connection) is not None:
    connection.send(({}, problem))
  os._exit(0)


def _asked(connection):
  """The number of the chunk that is wanted next; None where the trainer is gone."""
  try:
    return connection.recv()
  except (EOFError, ConnectionError):
    return None


def _die(error):
  """A bug in one thread ends the worker, with its traceback, and is the trainer's to tell."""
  sys.excepthook(error.exc_type, error.exc_value, error.exc_traceback)
  sys.stderr.flush()
  os._exit(1)


if __name__ == "__main__":
  main(int(sys.argv[1]), int(sys.argv[2]), [int(number) for number in sys.argv[3:]])

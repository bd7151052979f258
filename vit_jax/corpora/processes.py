"""Worker processes that do tasks, one each at a time, and say how far they are."""

import ctypes
import itertools
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vit_jax import runtime
from vit_jax.schema import ConfigError

_PDEATHSIG = 1  # PR_SET_PDEATHSIG: the signal that comes when the process that started this one ends

# (task, say) -> result; `say` takes anything that can be pickled.
Work = Callable[[Any, Callable[[Any], None]], Any]


def done(
  prepare: Callable[[Any], Work], tasks: Iterable, processes: int, heard: Callable[[Any, Any], None]
) -> Iterator[tuple[Any, Any]]:
  """(task, result) of all tasks, as they end. With one process they are done in this one.

  Args:
    prepare: makes the work of one process of a lock that all have; can be pickled.
    tasks: that can be pickled; none of them None.
    processes: how many.
    heard: gets a task and whatever its work says.

  Raises:
    ConfigError, OSError: of the work.
    runtime.Stop: a process has died.
  """
  context = multiprocessing.get_context("spawn")  # threads, also those of libraries, survive no fork
  tasks, lock = iter(tasks), context.Lock()
  if processes < 2:
    work = prepare(lock)
    for task in tasks:
      yield task, work(task, lambda words, task=task: heard(task, words))
    return
  workers, started = {}, []  # by connection: (process, task)
  try:
    for task in itertools.islice(tasks, processes):
      near, far = context.Pipe()
      process = context.Process(target=_serve, args=(prepare, lock, far, os.getpid()), daemon=True)
      process.start()
      started.append(process)
      far.close()
      near.send(task)
      workers[near] = process, task
    while workers:
      for connection in multiprocessing.connection.wait(list(workers)):
        process, task = workers[connection]
        kind, value = _received(connection, process)
        if kind == "said":
          heard(task, value)
        elif kind == "failed":
          raise value
        else:
          following = next(tasks, None)
          if following is None:
            del workers[connection]
            connection.close()
          else:
            connection.send(following)
            workers[connection] = process, following
          yield task, value
  finally:
    for process in started:
      process.kill()  # it holds nothing but half a file
    for process in started:
      process.join()


def _received(connection, process):
  try:
    return connection.recv()
  except (EOFError, OSError):
    process.join()
    code = process.exitcode
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    advice = "; if memory was short (see dmesg), with fewer --processes" if code == -signal.SIGKILL else ""
    raise runtime.Stop(
      runtime.EXIT_PEER, f"worker process {process.pid} {how}; the same command continues{advice}"
    ) from None


# In a worker.


def _serve(prepare, lock, connection, parent):
  """Does tasks until the pipe ends."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
      os._exit(0)
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal, to all: the first process ends the others
  work = None
  while True:
    try:
      task = connection.recv()
    except EOFError:
      return
    try:
      work = work or prepare(lock)
      result = work(task, lambda words: connection.send(("said", words)))
    except (ConfigError, OSError) as error:
      connection.send(("failed", error))
      return
    connection.send(("done", result))

"""Worker processes that each execute one task at a time and report their progress."""

import contextlib
import ctypes
import dataclasses
import functools
import itertools
import multiprocessing
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from vit_jax import runtime
from vit_jax.schema import ConfigError

_PDEATHSIG = 1  # PR_SET_PDEATHSIG: the signal that this process receives when its parent ends

# Seconds between two checks of the workers, seconds of silence after which a worker is named, and seconds after which
# it is killed. A request to a bucket is repeated for 240 s.
LOOK, QUIET, LIMIT = 1.0, 60.0, 900.0
# Signals that a terminal or a machine that shuts down sends to all processes. The first process handles them and ends
# the others.
FOR_THE_FIRST = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# (task, say) -> result. The argument `say` sends any object that can be pickled.
RunTask = Callable[[Any, Callable[[Any], None]], Any]


@dataclasses.dataclass
class _Worker:
  """A worker as seen by the first process."""

  process: multiprocessing.process.BaseProcess
  connection: multiprocessing.connection.Connection
  task: Any
  silent: float = 0.0  # seconds


@contextlib.contextmanager
def run_tasks(
  prepare: Callable[[Any], RunTask],
  tasks: Iterable[object],
  processes: int,
  heard: Callable[[Any, Any], None],
  named: Callable[[Any], str] = str,
) -> Iterator[Iterator[tuple[Any, Any]]]:
  """Executes tasks in worker processes and yields an iterator over the results, in the order in which tasks end.

  With fewer than two processes, the tasks run in this process. The workers are killed when the context ends.

  Args:
    prepare: called with a lock that all processes share, returns the function that executes tasks. It must be
      picklable.
    tasks: picklable objects other than None.
    processes: number of worker processes.
    heard: called with a task and each of its progress reports.
    named: returns a description of a task.

  Yields:
    An iterator of (task, result).

  Raises:
    ConfigError: raised by a task.
    OSError: raised by a task.
    Stop: a process has died, or has not reported for `LIMIT` seconds.

  Example:
    import functools
    from vit_jax.corpora import processes

    def square(lock):
      return lambda task, report: task**2

    with processes.run_tasks(square, [1, 2, 3], 1, heard=print) as results:
      assert list(results) == [(1, 1), (2, 4), (3, 9)]
  """
  context = multiprocessing.get_context("spawn")  # threads, including those of libraries, do not survive a fork
  if processes < 2:
    yield _run_alone(prepare(context.Lock()), tasks, heard)
    return
  others = multiprocessing.active_children()
  try:
    yield _run_in_workers(context, functools.partial(prepare, context.Lock()), iter(tasks), processes, heard, named)
  finally:
    mine = [process for process in multiprocessing.active_children() if process not in others]
    for process in mine:
      process.kill()  # it has only part of a file, which is not yet visible
    for process in mine:
      process.join(10)  # a process that waits for a disk in the kernel takes longer


def _run_alone(work: RunTask, tasks: Iterable[object], heard: Callable[[Any, Any], None]) -> Iterator[tuple[Any, Any]]:
  """Yields (task, result) of tasks that this process executes."""
  for task in tasks:
    yield task, work(task, functools.partial(heard, task))


def _run_in_workers(
  context: Any,
  prepare: Callable[[], RunTask],
  tasks: Iterator[object],
  processes: int,
  heard: Callable[[Any, Any], None],
  named: Callable[[Any], str],
) -> Iterator[tuple[Any, Any]]:
  """Yields (task, result) of tasks that worker processes execute."""
  workers = {}  # workers with a task, by connection
  for task in itertools.islice(tasks, processes):
    near, far = context.Pipe()
    process = context.Process(target=_serve_tasks, args=(prepare, far, os.getpid()), daemon=True)
    process.start()
    workers[near] = _Worker(process, near, task)
    far.close()
    near.send(task)
  while workers:
    before = time.monotonic()
    ready = multiprocessing.connection.wait(list(workers), LOOK)
    # If the whole program was suspended, as by Ctrl-Z, the pause does not count.
    _check_silence(workers.values(), min(time.monotonic() - before, 2 * LOOK), named)
    for connection in ready:
      worker = workers[connection]
      worker.silent, (kind, value) = 0.0, _receive(worker.connection, worker.process)
      if kind == "text":
        heard(worker.task, value)
      elif kind == "failed":
        raise value
      else:
        task, worker.task = worker.task, next(tasks, None)
        if worker.task is None:
          del workers[connection]
          worker.connection.close()
        else:
          worker.connection.send(worker.task)
        yield task, value


def _check_silence(workers: Iterable[_Worker], seconds: float, named: Callable[[Any], str]) -> None:
  """Measures the time since each worker's last report. Prints a note if it is long, and raises Stop at the limit."""
  for worker in workers:
    before, worker.silent = worker.silent, worker.silent + seconds
    about = f"worker process {worker.process.pid} has not reported for"
    if worker.silent >= LIMIT:
      raise runtime.Stop(
        runtime.EXIT_HANG,
        f"{about} {LIMIT:g} s while it processed {named(worker.task)}. It is killed (SIGKILL), because this is the "
        "limit. "
        "Check that the disk or bucket of its input responds. The same command continues",
      )
    if before < QUIET <= worker.silent:
      runtime.print_line(
        f"note: {about} {QUIET:g} s while it processed {named(worker.task)}. It is killed after {LIMIT:g} s"
      )


def _receive(
  connection: multiprocessing.connection.Connection, process: multiprocessing.process.BaseProcess
) -> tuple[str, Any]:
  try:
    return connection.recv()
  except (EOFError, OSError):
    process.join()
    code = process.exitcode
    assert code is not None
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    advice = ". If memory ran out (see dmesg), use fewer --processes" if code == -signal.SIGKILL else ""
    raise runtime.Stop(
      runtime.EXIT_PEER, f"worker process {process.pid} {how}; the same command continues{advice}"
    ) from None


# Functions below run in a worker.


def _serve_tasks(
  prepare: Callable[[], RunTask], connection: multiprocessing.connection.Connection, parent: int
) -> None:
  """Executes tasks until the pipe is closed."""
  if sys.platform == "linux":
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
      os._exit(0)
  for number in FOR_THE_FIRST:
    signal.signal(number, signal.SIG_IGN)
  work = None
  while True:
    try:
      task = connection.recv()
    except EOFError:
      return
    try:
      work = work or prepare()
      result = work(task, lambda words: connection.send(("text", words)))
    except (ConfigError, OSError) as error:
      connection.send(("failed", error))
      return
    connection.send(("done", result))

"""Worker processes that do tasks, one each at a time, and say how far they are."""

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

_PDEATHSIG = 1  # PR_SET_PDEATHSIG: the signal that comes when the process that started this one ends

# Seconds between two looks at workers, and without a word of one after which it is named, and ended. A request to a
# bucket is tried for 240.
LOOK, QUIET, LIMIT = 1.0, 60.0, 900.0
# What a terminal or a machine that shuts down sends to all processes: the first one ends the others.
FOR_THE_FIRST = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# (task, say) -> result; `say` takes anything that can be pickled.
Work = Callable[[Any, Callable[[Any], None]], Any]


@dataclasses.dataclass
class _Worker:
  """A worker as the first process sees it."""

  process: multiprocessing.process.BaseProcess
  task: Any
  silent: float = 0.0  # seconds


@contextlib.contextmanager
def done(
  prepare: Callable[[Any], Work],
  tasks: Iterable,
  processes: int,
  heard: Callable[[Any, Any], None],
  named: Callable[[Any], str] = str,
) -> Iterator[Iterator[tuple[Any, Any]]]:
  """(task, result) of all tasks, as they end, for as long as the context lasts. One process does them in this one.

  Args:
    prepare: makes the work of one process of a lock that all have; can be pickled.
    tasks: that can be pickled; none of them None.
    processes: how many.
    heard: gets a task and whatever its work says.
    named: a task in words.

  Raises:
    ConfigError, OSError: of the work.
    runtime.Stop: a process has died, or has said nothing for `LIMIT` seconds.
  """
  context = multiprocessing.get_context("spawn")  # threads, also those of libraries, survive no fork
  if processes < 2:
    yield _alone(prepare(context.Lock()), tasks, heard)
    return
  others = multiprocessing.active_children()
  try:
    yield _together(context, functools.partial(prepare, context.Lock()), iter(tasks), processes, heard, named)
  finally:
    mine = [process for process in multiprocessing.active_children() if process not in others]
    for process in mine:
      process.kill()  # it holds nothing but half a file
    for process in mine:
      process.join(10)  # one that waits for a disk in the kernel takes longer


def _alone(work, tasks, heard):
  """(task, result) of tasks that this process does."""
  for task in tasks:
    yield task, work(task, lambda words, task=task: heard(task, words))


def _together(context, prepare, tasks, processes, heard, named):
  """(task, result) of tasks that so many processes do."""
  workers = {}  # that have a task, by connection
  for task in itertools.islice(tasks, processes):
    near, far = context.Pipe()
    process = context.Process(target=_serve, args=(prepare, far, os.getpid()), daemon=True)
    process.start()
    workers[near] = _Worker(process, task)
    far.close()
    near.send(task)
  while workers:
    before = time.monotonic()
    ready = multiprocessing.connection.wait(list(workers), LOOK)
    # Of a program that was stopped as a whole, as by Ctrl-Z, the pause does not count.
    _check_silence(workers.values(), min(time.monotonic() - before, 2 * LOOK), named)
    for connection in ready:
      worker = workers[connection]
      worker.silent, (kind, value) = 0.0, _received(connection, worker.process)
      if kind == "said":
        heard(worker.task, value)
      elif kind == "failed":
        raise value
      else:
        task, worker.task = worker.task, next(tasks, None)
        if worker.task is None:
          del workers[connection]
          connection.close()
        else:
          connection.send(worker.task)
        yield task, value


def _check_silence(workers, seconds, named):
  """Says which worker has said nothing for long, after so many seconds more; Stop where it is too long."""
  for worker in workers:
    before, worker.silent = worker.silent, worker.silent + seconds
    about = f"worker process {worker.process.pid} has said nothing for"
    if worker.silent >= LIMIT:
      raise runtime.Stop(
        runtime.EXIT_HANG,
        f"{about} {LIMIT:g} s, the limit, at {named(worker.task)} and is ended (SIGKILL); see whether the disk or "
        "bucket of its input answers; the same command continues",
      )
    if before < QUIET <= worker.silent:
      runtime.say(f"note: {about} {QUIET:g} s, at {named(worker.task)}; it is ended after {LIMIT:g} s")


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


def _serve(prepare, connection, parent):
  """Does tasks until the pipe ends."""
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
      result = work(task, lambda words: connection.send(("said", words)))
    except (ConfigError, OSError) as error:
      connection.send(("failed", error))
      return
    connection.send(("done", result))

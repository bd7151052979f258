"""Prefetching: threads that compute results in advance, in order. They do not prevent the process from ending."""

import collections
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

# Time in seconds that `close` waits for running tasks. A thread that reads from a dead mount never ends, but others
# do. A thread that is inside of OpenCV when Python exits would abort the process.
PATIENCE = 2.0


Result = TypeVar("Result")
_Tasks = queue.SimpleQueue[tuple[tuple[object, ...], Future[Result]] | None]  # arguments and result; None ends a thread


class ThreadPool(Generic[Result]):
  """Threads that compute `work(*arguments, ended)` for submitted arguments, in order. `close` stops them.

  The threads start with the first call of `submit`. `ended` is a threading.Event. It is set when results are no longer
  needed.

  Args:
    work: function of the submitted arguments and `ended`.
    threads: number of threads.
  """

  def __init__(self, work: Callable[..., Result], threads: int) -> None:
    self._tasks: _Tasks[Result] = queue.SimpleQueue()
    self._started = threading.Lock()
    ended = threading.Event()
    # Daemon threads, because the interpreter would wait for others.
    self._threads = [
      threading.Thread(target=_serve_tasks, args=(work, self._tasks, ended), daemon=True, name="images")
      for _ in range(threads)
    ]
    self._end = weakref.finalize(
      self, _stop_threads, self._threads, self._tasks, ended
    )  # also called when Python exits

  @property
  def closed(self) -> bool:
    """True if the pool accepts no more arguments."""
    return not self._end.alive

  def submit(self, *arguments: object) -> Future[Result]:
    """Returns a future with the result or the error of `work` for the arguments."""
    assert not self.closed
    with self._started:
      if not self._threads[0].ident:
        for thread in self._threads:
          thread.start()
    result: Future[Result] = Future()
    self._tasks.put((arguments, result))
    return result

  def close(self) -> None:
    """Stops the threads after at most `PATIENCE` seconds. Tasks that have not started never complete."""
    self._end()


class Prefetch(Iterator[Result]):
  """An iterator over `work(i, ended)` for each i of a range, in order.

  An error of `work` is raised instead of its result.

  Args:
    work: function of an index and of an event `ended`, see `ThreadPool`.
    indices: indices of the results.
    threads: number of threads.
    ahead: largest number of results that are computed before they are requested. Computation starts with the first
      `next`.
  """

  def __init__(self, work: Callable[..., Result], indices: range, threads: int, ahead: int) -> None:
    self._indices, self._ahead = iter(indices), ahead
    self._results: collections.deque[Future[Result]] = collections.deque()
    self._pool = ThreadPool(work, threads)

  def __next__(self) -> Result:
    assert not self._pool.closed
    self._fill()
    if not self._results:
      raise StopIteration
    result = self._results.popleft()
    self._fill()
    return result.result()

  def _fill(self) -> None:
    while len(self._results) < self._ahead and (index := next(self._indices, None)) is not None:
      self._results.append(self._pool.submit(index))

  def close(self) -> None:
    """Stops the threads after at most `PATIENCE` seconds. The iterator cannot be used afterwards."""
    self._pool.close()


def _serve_tasks(work: Callable[..., Result], tasks: _Tasks[Result], ended: threading.Event) -> None:
  while (task := tasks.get()) is not None and not ended.is_set():
    arguments, result = task
    try:
      result.set_result(work(*arguments, ended))
    except BaseException as error:  # raised when the result is requested
      result.set_exception(error)


def _stop_threads(threads: Sequence[threading.Thread], tasks: _Tasks[Result], ended: threading.Event) -> None:
  ended.set()
  for _ in threads:
    tasks.put(None)
  deadline = time.monotonic() + PATIENCE
  for thread in threads:
    if thread.ident:
      thread.join(max(0.0, deadline - time.monotonic()))

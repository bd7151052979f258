"""Results that threads make ahead, in order; no thread keeps them, or the process, from ending."""

import collections
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future

# Seconds that ending waits for threads in the middle of their work. One that reads from a dead mount never ends, others
# do: a thread that is inside of OpenCV when Python is gone would abort the process.
PATIENCE = 2.0


class Prefetch(Iterator):
  """`work(i, ended)` for each i of a range, in order; an error of `work` is raised in the place of its result.

  Up to `ahead` of them are made before they are asked for, from the first `next` on. `ended` is a threading.Event:
  once it is set, nobody wants the result.
  """

  def __init__(self, work: Callable, indices: range, threads: int, ahead: int):
    self._indices, self._ahead = iter(indices), ahead
    self._results, self._tasks = collections.deque(), queue.SimpleQueue()
    self._ended = threading.Event()
    arguments = work, self._tasks, self._ended
    # Daemons, or else the interpreter would wait for them.
    self._threads = [
      threading.Thread(target=_serve, args=arguments, daemon=True, name="images") for _ in range(threads)
    ]
    self._end = weakref.finalize(self, _end, self._threads, self._tasks, self._ended)  # also when Python ends

  def __next__(self):
    assert self._end.alive, "it is closed"
    if not self._threads[0].ident:
      for thread in self._threads:
        thread.start()
    self._fill()
    if not self._results:
      raise StopIteration
    result = self._results.popleft()
    self._fill()
    return result.result()

  def _fill(self):
    while len(self._results) < self._ahead and (index := next(self._indices, None)) is not None:
      self._results.append(Future())
      self._tasks.put((index, self._results[-1]))

  def close(self):
    """Ends the threads, at the latest after PATIENCE; the iterator cannot be used afterwards."""
    self._end()


def _serve(work, tasks, ended):
  while (task := tasks.get()) is not None and not ended.is_set():
    index, result = task
    try:
      result.set_result(work(index, ended))
    except BaseException as error:  # raised where the result is asked for
      result.set_exception(error)


def _end(threads, tasks, ended):
  ended.set()
  for _ in threads:
    tasks.put(None)
  deadline = time.monotonic() + PATIENCE
  for thread in threads:
    if thread.ident:
      thread.join(max(0.0, deadline - time.monotonic()))

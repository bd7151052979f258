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


class Pool:
  """Threads that make what is asked for, `work(*arguments, ended)`, in the order of asking; `close` ends them.

  They start when the first result is asked for. `ended` is a threading.Event: once it is set, nobody wants the result.
  """

  def __init__(self, work: Callable, threads: int):
    self._tasks, self._started = queue.SimpleQueue(), threading.Lock()
    ended = threading.Event()
    # Daemons, or else the interpreter would wait for them.
    self._threads = [
      threading.Thread(target=_serve, args=(work, self._tasks, ended), daemon=True, name="images")
      for _ in range(threads)
    ]
    self._end = weakref.finalize(self, _end, self._threads, self._tasks, ended)  # also when Python ends

  @property
  def closed(self) -> bool:
    """Whether nothing more can be asked for."""
    return not self._end.alive

  def submit(self, *arguments) -> Future:
    """What `work` makes of the arguments, or its error."""
    assert not self.closed
    with self._started:
      if not self._threads[0].ident:
        for thread in self._threads:
          thread.start()
    result = Future()
    self._tasks.put((arguments, result))
    return result

  def close(self) -> None:
    """Ends the threads, at the latest after PATIENCE; results that nobody has begun to make never come."""
    self._end()


class Prefetch(Iterator):
  """`work(i, ended)` for each i of a range, in order; an error of `work` is raised in the place of its result.

  Up to `ahead` of them are made before they are asked for, from the first `next` on.
  """

  def __init__(self, work: Callable, indices: range, threads: int, ahead: int):
    self._indices, self._ahead = iter(indices), ahead
    self._results, self._pool = collections.deque(), Pool(work, threads)

  def __next__(self):
    assert not self._pool.closed
    self._fill()
    if not self._results:
      raise StopIteration
    result = self._results.popleft()
    self._fill()
    return result.result()

  def _fill(self):
    while len(self._results) < self._ahead and (index := next(self._indices, None)) is not None:
      self._results.append(self._pool.submit(index))

  def close(self):
    """Ends the threads, at the latest after PATIENCE; the iterator cannot be used afterwards."""
    self._pool.close()


def _serve(work, tasks, ended):
  while (task := tasks.get()) is not None and not ended.is_set():
    arguments, result = task
    try:
      result.set_result(work(*arguments, ended))
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

"""Start, supervision and end of the processes of a run."""

import contextlib
from collections.abc import Iterator

from vit_jax import config
from vit_jax.runtime.exchange import barrier
from vit_jax.runtime.processes import check_devices, start
from vit_jax.runtime.watch import Watch


@contextlib.contextmanager
def join_processes(limits: config.Limits | None = None, again: str | None = None) -> Iterator[Watch]:
  """Joins the processes of a run and supervises them while the context is open.

  An error or an exceeded limit inside the context ends the program with one of the exit codes in `EXITS`. See `start`
  for the environment variables that place a process.

  Args:
    limits: the limits in seconds. The default is `config.Limits()`.
    again: description of what the same command does after a stop, for a program without checkpoints. See `Watch`.

  Yields:
    The `Watch` that supervises the program.

  Raises:
    ConfigError: the processes cannot join, or their devices are wrong. See `start` and `check_devices`.

  Example:
    from vit_jax import config, runtime

    with runtime.join_processes(config.Limits(step=600.0)) as watch:
      for step in range(3):
        watch.step = step
        watch.poll()
  """
  limits = limits or config.Limits()
  start(limits.start, int(limits.peer) + 40)  # JAX's own watchdog aborts the process, so it must react later than ours
  with Watch(limits, again) as watch:
    check_devices()
    yield watch
    with watch.phase("save"):
      barrier("done")  # the other processes must send signs of life while the first process writes

"""Start, agreement, supervision and exit codes of the processes of a run."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

from vit_jax import config
from vit_jax.runtime.exchange import agree, alone, barrier, compare, from_first, gather, process
from vit_jax.runtime.exits import (
  EXIT_BUG,
  EXIT_CONFIG,
  EXIT_DONE,
  EXIT_HANG,
  EXIT_INTERRUPTED,
  EXIT_MISSING,
  EXIT_NOT_FINITE,
  EXIT_PEER,
  EXIT_PREEMPTED,
  EXITS,
  IN_USE,
  Stop,
  ending,
)
from vit_jax.runtime.processes import check_devices, start
from vit_jax.runtime.watch import Preempted, Watch, stoppable
from vit_jax.runtime.workdirs import claim, holder, locked, obstacle

__all__ = [
  "EXITS",
  "EXIT_BUG",
  "EXIT_CONFIG",
  "EXIT_DONE",
  "EXIT_HANG",
  "EXIT_INTERRUPTED",
  "EXIT_MISSING",
  "EXIT_NOT_FINITE",
  "EXIT_PEER",
  "EXIT_PREEMPTED",
  "IN_USE",
  "Preempted",
  "Stop",
  "Watch",
  "agree",
  "alone",
  "barrier",
  "check_devices",
  "claim",
  "compare",
  "ending",
  "from_first",
  "gather",
  "holder",
  "joined",
  "locked",
  "obstacle",
  "process",
  "say",
  "start",
  "stoppable",
]


@contextlib.contextmanager
def joined(limits: config.Limits | None = None, again: str | None = None) -> Iterator[Watch]:
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

    with runtime.joined(config.Limits(step=600.0)) as watch:
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


def note(text: str) -> None:
  """Prints a line with `say` unless the text is empty."""
  if text:
    say(text)


def say(text: str) -> None:
  """Prints a line without delay, on the first process only."""
  if process() == 0:
    try:
      print(text, flush=True)
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EIO):
        raise
      # The reader has gone, for example behind `| head` or after the terminal was closed. Training must not end because
      # of it.
      sys.stdout = open(os.devnull, "w")

"""The processes of a run: how they start, agree, watch each other, are asked to stop, and end."""

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
  """Joins the processes of the run, see `start`, and watches them: what is inside ends by the contract of `EXITS`.

  `again` as of a `Watch`: what the same command does after a stop, of a program without checkpoints.
  """
  limits = limits or config.Limits()
  start(limits.start, int(limits.peer) + 40)  # JAX's own watch, which aborts, comes second
  with Watch(limits, again) as watch:
    check_devices()
    yield watch
    with watch.phase("save"):
      barrier("done")  # while the first process writes, the others give signs of life


def note(text: str) -> None:
  """As `say`, where there is something to say."""
  if text:
    say(text)


def say(text: str) -> None:
  """Prints a line at once, on the first process only."""
  if process() == 0:
    try:
      print(text, flush=True)
    except OSError as error:
      if error.errno not in (errno.EPIPE, errno.EIO):
        raise
      # Nobody reads any longer, as behind `| head` or on a terminal that was closed: that ends no training.
      sys.stdout = open(os.devnull, "w")

"""Start, agreement, supervision and exit codes of the processes of a run."""

from vit_jax.runtime.console import note, say
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
from vit_jax.runtime.lifecycle import joined
from vit_jax.runtime.processes import check_devices, start
from vit_jax.runtime.watch import Preempted, Watch, stoppable
from vit_jax.runtime.workdirs import claim, holder, locked, obstacle

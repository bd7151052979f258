"""Start, agreement, supervision and exit codes of the processes of a run."""

from vit_jax.runtime.console import print_line, print_note
from vit_jax.runtime.exchange import (
  barrier,
  check_equal_facts,
  copy_from_first,
  gather_texts,
  is_alone,
  process_index,
  raise_together,
)
from vit_jax.runtime.exits import (
  EXIT_BUG,
  EXIT_CONFIG,
  EXIT_DONE,
  EXIT_HANG,
  EXIT_INTERRUPTED,
  EXIT_MISSING,
  EXIT_NOT_FINITE,
  EXIT_OFF_TRACK,
  EXIT_PEER,
  EXIT_PREEMPTED,
  EXITS,
  IN_USE,
  Stop,
  describe_exit,
)
from vit_jax.runtime.interruption import end_on_stop_signals
from vit_jax.runtime.lifecycle import join_processes
from vit_jax.runtime.processes import check_devices, start
from vit_jax.runtime.watch import Preempted, Watch, convert_stop_signals
from vit_jax.runtime.workdirs import check_creatable, claim_workdir, describe_holder, lock_workdir

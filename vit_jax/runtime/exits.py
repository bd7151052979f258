"""Exit codes of a program, and the conversion of exceptions to exit codes and messages.

A launcher can act on the codes. The codes in `SHARED` are the same on every process of a run.
"""

import contextlib
import os
import threading

import jax

from vit_jax.schema import ConfigError
from vit_jax.schema.errors import AbsentError, UnreachableError, make_printable
from vit_jax.storage import errors

EXIT_DONE = 0
EXIT_BUG = 1
EXIT_CONFIG = 2
EXIT_PREEMPTED = 42
EXIT_HANG = 43
EXIT_NOT_FINITE = 44
EXIT_MISSING = 45
EXIT_OFF_TRACK = 46
EXIT_INTERRUPTED = 130
EXIT_PEER = 134
# The exit codes, in this order: meaning, and what to do. The page reference/exit-codes.md of the documentation shows
# them.
EXITS = {
  EXIT_DONE: ("all steps are done, saved and evaluated; `result.json` exists", "nothing"),
  EXIT_BUG: ("a bug in vit_jax, with a traceback, or a Python interpreter that hangs. In `predict` and `prepare "
             "--check`: bad files, which are listed", "report the bug; run the same command again to resume"),
  EXIT_CONFIG: ("a mistake in config, flags or data, a full disk, a missing bucket, a workdir in use, a system limit "
                "that is too low (`ulimit`)", "fix what the message reports"),
  EXIT_PREEMPTED: ("stopped on request (SIGTERM or a closed terminal)", "run the same command again to resume"),
  EXIT_HANG: ("an operation exceeded its limit in `config.limits`, or another program uses the device", "read the "
              "stacks and run the same command again; if it happens twice, use another machine"),
  EXIT_NOT_FINITE: ("the loss, a gradient or an evaluated output is not finite; the last good checkpoint is kept",
                    "change the config"),
  EXIT_MISSING: ("the data are missing, or no checkpoint can be read", "restore them"),
  EXIT_OFF_TRACK: ("two evaluations in a row are below the published curve, with `--config.log.certificate=stop`; the "
                   "state is saved", "compare config and data with the recipe; `--config.log.certificate=report` "
                   "continues"),
  EXIT_INTERRUPTED: ("Ctrl-C: the run saves between steps and ends; a second Ctrl-C ends it at once", "run the same "
                     "command again to resume"),
  EXIT_PEER: ("another process of the run died, or C++ aborted this process", "check how that process ended and read "
              "the last lines; run the same command again to resume"),
  137: ("killed by the system (SIGKILL), often because memory ran out", "see `dmesg`; run the same command again to "
        "resume"),
  143: ("SIGTERM before the processes were connected", "run the same command again"),
}  # fmt: skip
# If one process ends with one of these codes, the others end with the same code. Otherwise they end with EXIT_PEER.
SHARED = (EXIT_CONFIG, EXIT_PREEMPTED, EXIT_NOT_FINITE, EXIT_MISSING, EXIT_OFF_TRACK)

IN_USE = "is in use by process"  # in the error of a workdir that another process holds

# Phrases by which XLA's collectives and the coordinator report that a process has gone.
_GONE = ("Gloo", "closed by peer", "reset by peer", "coordination service", "remote process exited", "heartbeat")


def print_last_message(text: str) -> None:
  """Writes the last message of a program to standard error.

  If standard error is closed or full, or if its reader has stopped, the call returns after 2 s.

  Args:
    text: the message, with its line break.
  """

  def write() -> None:
    remaining = text.encode(errors="replace")
    with contextlib.suppress(OSError):
      while remaining:
        remaining = remaining[os.write(2, remaining) :]

  writer = threading.Thread(target=write, daemon=True)
  writer.start()
  writer.join(2.0)


class Stop(Exception):
  """A request to end the program with a message and an exit code.

  Args:
    code: one of the keys of `EXITS`.
    message: one line for the user.
  """

  def __init__(self, code: int, message: str) -> None:
    super().__init__(message)
    self.code = code


def describe_exit(
  error: BaseException, alone: bool = True, gone: str = "another process of this run"
) -> tuple[int, str]:
  """Returns the exit code and the message for an exception that ends a program.

  Args:
    error: the exception.
    alone: true if the program has one process.
    gone: name of the process that has died, if XLA's error does not name it.

  Returns:
    (exit code, message). The message is "" if the traceback is more informative.

  Example:
    from vit_jax import runtime
    from vit_jax.schema import ConfigError

    code, message = runtime.describe_exit(ConfigError("config.batch: expected a positive number, got 0. Use 64."))
    assert code == runtime.EXIT_CONFIG
  """
  text = str(error)
  if isinstance(error, Stop):
    return error.code, text
  if isinstance(error, ConfigError):
    missing = isinstance(error, AbsentError) and not isinstance(error, UnreachableError)
    return EXIT_MISSING if missing else EXIT_CONFIG, f"error: {text}"
  if isinstance(error, OSError):  # for example a full or read-only disk, or an impossible path
    return EXIT_CONFIG, f"error: {make_printable(errors.describe_error(error))}"
  if isinstance(error, MemoryError):
    return EXIT_CONFIG, "error: out of memory. Free memory of this machine, or raise the limit (ulimit -v)"
  if isinstance(error, RuntimeError) and text == "can't start new thread":
    return EXIT_CONFIG, "error: no further thread can be started. Raise the limit of processes (ulimit -u, or pids.max)"
  if isinstance(error, KeyboardInterrupt):
    return EXIT_INTERRUPTED, "interrupted (Ctrl-C); the same command starts or continues it"
  if isinstance(error, jax.errors.JaxRuntimeError):
    if "RESOURCE_EXHAUSTED" in text:
      advice = "use a smaller config.batch, or a larger config.optim.accumulate, config.mesh.fsdp or config.model.remat"
      return EXIT_CONFIG, f"error: out of device memory; {advice}"
    if not alone and any(mark in text for mark in _GONE):
      return (
        EXIT_PEER,
        f"{gone} died ({text.splitlines()[0][:160]}). Check how it ended, and start all processes again",
      )
  return EXIT_BUG, ""

"""Child processes that end after a time limit, and on Linux also with the process that started them."""

import os
import sys
from collections.abc import Iterable, Sequence

# A program that replaces itself by the command, on the given cores. On Linux, the program first asks the kernel for a
# SIGTERM if its parent is killed. The alarm ends the command on all systems, even if the command ignores SIGTERM. Both
# settings stay valid after exec. A function that runs after the fork would be shorter, but it is not safe together with
# the threads of JAX.
_LAUNCH = """
import ctypes, os, signal, sys
parent, cores, limit, *command = sys.argv[1:]
if sys.platform == "linux":
  ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
  if os.getppid() != int(parent):
    sys.exit(143)
if cores:
  os.sched_setaffinity(0, map(int, cores.split(",")))
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.alarm(int(limit))
os.execvp(command[0], command)
"""


def tie_to_parent(command: Sequence[str], cores: Iterable[int] = (), limit: int = 0) -> list[str]:
  """Returns a command that runs another command, which does not outlive this process on Linux.

  On Linux, the command receives a SIGTERM when the thread that starts it ends. Other systems apply only the limit.

  Args:
    command: program and arguments.
    cores: CPU cores that the command may use. Empty means all.
    limit: seconds after which the system ends the command by a SIGALRM. 0 means no limit.

  Example:
    import subprocess
    from vit_jax.runtime import children

    process = subprocess.Popen(children.tie_to_parent(["sleep", "0"], limit=10))
    assert process.wait() == 0
  """
  return [sys.executable, "-c", _LAUNCH, str(os.getpid()), ",".join(map(str, cores)), str(limit), *command]

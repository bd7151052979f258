"""Checks of operating system limits at the start of a program: open files, address space and threads.

C++ libraries abort or wait forever if they cannot get a thread or memory. Therefore the program does not start if
limits are too low. This module imports only the standard library.
"""

import os
import resource
import sys
import threading

# Measured with a small run on two cores: 27 open files, 105 threads and 2.9 GB of address space. Thread pools grow with
# the number of cores.
FILES = 64
_WANTED_FILES = 4096  # tars, shards and buckets keep more files open
_THREADS, _THREADS_PER_CORE = 96, 8
_GIB, _SPACE, _SPACE_PER_CORE = 2**30, 3.25, 0.125


def check_limits() -> None:
  """Ends the program with exit code 2 and one line if a limit is too low for any verb."""
  if found := find_problem():
    print(f"error: {found}", file=sys.stderr, flush=True)
    # The shutdown of the interpreter may need threads or memory.
    os._exit(2)


def find_problem() -> str | None:
  """Returns the reason why a start would fail, in one line with a fix, or None if all limits suffice.

  The function raises the soft limit of open files as far as the hard limit allows, up to 4,096.
  """
  cores = os.cpu_count() or 1
  return (
    _check_files()
    or _check_space(_SPACE + cores * _SPACE_PER_CORE)
    or _check_threads(_THREADS + cores * _THREADS_PER_CORE)
  )


def _check_files() -> str | None:
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = _WANTED_FILES if hard == resource.RLIM_INFINITY else min(_WANTED_FILES, hard)
  if soft != resource.RLIM_INFINITY and soft < wanted:
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = wanted
  if soft != resource.RLIM_INFINITY and soft < FILES:
    return f"the limit of open files is {soft}; at least {FILES} are needed. Raise the limit (ulimit -n)"
  return None


def _check_space(needed: float) -> str | None:
  """Checks that `needed` GiB of address space are available in addition to the space in use."""
  limit, _ = resource.getrlimit(resource.RLIMIT_AS)
  if limit == resource.RLIM_INFINITY or limit - _get_used_space() >= needed * _GIB:
    return None
  return (
    f"this process may use {limit / _GIB:.1f} GiB of address space; at least {needed:.1f} GiB are needed. "
    "Raise the limit (ulimit -v)"
  )


def _get_used_space() -> int:
  """Returns the address space in use in bytes, or 0 if the system has no /proc."""
  try:
    with open("/proc/self/statm") as file:
      return int(file.read().split()[0]) * resource.getpagesize()
  except OSError:
    return 0


def _check_threads(needed: int) -> str | None:
  """Starts this number of threads at the same time, and ends them."""
  done, started = threading.Event(), []
  try:
    for _ in range(needed):
      thread = threading.Thread(target=done.wait, daemon=True)
      thread.start()
      started.append(thread)
  except (RuntimeError, MemoryError):
    return (
      f"only {len(started)} of {needed} required threads can be started. Raise the limit of processes "
      "(ulimit -u, or pids.max of the container), or end other processes of this account"
    )
  finally:
    done.set()
    for thread in started:
      thread.join()
  return None

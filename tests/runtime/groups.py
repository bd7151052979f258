"""Groups of processes that only exchange messages, each with one fault: python -m tests.runtime.groups FOLDER

The output of each process goes to FOLDER/<group>-<number>, and all exit codes to FOLDER/codes.json. The processes are
forks of this one, so that Python starts once.
"""

import contextlib
import json
import os
import pathlib
import signal
import sys
import time

from tests import ports
from vit_jax import cli, config, runtime
from vit_jax.data import shared_data, sources
from vit_jax.runtime import watch
from vit_jax.schema import ConfigError


def poll_steps(watch, what=lambda poll: None):
  """Calls an action and polls in a loop, at a different pace in each process."""
  try:
    with watch.phase("step"):
      for poll in range(1, 1000):
        what(poll)
        watch.poll()
        time.sleep(0.02 * (1 + runtime.process_index()))
  except runtime.Preempted as stop:
    print(f"code {stop.code}: {stop}; at poll {poll}", flush=True)


def act_in_one_process(number, action):
  """Returns a function that calls the action at the fifth poll of one process."""
  return lambda poll: action() if runtime.process_index() == number and poll == 5 else None


def raise_error(error):
  """Raises an error."""
  raise error


def print_quiet(processes):
  """Prints the processes that send no signs of life."""
  if processes:
    print("quiet:", *processes, flush=True)


def make_split(images):
  """Returns a split with a number of images."""
  source = sources.Source("pets", "test", ("cat",), images, lambda i: (b"", 0), str)
  return shared_data.OpenedSplit("config.evals.pets.data", "/pets", "test", source)


def run_process(group):
  """Runs one process of a group."""
  if group == "missing":
    runtime.start(patience=2.0)
  limits = config.Limits(peer=10 if group in ("first", "silent") else 60, stop=60, step=60)
  if group == "talk":
    watch.ACT = 60.0  # the group tests agreement, also on a machine that is paused for seconds
  runtime.start(patience=120.0)
  if group == "talk":
    with contextlib.suppress(ConfigError), runtime.Watch(limits):
      try:
        runtime.check_equal_facts({"config": {"lr": 0.1 + (runtime.process_index() == 2)}})
      except ConfigError as error:
        print(error, flush=True)
        raise
    try:
      shared_data.check_same_images([make_split(3 + (runtime.process_index() == 2))])
    except ConfigError as error:
      print(error, flush=True)
    with runtime.Watch(limits) as watching:
      poll_steps(watching, act_in_one_process(1, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    with runtime.Watch(limits) as watching:
      poll_steps(watching, act_in_one_process(2, lambda: watching.ask(2, "a bad image")))
  error = {"talk": AssertionError("a bug"), "mistake": ConfigError("mine alone")}.get(group)
  with runtime.Watch(limits) as watching:
    print("ready", flush=True)
    if group == "silent":
      poll_steps(watching, lambda poll: print_quiet(watching._peers.find_quiet()))
    poll_steps(watching, act_in_one_process(1, lambda: raise_error(error) if error else None))


def fork_process(folder, group, number, count, port):
  """Starts a process and returns its pid. Process 0 of the group listens at the port."""
  if pid := os.fork():
    return pid
  with open(folder / f"{group}-{number}", "w") as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  os.environ |= {
    "VITJAX_COORDINATOR": f"127.0.0.1:{port}",
    "VITJAX_PROCESSES": str(count + (group == "missing")),
    "VITJAX_PROCESS": str(number),
  }
  cli.run_verb(lambda: run_process(group))
  sys.exit(0)


def wait_for_ready(log, pid):
  """Waits until a process has written "ready". Raises RuntimeError with its output if it ends first."""
  while not log.exists() or "ready" not in log.read_text():
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end and "ready" not in log.read_text():
      raise RuntimeError(f"{log.name} ended with status {end.si_status}: {log.read_text()}")
    time.sleep(0.1)


def main(folder: pathlib.Path) -> None:
  """Starts all processes, sends signals to two of them, and waits for all."""
  processes = {}
  for group, count in (("talk", 3), ("mistake", 2), ("first", 2), ("silent", 2), ("missing", 2)):
    port = ports.find_free_port()
    processes |= {(group, i): fork_process(folder, group, i, count, port) for i in range(count)}
  try:  # only the first process reaches this line
    for (group, number), number_of_signal in ((("first", 0), signal.SIGKILL), (("silent", 1), signal.SIGSTOP)):
      wait_for_ready(folder / f"{group}-1", processes[group, 1])
      os.kill(processes[group, number], number_of_signal)
    codes = {}
    for key in [each for each in processes if each != ("silent", 1)]:
      codes["{}-{}".format(*key)] = os.waitstatus_to_exitcode(os.waitpid(processes.pop(key), 0)[1])
    (folder / "codes.json").write_text(json.dumps(codes))
  finally:
    for pid in processes.values():
      os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]))

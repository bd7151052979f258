"""Disturbs runs of several processes with two devices each.

    python -m tests.campaigns.processes [--two-processes] [WORD ...]

Each scenario is a fault, with the exit codes and messages that must follow within a time limit. If the run can
continue, it is restarted. Its weights must then equal those of an undisturbed run, bit for bit on the same devices.

The runs have four processes. With --two-processes they have two, and only the scenarios in `PAIRED` are run.

The campaign prints `N passed, M failed`. The exit code is 1 if a scenario failed. A scenario takes about half a minute
on two cores.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

os.environ["JAX_PLATFORMS"] = "cpu"

from tests.campaigns import quick

os.environ["XLA_FLAGS"] = quick.make_flags(2)

import cv2
import numpy as np

from tests.campaigns import group as groups
from tests.campaigns.choice import choose
from tests.campaigns.group import Group, finish, others, result

SCENARIOS: dict[str, Callable[[pathlib.Path], None]] = {}
PAIRED = ("sigterm_to_all", "sigkill_of_process_0", "sigkill_of_process_1", "sigstop_of_process_0")


def scenario(function):
  """Registers a scenario under its name."""
  SCENARIOS[function.__name__] = function
  return function


@scenario
def sigterm_to_one(folder):
  with Group(folder, "run") as group:
    group.stop_at(12, 2)
    group.expect_output(r"stopped on request .* Step \d+ is saved; the same command continues")
  finish(folder, "run")


@scenario
def sigterm_to_all(folder):
  with Group(folder, "run") as group:
    group.stop_at(7, *range(groups.COUNT))
  finish(folder, "run")


@scenario
def sigterm_while_a_disk_is_slow(folder):
  with Group(folder, "run", faults=dict.fromkeys(range(groups.COUNT), ("slow", 5))) as group:
    group.await_step(12)
    group.signal(signal.SIGTERM, 1)
    group.all_end(42, 30)
    (step,) = set(re.findall(r"Step (\d+) is saved", group.text(0)))
  assert (folder / "run/checkpoints" / step / "_CHECKPOINT_METADATA").exists()
  finish(folder, "run")


@scenario
def sigterm_while_compiling(folder):
  with Group(folder, "run", environment={"JAX_COMPILATION_CACHE_DIR": str(folder / "none")}) as group:
    group.await_text("steps to go")
    group.signal(signal.SIGTERM, 1)
    group.all_end(42, 8)
    group.expect_output("during compilation|during the start", 1)
  finish(folder, "run")


@scenario
def sigterm_while_input_is_stuck(folder):
  with Group(folder, "run", faults={1: ("input", 30)}, limits__step=100) as group:
    group.await_text("compiled, training|steps to go")
    time.sleep(8)
    group.signal(signal.SIGTERM, 3)
    group.all_end(42, 12)
  finish(folder, "run")


@scenario
def sigkill_of_one(folder, victim=2):
  with Group(folder, "run") as group:
    group.await_step(15)
    group.signal(signal.SIGKILL, victim)
    group.end(dict.fromkeys(others(victim), 134), 20)
    group.expect_output("the same command continues", *others(victim))
    if victim:  # JAX may abort the others before they can name process 0
      group.expect_output(f"process {victim} died|process {victim} has been silent", 0)
  finish(folder, "run")


@scenario
def sigkill_of_process_1(folder):
  sigkill_of_one(folder, 1)


@scenario
def sigkill_of_process_0(folder):
  sigkill_of_one(folder, 0)


@scenario
def sigstop_of_one(folder, victim=3):
  with Group(folder, "run", limits__step=90) as group:
    group.await_step(15)
    group.signal(signal.SIGSTOP, victim)
    group.end(dict.fromkeys(others(victim), 134), 40)
    group.expect_output(f"process {victim} has been silent", *others(victim))
    group.signal(signal.SIGCONT, victim)
    group.end({victim: 134}, 30)
  finish(folder, "run")


@scenario
def sigstop_of_process_0(folder):
  sigstop_of_one(folder, 0)


@scenario
def alive_but_stuck(folder):
  with Group(folder, "run", faults={1: ("stuck", 12)}) as group:
    group.all_end((43, 134), 120)
    assert 43 in [process.returncode for process in group.processes.values()]
    group.expect_output("the same command continues")
    stuck = [i for i, process in group.processes.items() if process.returncode == 43]
    group.expect_output("no progress for 20 s", *stuck)
    assert any("in stuck" in group.text(i) for i in stuck) or 1 not in stuck
  finish(folder, "run")


@scenario
def input_stuck_on_one(folder):
  with Group(folder, "run", faults={1: ("input", 30)}) as group:
    group.all_end((43, 134), 120)
    group.expect_output(r"record \d+|the same command continues", 1)
  finish(folder, "run")


@scenario
def nan_on_one(folder):
  with Group(folder, "run", faults={2: ("nan", 14)}) as group:
    group.all_end(44, 120)
    group.expect_output("not finite")
  finish(folder, "run")


@scenario
def bug_on_one(folder):
  with Group(folder, "run", faults={1: ("bug", 14)}) as group:
    group.end({1: 1} | dict.fromkeys(others(1), 134), 120)
    group.expect_output("AssertionError: a bug", 1)
    group.expect_output("process 1 ended with code 1", *others(1))
  finish(folder, "run")


@scenario
def a_peer_never_starts(folder, absent=2):
  with Group(folder, "run", absent=(absent,), limits__start=15) as group:
    group.all_end(43, 60)
    group.expect_output("have connected|another process is missing|process 0 does not respond at 127.0.0.1:")
  assert not (folder / "run").exists()


@scenario
def process_0_never_starts(folder):
  a_peer_never_starts(folder, 0)


@scenario
def port_in_use(folder):
  with socket.socket() as taken:
    taken.bind(("", 0))
    taken.listen()
    with Group(folder, "run", port=taken.getsockname()[1], limits__start=8) as group:
      group.end({0: 2} | dict.fromkeys(others(0), 43), 60)
      group.expect_output("another program may use the port", 0)
  finish(folder, "run")


DIFFERENT = {
  "optim.lr": ("0.5", "process 3: config.optim.lr"),
  "total": ("30", "process 3: config.total"),
  "recipe": ("cvt_2_4_32", "process 3: config.model"),
  "batch": ("6", "6 does not divide"),
}


@scenario
def different_start(folder):
  for key, (value, words) in DIFFERENT.items():
    with Group(folder, "run", each={3: {key: value}}) as group:
      group.all_end(2, 90)
      group.expect_output(words)
    assert not (folder / "run").exists()


@scenario
def other_data_on_one(folder):
  shutil.copytree(folder / "data", folder / "there/data")
  next((folder / "there/data").rglob("*7.png")).unlink()
  with Group(folder, "run", folders={1: folder / "there"}) as group:
    group.all_end(2, 60)
    group.expect_output("process 1: data")
  assert not (folder / "run").exists()


@scenario
def bad_image_on_one(folder):
  with Group(folder, "run", faults={1: ("bad", 30)}) as group:
    group.all_end(2, 120)
    group.expect_output(r"record \d+ .*\.png")
  finish(folder, "run")


@scenario
def disk_full_on_one(folder):
  with Group(folder, "run", limit={1: 16 * 1024}) as group:
    group.all_end(2, 120)
    group.expect_output("File too large|file size|ulimit", 1)
  finish(folder, "run")


@scenario
def damaged_files_of_one(folder):
  with Group(folder, "run", mesh__data=1, mesh__fsdp=8) as group:
    group.stop_at(32, 0)
  newest = max((path for path in (folder / "run/checkpoints").iterdir()), key=lambda path: int(path.name))
  parts = sorted(newest.glob("state/ocdbt.process_1/d/*")) or sorted(newest.glob("state/d/*"))
  for part in parts:  # the contents of some files are also stored in others
    part.write_bytes(b"\0" * part.stat().st_size)
  with Group(folder, "run", mesh__data=1, mesh__fsdp=8) as group:
    group.all_end(0, 180)
    group.expect_output("cannot be read|resuming from step", 0)
  with Group(folder, "whole", mesh__data=1, mesh__fsdp=8) as group:
    group.all_end(0, 180)
  assert result(folder, "run")["weights_sha256"] == result(folder, "whole")["weights_sha256"]


@scenario
def killed_in_a_save(folder):
  with Group(folder, "run", checkpoint__every=2) as group:
    group.await_step(6)
    deadline = time.monotonic() + 60
    while not list((folder / "run/checkpoints").glob("*tmp*")) and time.monotonic() < deadline:
      time.sleep(0.001)
    group.signal(signal.SIGKILL, 1, 3)
    group.end({0: 134, 2: 134}, 30)
  finish(folder, "run", checkpoint__every=2)


@scenario
def fewer_processes(folder):
  with Group(folder, "run") as group:
    group.stop_at(15, 0)
  with Group(folder, "run", count=2) as group:
    group.all_end(0, 180)
    group.expect_output("devices", 0)
  here, there = result(folder, "run"), result(folder, "undisturbed")
  assert abs(here["loss"] - there["loss"]) < 1e-5, (here["loss"], there["loss"])


@scenario
def stale_multislice_variables(folder):
  stale = {"MEGASCALE_COORDINATOR_ADDRESS": "10.9.9.9:8080", "MEGASCALE_SLICE_ID": "3"}
  finish(folder, "run", environment=stale)


def main() -> int:
  """Runs the scenarios that the words of the command line select, and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.processes", description=__doc__)
  parser.add_argument("words", nargs="*", help="run only scenarios with names that contain one of these words")
  parser.add_argument(
    "--two-processes", action="store_true", help="two processes, and only the scenarios that need no more"
  )
  args = parser.parse_args()
  failed, names = 0, choose(parser, PAIRED if args.two_processes else SCENARIOS, args.words)
  groups.COUNT = 2 if args.two_processes else groups.COUNT
  with tempfile.TemporaryDirectory() as root:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{root}/programs"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    model = pathlib.Path(root, "model")
    generator = np.random.default_rng(0)
    for label in ("a", "b"):
      for i in range(40):
        image = generator.integers(0, 256, (32, 32, 3), np.uint8)
        (model / f"data/{label}").mkdir(parents=True, exist_ok=True)
        assert cv2.imwrite(str(model / f"data/{label}/{i}.png"), image)
    with Group(model, "undisturbed") as group:
      group.all_end(0, 240)
    for name in names:
      start_time, folder = time.monotonic(), pathlib.Path(root, name)
      shutil.copytree(model, folder)
      try:
        SCENARIOS[name](folder)
        outcome = "passed"
      except AssertionError:
        failed += 1
        outcome = f"FAILED\n{traceback.format_exc(limit=2)}"
      print(f"{name:32} {time.monotonic() - start_time:6.1f} s  {outcome}", flush=True)
  print(f"{len(names) - failed} passed, {failed} failed")
  return bool(failed)


if __name__ == "__main__":
  sys.exit(main())

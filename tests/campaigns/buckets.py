"""Tests runs in a bucket under faults: python -m tests.campaigns.buckets [WORD ...]

A run of two processes has its workdir in a bucket on this machine. The bucket is behind a proxy. The proxy adds 50 ms
to each request and answers 5 % of the requests with 429 or 503. It cuts some connections in the middle and stalls
others.

In each situation, the run is killed, the bucket is unavailable or denies access, or a second run starts. Afterwards the
same command continues. The final weights, figures and lines of metrics must be those of an undisturbed run on a disk.

The campaign prints one line per situation and `N passed, M failed`. The exit code is 1 if a situation failed. The
campaign takes about twenty minutes. Each WORD selects the situations whose names contain it.
"""

import argparse
import contextlib
import json
import os
import pathlib
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

os.environ["JAX_PLATFORMS"] = "cpu"

from tests.campaigns import quick

os.environ["XLA_FLAGS"] = quick.make_flags(1)

from tests import runs
from tests.buckets import BUCKET, Server
from tests.campaigns.choice import choose
from tests.ports import find_free_port
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.runtime import leases
from vit_jax.storage import paths

STEPS, SAVED = 24, 4
SAME = ("weights_sha256", "loss", "top1", "f1_macro", "images", "steps")  # of result.json
RATES = ("images_per_second", "images_per_second_per_chip", "data_wait", "mfu")  # differ between all runs
BAD = {"latency": 0.05, "busy": 0.05, "resets": 0.02, "stalls": 0.002}
SECONDS = 400.0  # a process that takes longer has hung


class Failed(Exception):
  """An error that reports a failed situation."""


def expect(condition: object, words: str) -> None:
  """Raises `Failed` if a condition is false."""
  if not condition:
    raise Failed(words)


class Run:
  """The processes of one run, started like a user's. The context manager kills all of them at its end."""

  def __init__(self, workdir, count: int = 2, **environment):
    changes = {"total": STEPS, "checkpoint__every": SAVED, "log__every": 1, "evals__test__every": "50%"}
    words, port = runs.words(workdir, **changes), find_free_port()
    places = {"VITJAX_COORDINATOR": f"127.0.0.1:{port}", "VITJAX_PROCESSES": str(count)}
    self.processes = [
      runs.command("train", *words, **places, VITJAX_PROCESS=str(i), **environment) for i in range(count)
    ]
    self.text, self._lines, self._start_time = ["" for _ in self.processes], queue.Queue(), time.monotonic()
    for number, process in enumerate(self.processes):
      for stream in (process.stdout, process.stderr):
        threading.Thread(target=self._read, args=(number, stream), daemon=True).start()

  def _read(self, number, stream):
    for line in stream:
      self.text[number] += line
      self._lines.put((number, line))

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for process in self.processes:
      process.kill()
      process.wait()

  def await_step(self, step: int) -> None:
    """Waits until a process has printed this step."""
    self.await_line(rf" *{step}/")

  def await_line(self, pattern: str) -> None:
    """Waits until a process prints a line that matches a pattern."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
      with contextlib.suppress(queue.Empty):
        if re.match(pattern, self._lines.get(timeout=1)[1]):
          return
      expect(any(process.poll() is None for process in self.processes), f"ended before {pattern!r}: {self.last()}")
    raise Failed(f"never printed {pattern!r}: {self.last()}")

  def kill(self, *which: int) -> None:
    """Sends SIGKILL to these processes, or to all processes without arguments."""
    for number in which or range(len(self.processes)):
      self.processes[number].send_signal(signal.SIGKILL)

  def ends(self, code: int) -> str:
    """Waits for all processes, checks their exit code, and returns the last line of the first process."""
    for process in self.processes:
      try:
        process.wait(SECONDS)
      except subprocess.TimeoutExpired:
        raise Failed(f"it hangs: {self.last()}") from None
    time.sleep(0.2)  # the threads have read the last lines
    codes = [process.returncode for process in self.processes]
    expect(codes == [code] * len(codes), f"ended with {codes} and not {code}: {self.last()}")
    expect("Traceback" not in "".join(self.text), f"a traceback: {self.last()}")
    return self.last()

  def last(self) -> str:
    """Returns the last error line of the first process, or else the last line that it printed."""
    lines = self.text[0].splitlines()
    return next((line for line in reversed(lines) if "error: " in line[:20]), lines[-1] if lines else "nothing")


def figures(workdir: pathlib.Path) -> tuple[dict, list[dict]]:
  """Returns the figures of the result and the lines of metrics that faults must not change."""
  result = json.loads((workdir / "result.json").read_text())
  rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return {key: result[key] for key in SAME}, [
    {key: value for key, value in row.items() if key not in RATES} for row in rows
  ]


def continue_and_compare(workdir: pathlib.Path, whole: pathlib.Path, count: int = 2) -> None:
  """Continues a run with the same command, and compares its figures with those of the undisturbed run."""
  with Run(workdir, count) as run:
    run.ends(0)
  here, there = figures(workdir), figures(whole)
  expect(here[0] == there[0], f"{here[0]} instead of {there[0]}")
  expect(here[1] == there[1], f"{len(here[1])} lines of metrics are not those {len(there[1])} of the undisturbed run")


def list_complete_steps(workdir: pathlib.Path) -> list[int]:
  """Returns the steps with complete checkpoints."""
  try:
    folders = [path for path in (workdir / "checkpoints").iterdir() if path.name.isdecimal()]
  except FileNotFoundError:
    return []
  return sorted(int(path.name) for path in folders if (path / "commit_success.txt").exists())


# Situations. Each one takes the server, a workdir in its bucket, and the workdir of the undisturbed run.


def killed_three_times(server: Server, workdir: pathlib.Path, whole: pathlib.Path) -> str:
  with Run(workdir) as run:
    run.await_step(6)
    run.kill()
  with Run(workdir) as run:
    run.await_step(9)
    run.kill(1)  # the other process notices the loss
    run.processes[0].wait(SECONDS)
  before = set(list_complete_steps(workdir))
  with Run(workdir) as run:
    half = await_partial_save(run, workdir, before)
    run.kill()
  expect(half not in list_complete_steps(workdir), f"the save of {half} was whole at the kill")
  continue_and_compare(workdir, whole)
  return f"killed after step 6, one process after step 9, in the save of step {half}"


def await_partial_save(run: Run, workdir: pathlib.Path, before: set[int]) -> int:
  """Stops the processes during a save and returns its step, which has objects but is not complete."""
  deadline = time.monotonic() + SECONDS
  folder = workdir / "checkpoints"
  while time.monotonic() < deadline:
    steps = {int(path.name) for path in folder.iterdir() if path.name.isdecimal()} if folder.exists() else set()
    for step in sorted(steps - before):
      for process in run.processes:
        process.send_signal(signal.SIGSTOP)
      if step not in list_complete_steps(workdir):
        return step
      before.add(step)
      for process in run.processes:
        process.send_signal(signal.SIGCONT)
    expect(run.processes[0].poll() is None, f"ended before a save: {run.last()}")
  raise Failed("no save was half")


def away_for_a_minute(server: Server, workdir: pathlib.Path, whole: pathlib.Path) -> str:
  with Run(workdir) as run:
    run.await_step(6)
    with server.troubled(away=True):
      time.sleep(60)
      expect(all(process.poll() is None for process in run.processes), f"it ended: {run.last()}")
    start_time = time.monotonic()
    run.ends(0)
  expect(figures(workdir) == figures(whole), "not the undisturbed figures")
  return f"done {time.monotonic() - start_time:.0f} s after the bucket came back"


def make_permanent_fault(pattern: str, **trouble) -> Callable:
  """Returns a situation with a permanent fault of the bucket from step 6 on.

  The run must end with exit code 2 and one line, and its last checkpoint must be complete.
  """

  def situation(server: Server, workdir: pathlib.Path, whole: pathlib.Path) -> str:
    with Run(workdir, VITJAX_PATIENCE="30") as run:
      run.await_step(6)
      while not list_complete_steps(workdir):
        expect(run.processes[0].poll() is None, f"ended before a save: {run.last()}")
      with server.troubled(**trouble):
        start_time = time.monotonic()
        line = run.ends(2)
        took = time.monotonic() - start_time
    expect(re.search(pattern, line), f"not {pattern!r}: {line}")
    expect(re.match(r"(process \d: )?error: gs://", line), f"not one line about the bucket: {line}")
    steps = list_complete_steps(workdir)
    continue_and_compare(workdir, whole)
    return f"{took:.0f} s: {line}; whole: {steps}"

  return situation


def refused_from_the_start(server: Server, workdir: pathlib.Path, whole: pathlib.Path) -> str:
  with server.troubled(refused=True), Run(workdir) as run:
    line = run.ends(2)
  expect("denied access" in line, line)
  return line


def a_second_run(server: Server, workdir: pathlib.Path, whole: pathlib.Path) -> str:
  with Run(workdir) as first:
    first.await_step(2)
    with Run(workdir, count=1) as second:
      line = second.ends(2)
    expect("is in use by process" in line and "free after 60 s" in line, line)
    first.ends(0)
  expect(figures(workdir) == figures(whole), "not the undisturbed figures")
  return line


def taken_over(server: Server, workdir: pathlib.Path, whole: pathlib.Path) -> str:
  lock = leases.LeaseObject(workdir / "lock")
  lock.write({"holder": "7 on elsewhere", "token": "x", "process": "another boot 7 1"}, "0")
  start_time = time.monotonic()
  with Run(workdir) as run:
    run.await_step(1)
    took = time.monotonic() - start_time
    expect("held by process 7 on elsewhere" in run.text[0], run.text[0][-500:])
    expect(took > 40, f"the lease of another machine was taken after {took:.0f} s")
    run.ends(0)
  expect(figures(workdir) == figures(whole), "not the undisturbed figures")
  return f"the first step {took:.0f} s after a run on another machine had died"


def another_number_of_processes(server: Server, workdir: pathlib.Path, whole: pathlib.Path) -> str:
  for count, step in ((2, 6), (1, 13)):
    with Run(workdir, count) as run:
      run.await_step(step)
      while not list_complete_steps(workdir):
        expect(run.processes[0].poll() is None, f"ended before a save: {run.last()}")
      expect(count == 2 or "continues at step" in run.text[0], "one process began anew")
      run.kill()
  with Run(workdir) as run:
    run.ends(0)
    expect("continues at step" in run.text[0], "two processes began anew")
  here, there = figures(workdir), figures(whole)
  expect(all(here[0][key] == there[0][key] for key in ("images", "steps")), f"{here[0]} instead of {there[0]}")
  # A single device uses another order of sums, so rounding differs. Missing or repeated images would differ by more.
  losses, expected = (
    {(row["step"], key): row[key] for row in rows for key in row if key.endswith("loss")} for _, rows in (here, there)
  )
  expect(losses.keys() == expected.keys(), f"lines of metrics of {sorted(losses)} and not {sorted(expected)}")
  worst = max(abs(losses[key] / expected[key] - 1) for key in expected)
  expect(worst < 1e-4, f"losses are off by {worst:.1e}: {losses} instead of {expected}")
  return f"2 processes, then 1, then 2: {len(losses)} losses within {worst:.0e} of the undisturbed run's"


SITUATIONS = {
  "killed three times, once in a save": killed_three_times,
  "away for a minute": away_for_a_minute,
  "gone": make_permanent_fault(r"has not responded for \d+ s|Host is down", away=True),
  "forbidden": make_permanent_fault("denied access|Permission denied", refused=True),
  "forbidden from the start": refused_from_the_start,
  "a second run": a_second_run,
  "taken over from another machine": taken_over,
  "another number of processes": another_number_of_processes,
}


def main() -> int:
  """Runs the situations and returns 1 if one failed."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.buckets", description=__doc__)
  parser.add_argument("words", nargs="*", help="run only situations with names that contain one of these words")
  chosen = choose(parser, SITUATIONS, parser.parse_args().words)
  counts = {"passed": 0, "failed": 0}
  with tempfile.TemporaryDirectory() as name, Server() as server:
    quick.set_directories(name)
    os.environ |= server.environment
    prepare_dataset("digits")
    whole = pathlib.Path(name, "whole")
    with Run(whole) as run:
      run.ends(0)
    for number, (title, situation) in enumerate(SITUATIONS.items()):
      if title not in chosen:
        continue
      before = server.counts
      start_time, workdir = time.monotonic(), paths.resolve_path(f"gs://{BUCKET}/run{number}")
      try:
        with server.troubled(**BAD):
          verdict, output = "passed", situation(server, workdir, whole)
      except (Failed, OSError, ValueError, LookupError) as error:
        verdict, output = "failed", f"{type(error).__name__}: {error}"
      counts[verdict] += 1
      asked = ", ".join(f"{count} {what}" for what, count in sorted((server.counts - before).items()))
      print(f"{verdict:<8}{title:<38}{time.monotonic() - start_time:>5.0f} s  {output}\n{'':<8}{asked}", flush=True)
  print(f"{counts['passed']} passed, {counts['failed']} failed")
  return counts["failed"] > 0


if __name__ == "__main__":
  sys.exit(main())

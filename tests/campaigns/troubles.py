"""A disk that can be filled, and runs that are watched during faults of their disk."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time

from tests import runs

STEPS = 12
SECONDS = 300  # limit of a run from its start, after which it is killed; undisturbed runs take a tenth
SAME = ("weights_sha256", "loss", "top1", "f1_macro", "images", "steps")  # of result.json
TENSORBOARD = "The run continues without further TensorBoard output"  # the end of a warning
VARYING = ("images_per_second", "images_per_second_per_chip", "data_wait")  # keys of metrics that differ between runs


class Failed(Exception):
  """An error that reports a failed situation."""


def expect(condition: object, words: str) -> None:
  """Raises `Failed` if a condition is false."""
  if not condition:
    raise Failed(words)


# A disk that can be filled.


def mount(folder: pathlib.Path) -> None:
  """Mounts a disk of 8 MiB. Raises PermissionError if this process may not mount disks."""
  folder.mkdir()
  if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], capture_output=True).returncode:
    raise PermissionError("nothing may be mounted here")


def fill(disk: pathlib.Path, left: int = 0) -> None:
  """Fills a disk except for `left` bytes."""
  room = shutil.disk_usage(disk).free - left
  with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as file:
    file.write(bytes(max(room, 0)))


def free(disk: pathlib.Path) -> None:
  """Frees the space of a filled disk."""
  (disk / "ballast").unlink(missing_ok=True)


# Runs.


def started(workdir: pathlib.Path | str, **environment: str) -> subprocess.Popen:
  """Starts the run with the same command as a user."""
  changes = {"total": STEPS, "checkpoint__every": 3, "log__every": 2, "evals__test__every": 6}
  return watched(runs.command("train", *runs.words(workdir, **changes), **environment))


_WATCHED: list[tuple[subprocess.Popen, threading.Timer]] = []


def watched(process: subprocess.Popen) -> subprocess.Popen:
  """Returns the run, which a timer kills after SECONDS, so that each wait for it ends."""
  timer = threading.Timer(SECONDS, process.kill)
  timer.daemon = True
  timer.start()
  _WATCHED.append((process, timer))
  return process


def kill_all() -> None:
  """Kills all watched runs, which may be stopped."""
  while _WATCHED:
    process, timer = _WATCHED.pop()
    timer.cancel()
    process.kill()
    process.wait()


def ended(process: subprocess.Popen, code: int) -> tuple[str, str]:
  """Waits for the end of a run, checks its exit code, and returns its standard output and standard error."""
  out, err = process.communicate()
  expect(process.returncode != -signal.SIGKILL, f"it hung, and was killed after {SECONDS} s: {(err or '')[-500:]}")
  expect(process.returncode == code, f"exit {process.returncode}: {(err or '')[-500:]}")
  return out, err


def seen(process: subprocess.Popen, step: int) -> None:
  """Waits until the line of a step is printed."""
  for line in process.stdout:
    if line.lstrip().startswith(f"{step}/"):
      return
  raise Failed(f"no line of step {step}; exit {process.wait()}: {process.stderr.read()[-300:]}")


def committed(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
  """Waits until a checkpoint of that step or a later one is complete."""
  while not any(int(path.name) >= step for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()):
    expect(process.poll() is None, f"ended before checkpoint {step}: {process.returncode}")
    time.sleep(0.0002)


@contextlib.contextmanager
def held(process: subprocess.Popen):
  """Stops the run while its disk is changed."""
  process.send_signal(signal.SIGSTOP)
  if process.returncode is None:
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
  expect(process.poll() is None, f"it has ended: exit {process.returncode}")
  try:
    yield
  finally:
    process.send_signal(signal.SIGCONT)


def contents(workdir: pathlib.Path) -> dict[str, bytes]:
  """Returns the files of the newest complete checkpoint by path. Its run may already have removed older ones."""
  steps = [path for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
  newest = max(steps, key=lambda path: int(path.name), default=workdir / "none")
  return {str(file): file.read_bytes() for file in sorted(newest.rglob("*")) if file.is_file()}


def refused(process: subprocess.Popen, *words: str) -> str:
  """Returns the single error line of a run that ends with exit code 2, without a preceding warning of TensorBoard."""
  _, err = ended(process, 2)
  lines = [line for line in err.splitlines() if not line.endswith(TENSORBOARD)]
  expect(len(lines) == 1, f"{len(lines)} lines: {err[:300]} ... {err[-300:]}")
  for word in ("error: ", *words):
    expect(word in lines[0], f"{word!r} is missing in: {lines[0]}")
  return lines[0]


def same(workdir: pathlib.Path, whole: pathlib.Path) -> None:
  """Checks that the figures and lines of metrics equal those of the undisturbed run."""
  results = [json.loads((folder / "result.json").read_text()) for folder in (workdir, whole)]
  for key in SAME:
    expect(results[0][key] == results[1][key], f"{key}: {results[0][key]} instead of {results[1][key]}")
  logs = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (workdir, whole)]
  lines = [[{k: v for k, v in json.loads(line).items() if k not in VARYING} for line in log] for log in logs]
  for ours, expected in zip(*lines, strict=False):
    expect(ours == expected, f"a line of metrics: {ours} instead of {expected}")
  expect(len(lines[0]) == len(lines[1]), f"{len(lines[0])} lines of metrics instead of {len(lines[1])}")


def continued(workdir: pathlib.Path, whole: pathlib.Path, **environment: str) -> str:
  """Runs the same command again, compares the run with the undisturbed run, and returns its output."""
  out, err = ended(started(workdir, **environment), 0)
  same(workdir, whole)
  return out + err

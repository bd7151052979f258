"""A disk that can be filled, and runs that are watched while something happens to it."""

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
SECONDS = 300  # from its start a run that hangs is killed; whole ones take a tenth
SAME = ("weights_sha256", "loss", "top1", "f1_macro", "images", "steps")  # of result.json
TENSORBOARD = "The run continues without further TensorBoard output"  # the end of a warning
VARYING = ("images_per_second", "images_per_second_per_chip", "data_wait")  # of a line of metrics


class Failed(Exception):
  """A situation did not end as it should."""


def expect(condition: object, words: str) -> None:
  """Fails the situation where the condition does not hold."""
  if not condition:
    raise Failed(words)


# A disk that can be filled.


def mount(folder: pathlib.Path) -> None:
  """A disk of 8 MiB. PermissionError where nothing may be mounted."""
  folder.mkdir()
  if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(folder)], capture_output=True).returncode:
    raise PermissionError("nothing may be mounted here")


def fill(disk: pathlib.Path, left: int = 0) -> None:
  """Leaves so many bytes."""
  room = shutil.disk_usage(disk).free - left
  with contextlib.suppress(OSError), open(disk / "ballast", "wb", buffering=0) as file:
    file.write(bytes(max(room, 0)))


def free(disk: pathlib.Path) -> None:
  """Makes room again."""
  (disk / "ballast").unlink(missing_ok=True)


# Runs.


def started(workdir: pathlib.Path | str, **environment: str) -> subprocess.Popen:
  """The run, as its user would start it each time."""
  changes = {"total": STEPS, "checkpoint__every": 3, "log__every": 2, "evals__test__every": 6}
  return watched(runs.command("train", *runs.words(workdir, **changes), **environment))


_WATCHED: list[tuple[subprocess.Popen, threading.Timer]] = []


def watched(process: subprocess.Popen) -> subprocess.Popen:
  """The run, which is killed after SECONDS, so that nobody waits for it, its output or its files any longer."""
  timer = threading.Timer(SECONDS, process.kill)
  timer.daemon = True
  timer.start()
  _WATCHED.append((process, timer))
  return process


def kill_all() -> None:
  """Leaves none of the runs that are watched, be they stopped or not."""
  while _WATCHED:
    process, timer = _WATCHED.pop()
    timer.cancel()
    process.kill()
    process.wait()


def ended(process: subprocess.Popen, code: int) -> tuple[str, str]:
  """What the run printed until it ended, and what of that as errors; it must have ended with this exit code."""
  out, err = process.communicate()
  expect(process.returncode != -signal.SIGKILL, f"it hung, and was killed after {SECONDS} s: {(err or '')[-500:]}")
  expect(process.returncode == code, f"exit {process.returncode}: {(err or '')[-500:]}")
  return out, err


def seen(process: subprocess.Popen, step: int) -> None:
  """Returns once the line of a step is printed."""
  for line in process.stdout:
    if line.lstrip().startswith(f"{step}/"):
      return
  raise Failed(f"no line of step {step}; exit {process.wait()}: {process.stderr.read()[-300:]}")


def committed(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
  """Returns once a checkpoint of that step or a later one is whole."""
  while not any(int(path.name) >= step for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()):
    expect(process.poll() is None, f"ended before checkpoint {step}: {process.returncode}")
    time.sleep(0.0002)


@contextlib.contextmanager
def held(process: subprocess.Popen):
  """Nothing moves in the run while something happens to its disk."""
  process.send_signal(signal.SIGSTOP)
  if process.returncode is None:
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
  expect(process.poll() is None, f"it has ended: exit {process.returncode}")
  try:
    yield
  finally:
    process.send_signal(signal.SIGCONT)


def contents(workdir: pathlib.Path) -> dict[str, bytes]:
  """The files of the newest whole checkpoint by path; older ones may be removed once it is there."""
  steps = [path for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
  newest = max(steps, key=lambda path: int(path.name), default=workdir / "none")
  return {str(file): file.read_bytes() for file in sorted(newest.rglob("*")) if file.is_file()}


def refused(process: subprocess.Popen, *words: str) -> str:
  """Returns the one line of a run that ends with exit code 2; TensorBoard may have warned of the same before."""
  _, err = ended(process, 2)
  lines = [line for line in err.splitlines() if not line.endswith(TENSORBOARD)]
  expect(len(lines) == 1, f"{len(lines)} lines: {err[:300]} ... {err[-300:]}")
  for word in ("error: ", *words):
    expect(word in lines[0], f"{word!r} is missing in: {lines[0]}")
  return lines[0]


def same(workdir: pathlib.Path, whole: pathlib.Path) -> None:
  """The run ended as the one that nothing happened to."""
  results = [json.loads((folder / "result.json").read_text()) for folder in (workdir, whole)]
  for key in SAME:
    expect(results[0][key] == results[1][key], f"{key}: {results[0][key]} instead of {results[1][key]}")
  logs = [(folder / "metrics.jsonl").read_text().splitlines() for folder in (workdir, whole)]
  lines = [[{k: v for k, v in json.loads(line).items() if k not in VARYING} for line in log] for log in logs]
  for ours, expected in zip(*lines, strict=False):
    expect(ours == expected, f"a line of metrics: {ours} instead of {expected}")
  expect(len(lines[0]) == len(lines[1]), f"{len(lines[0])} lines of metrics instead of {len(lines[1])}")


def continued(workdir: pathlib.Path, whole: pathlib.Path, **environment: str) -> str:
  """The same command again ends well; what it printed."""
  out, err = ended(started(workdir, **environment), 0)
  same(workdir, whole)
  return out + err

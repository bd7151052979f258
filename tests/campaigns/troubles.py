"""A disk that can be filled, and runs that are watched while something happens to it."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

from tests import runs

STEPS = 12
SAME = ("weights_sha256", "loss", "top1", "f1_macro", "images", "steps")  # of result.json
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
  return runs.command("train", *runs.words(workdir, **changes), **environment)


def seen(process: subprocess.Popen, step: int) -> None:
  """Returns once the line of a step is printed."""
  for line in process.stdout:
    if line.lstrip().startswith(f"{step}/"):
      return
  raise Failed(f"no line of step {step}: {process.stderr.read()[-300:]}")


def committed(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> None:
  """Returns once a checkpoint of that step or a later one is whole."""
  while not any(int(path.name) >= step for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()):
    expect(process.poll() is None, f"ended before checkpoint {step}: {process.returncode}")
    time.sleep(0.0002)


@contextlib.contextmanager
def held(process: subprocess.Popen):
  """Nothing moves in the run while something happens to its disk."""
  process.send_signal(signal.SIGSTOP)
  expect(process.poll() is None, f"it has ended: exit {process.returncode}")
  os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
  yield
  process.send_signal(signal.SIGCONT)


def contents(workdir: pathlib.Path) -> dict[str, bytes]:
  """The files of the newest whole checkpoint by path; older ones may be removed once it is there."""
  steps = [path for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()]
  newest = max(steps, key=lambda path: int(path.name), default=workdir / "none")
  return {str(file): file.read_bytes() for file in sorted(newest.rglob("*")) if file.is_file()}


def refused(process: subprocess.Popen, *words: str) -> str:
  """The one line of a run that ends with exit code 2."""
  try:
    _, err = process.communicate(timeout=120)
  except subprocess.TimeoutExpired:
    process.kill()
    process.communicate()
    raise Failed("it hangs") from None
  lines = err.splitlines()
  expect(process.returncode == 2, f"exit {process.returncode}: {err[-500:]}")
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
  process = started(workdir, **environment)
  out, err = process.communicate(timeout=300)
  expect(process.returncode == 0, f"continued: exit {process.returncode}: {err[-500:]}")
  same(workdir, whole)
  return out + err

"""Whether runs that are killed end in the same bits: python -m tests.campaigns.kills [N] [--seed S]

N runs (20), each with one to three SIGKILLs, in turn at a random printed step and while a checkpoint is being written;
after each, the same command goes on. At the end the weights, the figures and every line of metrics are compared with
those of a run that nobody killed, and the account of the time with the clock. Prints a line a run and `N passed, M
failed`; exit code 1 if any failed. Takes about half a minute a run. tests/test_train.py has one.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

from tests import runs
from vit_jax.corpora.builders import prepare_dataset

STEPS = 40
LINES = 3  # steps
RATES = ("images_per_second", "images_per_second_per_chip", "data_wait")  # which no two runs share
SAME = ("weights_sha256", "loss", "top1", "f1_macro", "images", "steps")  # of result.json


def main() -> int:
  """Kills, finishes, compares; the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.kills", description=__doc__)
  parser.add_argument("runs", nargs="?", type=int, default=20, help="how many")
  parser.add_argument("--seed", type=int, default=0, help="of the moments")
  args = parser.parse_args()
  draw, failed, kinds = random.Random(args.seed), 0, [at_a_step, in_a_save]
  with tempfile.TemporaryDirectory() as folder:
    os.environ["TFDS_DATA_DIR"] = f"{folder}/data"
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{folder}/programs"
    prepare_dataset("digits")
    whole = pathlib.Path(folder, "whole")
    runs.finish(started(whole))
    for number in range(args.runs):
      workdir, began, moments = pathlib.Path(folder, f"run{number}"), time.time(), []
      for _ in range(draw.randint(1, 3)):
        step = last_saved(workdir) + draw.randint(1, STEPS // 4)
        moments.append(kinds[0](started(workdir), workdir, step))
        kinds.reverse()
      runs.finish(started(workdir))
      took = (workdir / "result.json").stat().st_mtime - began  # without the shutdown of Python, which no account holds
      wrong = differences(whole, workdir, took) + [each for each in moments if "ended" in each]
      failed += bool(wrong)
      print(
        f"{number + 1:>4}  {'FAILED' if wrong else 'passed'}  {', '.join(moments)}", *wrong, sep="\n      ", flush=True
      )
  print(f"{args.runs - failed} passed, {failed} failed")
  return bool(failed)


def started(workdir: pathlib.Path) -> subprocess.Popen:
  """The run, as its user would start it each time."""
  changes = {"total": STEPS, "checkpoint__every": 2, "log__every": LINES, "evals__test__every": "50%"}
  return runs.command("train", *runs.words(workdir, **changes))


def last_saved(workdir: pathlib.Path) -> int:
  """The step of the newest whole checkpoint, 0 without any."""
  return max((int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def at_a_step(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> str:
  """Kills once the run has printed this step, or one after it."""
  for line in process.stdout:
    if (printed := re.match(r" *(\d+)/", line)) and int(printed[1]) >= step:
      break
  return killed(process, f"at step {step}")


def in_a_save(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> str:
  """Kills while a checkpoint of this step or a later one is half written: a stopped process cannot finish it."""
  while process.poll() is None:
    half = [path.name for path in (workdir / "checkpoints").glob("*tmp*")]
    if half and int(half[0].partition(".")[0]) >= step:
      process.send_signal(signal.SIGSTOP)
      os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
      if (workdir / "checkpoints" / half[0]).exists():
        return killed(process, f"in the save {half[0]}")
      process.send_signal(signal.SIGCONT)
    time.sleep(0.0005)
  return killed(process, "after the end")


def killed(process: subprocess.Popen, moment: str) -> str:
  """SIGKILL, also to a process that is stopped."""
  process.kill()
  process.communicate()
  return f"killed {moment}" if process.returncode == -signal.SIGKILL else f"ended with {process.returncode} {moment}"


def differences(whole: pathlib.Path, killed: pathlib.Path, took: float) -> list[str]:
  """What is not as in the run that nobody killed; the other one took so many seconds, all in all."""
  results = [json.loads((folder / "result.json").read_text()) for folder in (whole, killed)]
  wrong = [
    f"{key}: {results[1][key]} instead of {results[0][key]}" for key in SAME if results[0][key] != results[1][key]
  ]
  logs = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (whole, killed)]
  # Each line holds means over three steps, and every second step is saved: so most kills fall between two lines.
  steps = [line["step"] for line in logs[1] if "train/loss" in line]
  if steps != [*range(LINES, STEPS, LINES), STEPS]:
    wrong.append(f"lines of steps {steps}")
  values = [[{key: value for key, value in line.items() if key not in RATES} for line in log] for log in logs]
  wrong += [f"{ours} instead of {line}" for line, ours in zip(*values, strict=False) if line != ours][:5]
  if len(logs[0]) != len(logs[1]):
    wrong.append(f"{len(logs[1])} lines of metrics instead of {len(logs[0])}")
  goodput = results[1]["goodput"]
  total = sum(value for key, value in goodput.items() if key not in ("goodput", "attempts"))
  if abs(total - took) > 2 + 0.02 * took:
    wrong.append(f"the account holds {total:.1f} s of {took:.1f} s: {goodput}")
  return wrong


if __name__ == "__main__":
  sys.exit(main())

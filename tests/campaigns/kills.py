"""Tests that killed runs end with the same bits: python -m tests.campaigns.kills [N] [--seed S] [--recipe=NAME]

Each of N runs (default 20) receives one to three SIGKILLs, alternately at a random printed step and during a save.
After each kill, the same command continues. At the end, the weights, the figures and all lines of metrics are compared
with an undisturbed run. The times in the goodput record are compared with the clock. The recipe is `digits`, or a task
of self-distillation: `dino` or `dinov2`. The state of `dinov2` includes every entry of the state of `dino`.

The campaign prints a line per run and `N passed, M failed`. The exit code is 1 if a run failed. A run takes about half
a minute. tests/test_train.py has one such run.
"""

import argparse
import functools
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
# With optimised programs, unlike other tests: restarts of users have them.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"

from tests import runs, self_distillation
from tests.campaigns import quick
from vit_jax.corpora.builders import prepare_dataset

STEPS = 24
LINES = 3  # steps between two lines of metrics
RATES = ("images_per_second", "images_per_second_per_chip", "data_wait")  # differ between all runs
SAME = ("weights_sha256", "loss", "top1", "f1_macro", "images", "steps")  # of result.json


def main() -> int:
  """Kills and finishes runs, compares them with the undisturbed run, and returns the exit code."""
  parser = argparse.ArgumentParser("python -m tests.campaigns.kills", description=__doc__)
  parser.add_argument("runs", nargs="?", type=int, default=20, help="number of runs")
  parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
  parser.add_argument("--recipe", choices=("digits", *self_distillation.KEYS), default="digits", help="trained recipe")
  args = parser.parse_args()
  draw, failed, kinds = random.Random(args.seed), 0, [at_a_step, in_a_save]
  with tempfile.TemporaryDirectory() as folder:
    quick.set_directories(folder)
    prepare_dataset("digits")
    whole = pathlib.Path(folder, "whole")
    start_run = functools.partial(start_recipe, args.recipe)
    runs.finish(start_run(whole))
    for number in range(args.runs):
      workdir, start_time, moments = pathlib.Path(folder, f"run{number}"), time.time(), []
      for _ in range(draw.randint(1, 3)):
        step = find_last_saved_step(workdir) + draw.randint(1, STEPS // 4)
        moments.append(kinds[0](start_run(workdir), workdir, step))
        kinds.reverse()
      runs.finish(start_run(workdir))
      took = (
        workdir / "result.json"
      ).stat().st_mtime - start_time  # without the shutdown of Python, which goodput does not record
      wrong = find_differences(whole, workdir, took) + [each for each in moments if "ended" in each]
      failed += bool(wrong)
      print(
        f"{number + 1:>4}  {'FAILED' if wrong else 'passed'}  {', '.join(moments)}", *wrong, sep="\n      ", flush=True
      )
  print(f"{args.runs - failed} passed, {failed} failed")
  return bool(failed)


def start_recipe(recipe: str, workdir: pathlib.Path) -> subprocess.Popen:
  """Starts the run of a recipe with the same command as a user."""
  changes = {"total": STEPS, "checkpoint__every": 2, "log__every": LINES}
  if recipe == "digits":
    return runs.command("train", *runs.words(workdir, **changes, data__image_size=16, evals__test__every="50%"))
  if recipe == "dinov2":  # centres are part of the state, as in `dino`
    changes["task__centering"] = "mean"
  return runs.command("train", *self_distillation.words(recipe, workdir, **changes, evals__digits__every="50%"))


def find_last_saved_step(workdir: pathlib.Path) -> int:
  """Returns the step of the newest complete checkpoint, or 0."""
  return max((int(path.name) for path in (workdir / "checkpoints").glob("*") if path.name.isdigit()), default=0)


def at_a_step(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> str:
  """Kills the run after it has printed this step or a later one."""
  for line in process.stdout:
    if (printed := re.match(r" *(\d+)/", line)) and int(printed[1]) >= step:
      break
  return kill(process, f"at step {step}")


def in_a_save(process: subprocess.Popen, workdir: pathlib.Path, step: int) -> str:
  """Kills the run during the save of this step or a later one. SIGSTOP first prevents the end of the save."""
  while process.poll() is None:
    half = [path.name for path in (workdir / "checkpoints").glob("*tmp*")]
    if half and int(half[0].partition(".")[0]) >= step:
      process.send_signal(signal.SIGSTOP)
      os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
      if (workdir / "checkpoints" / half[0]).exists():
        return kill(process, f"in the save {half[0]}")
      process.send_signal(signal.SIGCONT)
    time.sleep(0.0005)
  return kill(process, "after the end")


def kill(process: subprocess.Popen, moment: str) -> str:
  """Kills a process, which may be stopped, and returns a description of the moment."""
  process.kill()
  process.communicate()
  return f"killed {moment}" if process.returncode == -signal.SIGKILL else f"ended with {process.returncode} {moment}"


def find_differences(whole: pathlib.Path, killed: pathlib.Path, took: float) -> list[str]:
  """Returns the differences between the undisturbed run and a killed run, which took `took` seconds in total."""
  results = [json.loads((folder / "result.json").read_text()) for folder in (whole, killed)]
  before, after = ([result.get(key) for key in SAME] for result in results)
  wrong = [f"{key}: {b} instead of {a}" for key, a, b in zip(SAME, before, after, strict=True) if a != b]
  logs = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in (whole, killed)]
  # Each line contains means over three steps, and every second step is saved, so most kills are between two lines.
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

"""Runs two rounds of self-training on the digits, with labels for 100 images: python -m benchmarks.self_training

A teacher is trained on 100 images and labels the other 1,337 training images. A student learns from both with noise.
The student is then the teacher of a second student. There are three seeds. Test images are not used for decisions. The
true labels of the 1,337 images are only used to measure the accuracy of the teacher's labels. All work is done by the
verbs of vit_jax. After a kill, the same command continues. The workdir contains self_training.md and
self_training.json.
"""

import json
import pathlib
import sys
import time
from collections.abc import Sequence

from benchmarks import trial_runs
from vit_jax import cli
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.storage import files
from vit_jax.sweeps import pool, results
from vit_jax.sweeps.trials import Trial

SEEDS = (0, 1, 2)
STAGES = ("teacher", "student 1", "student 2")
UNLABELLED = "train[100:]"
# Reduces logging, checkpoints and evaluations, which take time and are not needed here.
SPARE = {"log.every": "10%", "checkpoint.every": "100%", "evals.test.every": "100%"}


def main() -> None:
  """Trains and labels in turn, and writes the results."""
  parser = cli.Parser("benchmarks.self_training", __doc__)
  parser.add_argument("--workdir", type=cli.parse_workdir, default=pathlib.Path("runs/self_training"))
  workdir = parser.parse_args().workdir
  prepare_dataset("digits")
  start_time, groups = time.perf_counter(), pool.divide_devices(2)
  rounds, right, starts = {}, {}, [{} for _ in SEEDS]
  for stage in STAGES:
    file = f"configs/noisy_student.py:digits,{stage.split()[0]}"
    changes = [start | {"seed": seed} for start, seed in zip(starts, SEEDS, strict=True)]
    rounds[stage] = trial_runs.train_runs(file, workdir / stage.replace(" ", "_"), SPARE, changes, groups)
    right[stage] = measure_trials(workdir, rounds[stage], groups)
    if stage != STAGES[-1]:
      starts = [{"data.path": str(folder)} for folder in write_labels(workdir, rounds[stage], groups)]
  rows = [["CCT-2/3x2, 100 labels of digits", "test top-1, % (runs)", "of 1,337 unlabelled images, %", "seconds"]]
  for stage, trials in rounds.items():
    unlabelled = results.format_mean_and_deviation(right[stage])
    rows.append([stage, trial_runs.format_cell(trials), unlabelled, trial_runs.average_seconds(trials)])
  text = results.format_markdown(rows)
  files.write_text(workdir / "self_training.md", text + "\n")
  record = {"rows": rows, "unlabelled": right, "trials": [t.to_json() for some in rounds.values() for t in some]}
  files.write_text(workdir / "self_training.json", json.dumps(record, indent=2, default=str) + "\n")
  print(
    f"\n{text}\n\n{time.perf_counter() - start_time:.0f} s; {workdir}/self_training.md, self_training.json", flush=True
  )


def write_labels(workdir: pathlib.Path, trials: list[Trial], groups: Sequence[pool.DeviceGroup]) -> list[pathlib.Path]:
  """Writes labels with the weights of each trial and returns their folders.

  Args:
    workdir: directory of the results.
    trials: the teachers.
    groups: groups of devices for concurrent programs.
  """
  folders = [workdir / "labels" / f"{trial.workdir.parent.parent.name}-{trial.name}" for trial in trials]
  commands = {
    str(folder.with_suffix(".json")): [
      *(sys.executable, "-m", "vit_jax.evaluate", f"--workdir={trial.workdir}", f"--split={UNLABELLED}"),
      f"--write-labels={folder}",
    ]
    for folder, trial in zip(folders, trials, strict=True)
  }
  (workdir / "labels").mkdir(parents=True, exist_ok=True)
  trial_runs.run_commands(commands, groups)  # a finished command has no work left
  return folders


def measure_trials(workdir: pathlib.Path, trials: list[Trial], groups: Sequence[pool.DeviceGroup]) -> list[float]:
  """Returns top-1 of each trial on the images that are unlabelled for it.

  Args:
    workdir: directory of the results.
    trials: the trials.
    groups: groups of devices for concurrent programs.
  """
  folders = [workdir / "unlabelled" / f"{trial.workdir.parent.parent.name}-{trial.name}" for trial in trials]
  commands = {
    str(folder.with_suffix(".json")): [
      *(sys.executable, "-m", "vit_jax.evaluate", f"--workdir={trial.workdir}"),
      *(f"--split={UNLABELLED}", f"--report={folder}"),
    ]
    for folder, trial in zip(folders, trials, strict=True)
    if not (folder / "figures.json").exists()
  }
  (workdir / "unlabelled").mkdir(parents=True, exist_ok=True)
  trial_runs.run_commands(commands, groups)
  return [json.loads((folder / "figures.json").read_text())["figures"]["top1"] for folder in folders]


if __name__ == "__main__":
  cli.run_verb(main)

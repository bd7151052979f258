"""Two rounds of self-training on the digits, of which 100 have labels: python -m benchmarks.self_training

A teacher is trained on 100 images, labels the other 1,337 training images, and a student learns from both with noise;
then the student is the teacher of a second one. Three seeds. Test images decide nothing, and the labels of the 1,337
are looked at only to say how many of the teacher's are right. Everything is done by the verbs of vit_jax; the same
command continues where it was killed. It leaves self_training.md and self_training.json in its workdir.
"""

import json
import pathlib
import sys
import time

from benchmarks import compare
from vit_jax import cli, files
from vit_jax.corpora.builders import prepare
from vit_jax.sweeps import pool, results
from vit_jax.sweeps.trials import Trial

SEEDS = (0, 1, 2)
STAGES = ("teacher", "student 1", "student 2")
UNLABELLED = "train[100:]"
# What costs time and tells nothing.
SPARE = {"log.every": "10%", "checkpoint.every": "100%", "evals.test.every": "100%"}


def main() -> None:
  """Trains, labels, trains, labels, trains, and writes what came of it."""
  parser = cli.Parser("benchmarks.self_training", __doc__)
  parser.add_argument("--workdir", type=cli.workdir, default=pathlib.Path("runs/self_training"))
  workdir = parser.parse_args().workdir
  prepare("digits")
  began, groups = time.perf_counter(), pool.groups(2)
  rounds, right, starts = {}, {}, [{} for _ in SEEDS]
  for stage in STAGES:
    file = f"configs/noisy_student.py:digits,{stage.split()[0]}"
    changes = [start | {"seed": seed} for start, seed in zip(starts, SEEDS, strict=True)]
    rounds[stage] = compare.trained(file, workdir / stage.replace(" ", "_"), SPARE, changes, groups)
    right[stage] = measured(workdir, rounds[stage], groups)
    if stage != STAGES[-1]:
      starts = [{"data.path": str(folder)} for folder in labelled(workdir, rounds[stage], groups)]
  rows = [["CCT-2/3x2, 100 labels of digits", "test top-1, % (runs)", "of 1,337 unlabelled images, %", "seconds"]]
  for stage, trials in rounds.items():
    unlabelled = results.mean_and_deviation(right[stage])
    rows.append([stage, compare.cell(trials), unlabelled, compare.seconds(trials)])
  text = results.markdown(rows)
  files.write_text(workdir / "self_training.md", text + "\n")
  record = {"rows": rows, "unlabelled": right, "trials": [t.to_json() for some in rounds.values() for t in some]}
  files.write_text(workdir / "self_training.json", json.dumps(record, indent=2, default=str) + "\n")
  print(f"\n{text}\n\n{time.perf_counter() - began:.0f} s; {workdir}/self_training.md, self_training.json", flush=True)


def labelled(workdir: pathlib.Path, trials: list[Trial], groups) -> list[pathlib.Path]:
  """The folders of labels by each trial's weights."""
  folders = [workdir / "labels" / f"{trial.workdir.parent.parent.name}-{trial.name}" for trial in trials]
  commands = {
    str(folder.with_suffix(".json")): [
      *(sys.executable, "-m", "vit_jax.evaluate", f"--workdir={trial.workdir}", f"--split={UNLABELLED}"),
      f"--write-labels={folder}",
    ]
    for folder, trial in zip(folders, trials, strict=True)
  }
  (workdir / "labels").mkdir(parents=True, exist_ok=True)
  compare.run(commands, groups)  # one that is finished has nothing to do
  return folders


def measured(workdir: pathlib.Path, trials: list[Trial], groups) -> list[float]:
  """Top-1 of each trial on the images that have no labels for it."""
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
  compare.run(commands, groups)
  return [json.loads((folder / "figures.json").read_text())["figures"]["top1"] for folder in folders]


if __name__ == "__main__":
  cli.main(main)

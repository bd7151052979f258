"""Measures the benefit of pre-training on generated signs for digits: make transfer, or python -m benchmarks.transfer

ViT-Lite-2/4 starts from random weights, or from pre-training on 20,000 generated signs, with their labels or by masked
patches. Each start has three seeds. Frozen features are then probed with a few digits of each class. The model is also
trained on 100 digits and on all digits, with one recipe and equal steps. Test images are not used for decisions. All
training uses the verbs of vit_jax. After a kill, the same command continues. The workdir contains transfer.md,
transfer.json and transfer.png.
"""

import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks import compare
from vit_jax import cli
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.storage import files
from vit_jax.sweeps import pool, results
from vit_jax.sweeps.trials import Trial

SEEDS, SHOTS = (0, 1, 2), (1, 5, 10, 25)
# reduces logging and checkpoints, which take time and are not needed here
SPARE = {"log.every": "10%", "checkpoint.every": "100%"}
STARTS = {  # changes of configs/glyphs.py
  "as drawn": {"total": "1", "optim.lr": "1e-9", "optim.warmup": "0"},
  "by labels": {},
  "by masked patches": {
    "task.name": "masked_patches", "task.label_smoothing": "default", "evals.test.name": "masked",
  },
}  # fmt: skip
MODEL = {"model.name": "vit_2_4_32", "model.pool": "seqpool"}  # model of configs/glyphs.py
LABELLED = {  # number of labelled digits -> changes of configs/digits.py
  100: {"data.train": "train[:100]", "batch": "50", "optim.accumulate": "5", "total": "300"},
  1437: {"total": "20ep"},
}


def main() -> None:
  """Pre-trains, probes, trains on digits, and writes the comparison."""
  parser = cli.Parser("benchmarks.transfer", __doc__)
  parser.add_argument("--workdir", type=cli.parse_workdir, default=pathlib.Path("runs/transfer"))
  workdir = parser.parse_args().workdir
  prepare_dataset("glyphs")
  prepare_dataset("digits")
  began, groups = time.perf_counter(), pool.divide_devices(2)
  before = {name: pretrain_runs(workdir, name, groups) for name in STARTS}
  probed = {name: run_probes(workdir, trials, groups) for name, trials in before.items()}
  tuned = {
    (name, labelled): train_on_digits(workdir, name, labelled, before[name], groups)
    for name in STARTS
    for labelled in LABELLED
  }
  rows = make_table(probed, tuned)
  text = results.format_markdown(rows)
  files.write_text(workdir / "transfer.md", text + "\n")
  trials = [trial for group in [*before.values(), *tuned.values()] for trial in group]
  record = {"rows": rows, "fewshot": probed, "trials": [trial.to_json() for trial in trials]}
  files.write_text(workdir / "transfer.json", json.dumps(record, indent=2, default=str) + "\n")
  draw_picture(before, probed, tuned, workdir / "transfer.png")
  print(
    f"\n{text}\n\n{time.perf_counter() - began:.0f} s; {workdir}/transfer.md, transfer.json, transfer.png", flush=True
  )


def name_folder(name: str) -> str:
  """Returns the folder name of a start."""
  return name.replace(" ", "_")


def pretrain_runs(workdir: pathlib.Path, name: str, groups: Sequence[pool.DeviceGroup]) -> list[Trial]:
  """Returns a run on the dataset `glyphs` for each seed.

  Args:
    workdir: directory of the results.
    name: a key of `STARTS`.
    groups: groups of devices for concurrent runs.
  """
  return compare.train_runs(
    "configs/glyphs.py", workdir / name_folder(name), SPARE | STARTS[name], [{"seed": seed} for seed in SEEDS], groups
  )


def run_probes(workdir: pathlib.Path, trials: list[Trial], groups: Sequence[pool.DeviceGroup]) -> list[dict[str, Any]]:
  """Returns few-shot figures of each trial's weights on digits.

  Args:
    workdir: directory of the results.
    trials: pre-trained trials.
    groups: groups of devices for concurrent programs.
  """
  answers, commands = [], {}
  for trial in trials:
    file = workdir / "fewshot" / f"{trial.workdir.parent.name}-{trial.name}.json"
    answers.append(file)
    if not file.exists():
      commands[str(file)] = [
        *(sys.executable, "-m", "vit_jax.fewshot", "--config=configs/fewshot.py:digits"),
        *(f"--weights={trial.workdir}", f"--json={file}"),
      ]
  (workdir / "fewshot").mkdir(parents=True, exist_ok=True)
  compare.run_commands(commands, groups)
  return [json.loads(file.read_text())["evals"]["digits"]["figures"] for file in answers]


def train_on_digits(
  workdir: pathlib.Path, name: str, labelled: int, before: list[Trial], groups: Sequence[pool.DeviceGroup]
) -> list[Trial]:
  """Returns runs on labelled digits that start from the weights of `before`, or from scratch.

  Args:
    workdir: directory of the results.
    name: a key of `STARTS`.
    labelled: a key of `LABELLED`.
    before: pre-trained trials.
    groups: groups of devices for concurrent runs.
  """
  overrides = SPARE | LABELLED[labelled] | MODEL | {"evals.test.every": "100%"}
  # Runs from scratch do not use `init.from`: the new head of zeros that imported weights get would not help them.
  starts = [{} if name == "as drawn" else {"init.from": str(trial.workdir)} for trial in before]
  changes = [start | {"seed": trial.changes["seed"]} for start, trial in zip(starts, before, strict=True)]
  return compare.train_runs(
    "configs/digits.py", workdir / f"{name_folder(name)}-{labelled}", overrides, changes, groups
  )


def make_table(probed: dict[str, list[dict[str, Any]]], tuned: dict[tuple[str, int], list[Trial]]) -> list[list[str]]:
  """Returns the rows of transfer.md with test top-1, the header first.

  Args:
    probed: few-shot figures by start.
    tuned: trials by start and number of labelled digits.
  """
  rows = [["ViT-Lite-2/4 on digits, test top-1, % (runs)", *STARTS]]
  for shots in SHOTS:
    cells = [
      results.format_mean_and_deviation([compare.average_top1(f, shots) for f in probed[name]]) for name in STARTS
    ]
    rows.append([f"frozen, ridge on {shots} of each class", *cells])
  for labelled in LABELLED:
    rows.append([f"trained on {labelled:,}", *(compare.format_cell(tuned[name, labelled]) for name in STARTS)])
  return rows


def draw_picture(before: Any, probed: Any, tuned: Any, path: pathlib.Path) -> None:
  """Draws few-shot accuracy over pre-training (left), probes over shots (middle), and accuracy after training (right).

  Args:
    before: pre-trained trials by start.
    probed: few-shot figures by start.
    tuned: trials by start and number of labelled digits.
    path: the PNG file.
  """
  figure = Figure(figsize=(14, 4.4), layout="constrained")
  FigureCanvasAgg(figure)
  during, frozen, trained = figure.subplots(1, 3)
  for number, name in enumerate(STARTS):
    colour, offset = f"C{number}", 1.05 ** (number - 1)
    if name != "as drawn":
      draw_curve(during, before[name], "digits/ridge_10shot", colour, "-", name)
      draw_curve(during, before[name], "digits/ema_ridge_10shot", colour, ":", f"{name}, averaged weights")
    few = [[compare.average_top1(figures, shots) for figures in probed[name]] for shots in SHOTS]
    compare.draw_points(frozen, [10 * shots * offset for shots in SHOTS], few, colour, name)
    values = [[trial.figures["top1"] for trial in tuned[name, labelled]] for labelled in LABELLED]
    compare.draw_points(trained, [labelled * offset for labelled in LABELLED], values, colour, name)
  during.set(
    xlabel="steps of pre-training", ylabel="top-1 of digits, 10 of each class", title="while it is pre-trained"
  )
  frozen.set(xlabel="labelled digits", title="frozen features, ridge", xscale="log")
  trained.set(xlabel="labelled digits", title="all trained, equal steps", xscale="log")
  for axes, ticks in ((frozen, [10 * shots for shots in SHOTS]), (trained, list(LABELLED))):
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks], minor=False)
    axes.set_xticks([], minor=True)
  for axes in (during, frozen, trained):
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
  with files.atomic_write(path) as partial:
    figure.savefig(partial, format="png", dpi=110)


def draw_curve(axes: Any, trials: list[Trial], figure: str, colour: str, style: str, label: str) -> None:
  """Draws the mean over seeds of a figure that was measured during training.

  Args:
    axes: axes of matplotlib.
    trials: the trials.
    figure: name of the figure.
    colour: colour of the curve.
    style: line style.
    label: label in the legend.
  """
  values = {}
  for trial in trials:
    for text in (trial.workdir / "metrics.jsonl").read_text().splitlines():
      line = json.loads(text)
      if figure in line:
        values.setdefault(line["step"], []).append(line[figure])
  steps = sorted(values)
  axes.plot(steps, [sum(values[s]) / len(values[s]) for s in steps], style, marker="o", markersize=3, color=colour,
            label=label)  # fmt: skip


if __name__ == "__main__":
  cli.run_verb(main)

"""Compares ViT-Lite, CVT and CCT on the digits: make compare, or python -m benchmarks.compare

Three models are trained from scratch with the same budget and three seeds each. The best model on `val` is
probed: its features are measured with a few images of each class, at two resolutions. The model is then fine-tuned at
the higher resolution. Test images are not used for decisions. All training uses the verbs of
vit_jax. After a kill, the same command continues. The workdir contains compare.md, compare.json and compare.png.
"""

import json
import pathlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks import trial_runs
from vit_jax import cli, config
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.storage import files
from vit_jax.sweeps import pool, results
from vit_jax.sweeps.trials import Trial

MODELS = {"vit_2_4_32": "ViT-Lite-2/4", "cvt_2_4_32": "CVT-2/4", "cct_2_3x2_32": "CCT-2/3x2"}
SEEDS, SHOTS = (0, 1, 2), (1, 5, 10, 25)
PIXELS = (32, 48)
MEASURED = ("train/epoch", "val/top1")  # logged at the steps of the curves
SPLITS = {"data.train": "train[:90%]", "data.val": "train[90%:]"}
SCRATCH = SPLITS | {  # changes of configs/digits.py; checkpoints and evaluations take time, and two suffice
  "total": "20ep", "evals.val.name": "accuracy", "evals.val.split": "val", "evals.val.every": "10%",
  "evals.test.every": "100%", "checkpoint.every": "50%", "log.every": "10%",
}  # fmt: skip
FINETUNE = {"total": "3ep", "checkpoint.every": "100%", "log.every": "20%", "evals.val.every": "100%"}


def main() -> None:
  """Trains, probes, fine-tunes, and writes the comparison."""
  parser = cli.Parser("benchmarks.compare", __doc__)
  parser.add_argument("--workdir", type=cli.parse_workdir, default=pathlib.Path("runs/compare"))
  workdir = parser.parse_args().workdir
  prepare_dataset("digits")
  start_time, groups = time.perf_counter(), pool.divide_devices(2)

  # The slowest model is first, so that cores are not idle for long at the end.
  changes = config.product({"model.name": list(MODELS)[::-1], "seed": SEEDS})
  scratch = trial_runs.train_runs("configs/digits.py", workdir / "scratch", SCRATCH, changes, groups)
  best = max(MODELS, key=lambda name: statistics.mean(t.figures["val/top1"] for t in select_trials(scratch, name)))
  print(f"\nbest on val: {MODELS[best]}\n", flush=True)
  probed = run_probes(workdir, scratch, best, groups)
  starts = [{"init.from": str(trial.workdir), "seed": trial.changes["seed"]} for trial in select_trials(scratch, best)]
  file = f"configs/finetune.py:digits,{best},{PIXELS[1]}"
  tuned = trial_runs.train_runs(file, workdir / "finetune", FINETUNE, starts, groups)

  rows = make_table(scratch, probed, tuned, best)
  text = results.format_markdown(rows)
  files.write_text(workdir / "compare.md", text + "\n")
  record = {"best": best, "rows": rows, "trials": [trial.to_json() for trial in scratch + tuned]}
  record["fewshot"] = [{"model": name, "pixels": size, "figures": some} for (name, size), some in probed.items()]
  files.write_text(workdir / "compare.json", json.dumps(record, indent=2, default=str) + "\n")
  draw_picture(scratch, probed, tuned, best, workdir / "compare.png")
  print(
    f"\n{text}\n\n{time.perf_counter() - start_time:.0f} s; {workdir}/compare.md, compare.json, compare.png", flush=True
  )


def make_table(scratch: Any, probed: Any, tuned: Any, best: Any) -> list[list[str]]:
  """Returns the rows of compare.md, with the header first.

  Args:
    scratch: trials from scratch.
    probed: result of `run_probes`.
    tuned: fine-tuned trials.
    best: name of the best model.
  """
  images = f"{count_training_images(scratch):,}"
  rows = [["what", "pixels", "images of training", "test top-1, % (runs)", "seconds of training"]]
  for name, title in MODELS.items():
    rows.append(
      [
        f"{title} from scratch",
        "32",
        images,
        trial_runs.format_cell(select_trials(scratch, name)),
        trial_runs.average_seconds(select_trials(scratch, name)),
      ]
    )
  for size in PIXELS:
    for shots in SHOTS:
      values = results.format_mean_and_deviation([average_top1(figures, shots) for figures in probed[best, size]])
      rows.append([f"{MODELS[best]}, frozen, {shots}-shot ridge", str(size), f"{10 * shots}", values, "-"])
  rows.append(
    [
      f"{MODELS[best]}, fine-tuned",
      str(PIXELS[1]),
      images,
      trial_runs.format_cell(tuned),
      trial_runs.average_seconds(tuned),
    ]
  )
  return rows


def select_trials(trials: list[Trial], name: str) -> list[Trial]:
  """Returns the trials of a model.

  Args:
    trials: the trials.
    name: name of the model.
  """
  return [trial for trial in trials if trial.changes["model.name"] == name]


def run_probes(
  workdir: pathlib.Path, scratch: Any, best: Any, groups: Sequence[pool.DeviceGroup]
) -> dict[tuple[str, int], list[dict[str, Any]]]:
  """Returns few-shot metrics of the weights of each seed, by (model, pixels).

  The higher resolution is measured only for the best model.

  Args:
    workdir: directory of the results.
    scratch: trials from scratch.
    best: name of the best model.
    groups: groups of devices for concurrent programs.
  """
  commands, answers = {}, {}
  for trial in scratch:
    name = trial.changes["model.name"]
    for size in PIXELS if name == best else PIXELS[:1]:
      file = workdir / "fewshot" / f"{trial.name}-{size}.json"
      answers.setdefault((name, size), []).append(file)
      if not file.exists():
        commands[str(file)] = [
          *(sys.executable, "-m", "vit_jax.fewshot", "--config=configs/fewshot.py:digits"),
          *(f"--weights={trial.workdir}", f"--json={file}", f"--config.image_size={size}"),
          f"--config.evals.digits.data.train={SPLITS['data.train']}",
        ]
  (workdir / "fewshot").mkdir(parents=True, exist_ok=True)
  trial_runs.run_commands(commands, groups)
  return {
    key: [json.loads(file.read_text())["evals"]["digits"]["figures"] for file in some] for key, some in answers.items()
  }


def average_top1(figures: dict[str, Any], shots: int) -> float:
  """Returns mean top-1 over draws.

  Args:
    figures: few-shot metrics.
    shots: number of images per class.
  """
  return figures[f"ridge_{shots}shot"]


def count_training_images(trials: list[Trial]) -> int:
  """Returns the number of training images of a run, computed from its log."""
  last = trial_runs.read_rows(trials[0], MEASURED)[-1]
  assert trials[0].config is not None
  return round(last["step"] * json.loads(trials[0].config)["batch"] / last["train/epoch"])


def draw_picture(scratch: Any, probed: Any, tuned: Any, best: Any, path: pathlib.Path) -> None:
  """Draws accuracy on val over images seen (left), and accuracy on test over different images (right).

  Args:
    scratch: trials from scratch.
    probed: result of `run_probes`.
    tuned: fine-tuned trials.
    best: name of the best model.
    path: the PNG file.
  """
  figure, images = Figure(figsize=(11, 4.6), layout="constrained"), count_training_images(scratch)
  FigureCanvasAgg(figure)
  left, right = figure.subplots(1, 2)
  for number, (name, title) in enumerate(MODELS.items()):
    colour, trials = f"C{number}", select_trials(scratch, name)
    draw_curve(left, [trial_runs.read_rows(trial, MEASURED) for trial in trials], images, colour, title)
    draw_points(
      right,
      shift_positions(number, [10 * k for k in SHOTS]),
      [[average_top1(f, k) for f in probed[name, 32]] for k in SHOTS],
      colour,
      f"{title}, frozen, few-shot",
    )
    draw_points(
      right, shift_positions(number, [images]), [[trial.figures["top1"] for trial in trials]], colour, None, "s"
    )
  number = len(MODELS)
  draw_points(
    right,
    shift_positions(number, [10 * k for k in SHOTS]),
    [[average_top1(f, k) for f in probed[best, PIXELS[1]]] for k in SHOTS],
    f"C{number}",
    f"{MODELS[best]}, the same at {PIXELS[1]} px",
  )
  draw_points(
    right,
    shift_positions(number, [images]),
    [[t.figures["top1"] for t in tuned]],
    f"C{number}",
    f"fine-tuned at {PIXELS[1]} px",
    "D",
  )
  left.set(xlabel="training images seen", ylabel="top-1 on val", title="from scratch, mean ± std of 3 seeds")
  right.set(xlabel="different labelled images", ylabel="top-1 on test", xscale="log")
  right.set_title("probes of frozen features, which saw all labels,\nand (squares) from scratch; mean ± std of 3 seeds")
  at = [*(10 * k for k in SHOTS), images]
  right.set_xticks(at, [f"{position:,}" for position in at], minor=False)
  right.set_xticks([], minor=True)
  for axes in (left, right):
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="lower right")
  with files.atomic_write(path) as partial:
    figure.savefig(partial, format="png", dpi=110)


def shift_positions(number: int, positions: list[float]) -> list[float]:
  """Shifts positions on a logarithmic axis, so that error bars of several series do not overlap.

  Args:
    number: number of the series.
    positions: common positions of all series.
  """
  return [position * 1.09 ** (number - len(MODELS) / 2) for position in positions]


def draw_curve(axes: Any, runs: list[list[dict[str, Any]]], images: int, colour: str, label: str) -> None:
  """Draws mean top-1 on val over images seen, with a band of one standard deviation.

  Args:
    axes: axes of matplotlib.
    runs: rows of `trial_runs.read_rows` of each run.
    images: number of training images.
    colour: colour of the curve.
    label: label in the legend.
  """
  seen = [line["train/epoch"] * images for line in runs[0]]
  steps = list(zip(*([line["val/top1"] for line in run] for run in runs), strict=True))
  mean, deviation = [statistics.mean(values) for values in steps], [statistics.stdev(values) for values in steps]
  axes.plot(seen, mean, "o-", markersize=3, color=colour, label=label)
  low, high = ([m + sign * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
  axes.fill_between(seen, low, high, color=colour, alpha=0.2)


def draw_points(
  axes: Any,
  positions: Sequence[float],
  values: Sequence[Sequence[float]],
  colour: str,
  label: str | None,
  marker: str = "o",
) -> None:
  """Draws means with error bars of one standard deviation.

  Args:
    axes: axes of matplotlib.
    positions: horizontal positions.
    values: values at each position.
    colour: colour of the series.
    label: label in the legend.
    marker: marker of the means.
  """
  means, deviations = zip(*((statistics.mean(v), statistics.stdev(v)) for v in values), strict=True)
  axes.errorbar(
    positions, means, deviations, fmt=f"{marker}-", color=colour, label=label, markersize=5, capsize=2, linewidth=1
  )


if __name__ == "__main__":
  cli.run_verb(main)

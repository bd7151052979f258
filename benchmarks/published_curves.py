"""Converts published logs to the files of vit_jax/certificates: python -m benchmarks.published_curves --curves=DIR

DIR contains algoperf_vit_s16_nadamw.csv and deit3.csv, tables of logs that were published by mlcommons and by the
authors of DeiT III. --digits=DIR writes the curves of configs/digits.py, from the workdirs DIR/0 to DIR/4 of five seeds
that evaluated after each epoch (--config.evals.test.every=1ep). --timm=FILE is results/results-imagenet.csv of timm,
whose accuracies `evaluate` compares with its own.

Each file of curves contains their source and, for each curve, the groups of its recipe that determine it. A test
compares these groups with the recipes. --curves also writes big_vision.json, from values in this program.
"""

import collections
import csv
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax import cli, models
from vit_jax.certificates.matching import GROUPS
from vit_jax.config import flags
from vit_jax.storage import files

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "vit_jax" / "certificates"
GRID = [percent / 100 for percent in range(1, 90)]  # the logs of AlgoPerf end at about 90 % of the steps
ALGOPERF_STEPS = 186_666
SIZES = {"small": "S", "base": "B", "large": "L", "huge": "H"}
# Top-1 in per cent of two groups of four models, fine-tuned from the same weights (facebookresearch/mae, FINETUNE.md).
MAE = ((83.63, 83.66, 83.52, 83.46), (85.95, 85.87, 85.76, 85.88))
BORROWED_FACTOR = 2.0  # factor of a borrowed standard deviation; an estimate
# Top-1 of big_vision's ViT-S/16 for 90 epochs by fractions of the steps. Read from a plot, except the last.
BIG_VISION = {0.05: 15.4, 0.1: 33.1, 0.25: 54.9, 0.5: 65.2, 0.75: 72.9, 0.9: 75.8, 1.0: 76.23}


def make_curve(recipe: str, split: str, fractions: Sequence[float], seeds: Sequence[Sequence[float]]) -> dict[str, Any]:
  """Returns the record of a curve.

  Args:
    recipe: the recipe, such as "configs/digits.py".
    split: split of the evaluated images.
    fractions: fractions of the schedule.
    seeds: top-1 as shares from 0 to 1, one sequence for each seed.
  """
  return {
    "name": recipe,
    "split": split,
    "fine_tuned": flags.load_config(str(ROOT / recipe)).init["from"] is not None,
    "config": select_groups(recipe),
    "fractions": [round(each, 5) for each in fractions],
    "seeds": [[round(float(value), 5) for value in seed] for seed in seeds],
  }


def select_groups(recipe: str) -> dict[str, Any]:
  """Returns the groups of a recipe that determine its curve, as JSON values."""
  groups = flags.load_config(str(ROOT / recipe)).to_dict()
  return json.loads(json.dumps({key: groups[key] for key in GROUPS if key in groups}))


def convert_algoperf(file: pathlib.Path) -> dict[str, Any]:
  """Returns the curves of five trials with four seeds each.

  Args:
    file: table with columns tuning, trial, seed, step and validation_top1.
  """
  rows: dict[str, dict[str, list[tuple[float, float]]]] = collections.defaultdict(lambda: collections.defaultdict(list))
  for row in csv.DictReader(file.open()):
    if row["tuning"] == "external_tuning":
      point = (int(row["step"]) / ALGOPERF_STEPS, float(row["validation_top1"]))
      rows[row["trial"]][row["seed"]].append(point)
  curves = []
  for trial, seeds in sorted(rows.items()):
    values = [np.interp(GRID, *np.array(sorted(points)).T) for points in seeds.values()]
    curves.append(make_curve(f"configs/algoperf_vit.py:{trial}", "validation", GRID, values))
  return {
    "source": "github.com/mlcommons/submissions_algorithms, previous_leaderboards/algoperf_v05",
    "published": "AlgoPerf 0.5, NadamW in JAX, 8 V100, float32",
    "curves": curves,
  }


def convert_deit3(file: pathlib.Path) -> dict[str, Any]:
  """Returns the curves of 18 single runs.

  Args:
    file: table with columns model, epochs, image_size, stage, epoch and top1.
  """
  runs: dict[tuple[str, ...], list[tuple[int, float]]] = collections.defaultdict(list)
  for row in csv.DictReader(file.open()):
    key = tuple(row[name] for name in ("model", "epochs", "image_size", "stage"))
    runs[key].append((int(row["epoch"]), float(row["top1"]) / 100))
  curves = []
  for (model, epochs, pixels, _), points in runs.items():
    recipe = find_deit3_recipe(SIZES[model.split("_")[1]], int(epochs), pixels)
    split = "test" if recipe.count(",") == 2 and "i21k" in recipe else "validation"
    curve = make_curve(recipe, split, [e / int(epochs) for e, _ in points], [[value for _, value in points]])
    curves.append(curve | {"spread": describe_single_spread(int(epochs))})
  return {
    "source": "github.com/facebookresearch/deit, README_revenge.md",
    "published": "logs of the authors, one run each, V100 or A100",
    "curves": curves,
  }


def find_deit3_recipe(size: str, epochs: int, pixels: str) -> str:
  """Returns the recipe of a run of DeiT III.

  Args:
    size: "S", "B", "L" or "H".
    epochs: number of epochs: 800, 240 or 90 of pre-training, 50 after ImageNet-21k, or 20 after ImageNet-1k.
    pixels: image size.
  """
  large = "90" if size == "H" else "240"
  argument = {800: "i1k,800", 240: "i21k,240", 90: "i21k,90", 50: f"i21k,{large},224", 20: f"i1k,800,{pixels}"}[epochs]
  return f"configs/deit3.py:{size},{argument}"


def describe_single_spread(epochs: int) -> dict[str, Any]:
  """Returns the spread of a single run of DeiT III, which is borrowed from runs with several seeds.

  Args:
    epochs: number of epochs. 20 is the fine-tuning after ImageNet-1k, which hardly changes the accuracy.
  """
  if epochs == 20:
    std = statistics.mean(statistics.variance(seeds) for seeds in MAE) ** 0.5 / 100
    note = "twice that of four fine-tuned models of MAE"
    return {
      "std": round(std, 5),
      "degrees": sum(len(seeds) - 1 for seeds in MAE),
      "factor": BORROWED_FACTOR,
      "note": note,
    }
  return {"of": "algoperf", "factor": BORROWED_FACTOR, "note": "twice that of AlgoPerf's runs at the same fraction"}


def convert_big_vision() -> dict[str, Any]:
  """Returns the curve of ViT-S/16 for 90 epochs, whose values were read from a plot."""
  values = [value / 100 for value in BIG_VISION.values()]
  curve = make_curve("configs/vit_s16_i1k.py", "validation", list(BIG_VISION), [values])
  return {
    "source": "github.com/sayakpaul/big_vision_experiments",
    "published": "one run of big_vision on a TPU v3-8, read from a plot",
    "curves": [curve | {"spread": describe_single_spread(90), "reading_error": 0.003}],
  }


def convert_digits(folder: pathlib.Path) -> dict[str, Any]:
  """Returns the curves of five seeds of configs/digits.py.

  Args:
    folder: directory of the workdirs 0 to 4.
  """
  seeds = [read_curve(folder / str(seed)) for seed in range(5)]
  total = max(seeds[0])
  fractions = [step / total for step in seeds[0]]
  return {
    "source": "docs/guides/on-track.md",
    "published": "five seeds of this project on CPUs",
    "curves": [make_curve("configs/digits.py", "test", fractions, [list(seed.values()) for seed in seeds])],
  }


def read_curve(workdir: pathlib.Path) -> dict[int, float]:
  """Returns top-1 on the test images by steps, from the metrics of a run."""
  lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return {line["step"]: line["test/top1"] for line in lines if "test/top1" in line}


def convert_timm(file: pathlib.Path) -> dict[str, Any]:
  """Returns the published accuracies of weights whose architecture is a model of this package.

  Args:
    file: table with columns model, top1, img_size, crop_pct and interpolation.
  """
  names = set(models.names())
  rows = [row for row in csv.DictReader(file.open()) if row["model"].partition(".")[0] in names]
  return {
    "source": "github.com/huggingface/pytorch-image-models, results/results-imagenet.csv of 2026-08-08",
    "columns": ["top-1 in per cent", "image size", "crop ratio", "interpolation"],
    "weights": {
      row["model"]: [float(row["top1"]), int(row["img_size"]), float(row["crop_pct"]), row["interpolation"]]
      for row in sorted(rows, key=lambda row: row["model"])
    },
  }


def write_accuracies(content: Mapping[str, Any]) -> None:
  """Writes the file of accuracies, with one line for each model."""
  rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in content["weights"].items())
  head = json.dumps({key: value for key, value in content.items() if key != "weights"}, indent=1)[:-2]
  files.write_text(FOLDER / "accuracies.json", f'{head},\n "weights": {{\n{rows}\n }}\n}}\n')


def write_curves(name: str, content: Mapping[str, Any]) -> None:
  """Writes a file of curves, with one line for each sequence of numbers."""
  curves = []
  for curve in content["curves"]:
    rest = {key: value for key, value in curve.items() if key not in ("fractions", "seeds")}
    seeds = ",\n".join(f"    {json.dumps(seed)}" for seed in curve["seeds"])
    curves.append(
      f'{json.dumps(rest)[:-1]},\n   "fractions": {json.dumps(curve["fractions"])},\n   "seeds": [\n{seeds}]}}'
    )
  head = json.dumps({key: value for key, value in content.items() if key != "curves"}, indent=1)[:-2]
  files.write_text(FOLDER / f"{name}.json", head + ',\n "curves": [\n  ' + ",\n  ".join(curves) + "\n ]\n}\n")


def main() -> None:
  """Writes the files of the given sources."""
  parser = cli.Parser("benchmarks.published_curves", __doc__)
  parser.add_argument("--curves", type=pathlib.Path, help="directory with the tables of AlgoPerf and DeiT III")
  parser.add_argument("--digits", type=pathlib.Path, help="directory with the workdirs of five seeds")
  parser.add_argument("--timm", type=pathlib.Path, help="table of accuracies of timm")
  arguments = parser.parse_args()
  if arguments.curves:
    write_curves("algoperf", convert_algoperf(arguments.curves / "algoperf_vit_s16_nadamw.csv"))
    write_curves("deit3", convert_deit3(arguments.curves / "deit3.csv"))
    write_curves("big_vision", convert_big_vision())
  if arguments.timm:
    write_accuracies(convert_timm(arguments.timm))
  if arguments.digits:
    write_curves("digits", convert_digits(arguments.digits))


if __name__ == "__main__":
  cli.run_verb(main)

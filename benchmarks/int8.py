"""Compares training with int8 products to training in bfloat16: python -m benchmarks.int8

    python -m benchmarks.int8 --workdir=runs/int8 [--data=digits,glyphs] [--total=10ep] [--seeds=N] [--quick]

Both train with the same configs and seeds, configs/digits.py and configs/glyphs.py, in bfloat16. They differ in
`model.matmul` only. The figure is top-1 on the test images. Runs follow one another. After a kill, the same command
continues. `--quick` checks the command with two seeds and one step of a small model in each run.

Intervals are at 95 % and cover the noise between seeds: Student's t for means and Welch's t for differences. The
verdict is "equal" if the interval of the difference is within 1 point of 0, "different" if it does not contain 0, and
otherwise "not decided".
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated

from benchmarks import trial_runs
from benchmarks.ablations import QUICK_OVERRIDES, format_interval
from vit_jax import cli, schema
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.evals import intervals
from vit_jax.storage import files
from vit_jax.sweeps import results

MARGIN = 1.0  # points; products with a smaller difference count as equal
PRODUCTS = {"bfloat16": "default", "int8": "int8"}
DATA = ("digits", "glyphs")
SEEDS = Annotated[int, schema.Range(2, 1000)]  # an interval needs two runs


def main() -> None:
  """Trains with both products and writes the table."""
  parser = cli.Parser("benchmarks.int8", __doc__)
  parser.add_argument("--workdir", type=cli.parse_workdir, help="default: runs/int8, or runs/int8-quick")
  names = cli.make_names_parser("dataset", DATA)
  parser.add_argument("--data", type=names, default=["digits"], help="digits, glyphs or both; default: digits")
  parser.add_argument("--total", help="length of each run, such as 10ep; default: as in the config")
  parser.add_argument("--seeds", type=cli.make_number_parser(SEEDS), help="number of seeds; default: 5")
  parser.add_argument("--quick", action="store_true", help="check the command; the figures are meaningless")
  arguments = parser.parse_args()
  workdir = arguments.workdir or pathlib.Path("runs/int8-quick" if arguments.quick else "runs/int8")
  seeds = arguments.seeds or (2 if arguments.quick else 5)
  overrides = QUICK_OVERRIDES if arguments.quick else {}
  overrides = overrides | ({"total": arguments.total} if arguments.total else {})
  table = [["data", "bfloat16, top-1 in %", "int8, top-1 in %", "difference", "95 % interval", "verdict"]]
  record = {}
  for data in arguments.data:
    top1 = measure_accuracies(data, workdir, overrides, seeds)
    table.append([data, *compare_accuracies(top1)])
    record[data] = {"top1": top1, "row": table[-1]}
    files.write_text(workdir / "int8.md", results.format_markdown(table) + "\n")
    files.write_text(workdir / "int8.json", json.dumps(record, indent=2) + "\n")
  print(results.format_markdown(table), flush=True)


def measure_accuracies(
  data: str, workdir: pathlib.Path, overrides: Mapping[str, str], seeds: int
) -> dict[str, list[float]]:
  """Returns top-1 in per cent of each seed, by the name of the product.

  Args:
    data: one of `DATA`.
    workdir: directory of all runs.
    overrides: changes of all runs.
    seeds: number of seeds.
  """
  for name in dict.fromkeys(("digits", data)):  # the config of glyphs also probes digits
    prepare_dataset(name)
  changes = [
    {"seed": seed, "model.dtype": "bfloat16", "model.matmul": matmul}
    for seed in range(seeds)
    for matmul in PRODUCTS.values()
  ]
  trials = trial_runs.train_runs(f"configs/{data}.py", workdir / data, overrides, changes, [])
  values = [100 * trial.figures["top1"] for trial in trials]
  return {name: values[number :: len(PRODUCTS)] for number, name in enumerate(PRODUCTS)}


def compare_accuracies(top1: Mapping[str, Sequence[float]]) -> list[str]:
  """Returns the cells of a row: both means, their difference, its interval, and the verdict.

  Args:
    top1: top-1 in per cent of each seed, by the name of the product.
  """
  plain, integers = (intervals.summarize_runs(top1[name]) for name in PRODUCTS)
  interval = intervals.compute_combination_interval([(1.0, integers), (-1.0, plain)])
  means = [f"{each.mean:.2f} ± {each.deviation:.2f}" for each in (plain, integers)]
  return [*means, f"{integers.mean - plain.mean:.2f}", format_interval(interval), judge_interval(interval)]


def judge_interval(interval: intervals.Interval) -> str:
  """Returns the verdict for the interval of a difference in points."""
  low, high = interval
  if low >= -MARGIN and high <= MARGIN:
    return "equal"
  return "different" if low > 0 or high < 0 else "not decided"


if __name__ == "__main__":
  cli.run_verb(main)

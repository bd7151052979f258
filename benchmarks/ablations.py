"""Repeats the ablations of the papers, with intervals and verdicts: python -m benchmarks.ablations

    python -m benchmarks.ablations --workdir=runs/ablations [--only=positions,shape] [--seeds=N] [--quick]

`benchmarks.ablation_claims` lists the ablations and their claims. Each ablation is the sweep of configs/ablations with
the same name. objectives.py is measured by benchmarks.transfer instead. The initial weights of the ablation of
pre-training are trained with configs/glyphs.py. Two runs train at the same time. After a kill, the same command
continues. `--quick` checks the command: two settings of each ablation, two seeds, and one step of a narrow model of one
layer in each run.

The workdir contains ablations.md and ablations.json. They are written after each ablation. Intervals are at 95 % and
cover the noise between seeds: Student's t for means and Welch's t for differences. A claim that one setting is better
"appears" if the interval is above 0, and is "reversed" if the interval is below 0. A claim that settings are equal
"appears" if the interval is within 2 points of 0, and is "reversed" if the interval is outside. Other claims are "not
decided".
"""

import json
import math
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from benchmarks import trial_runs
from benchmarks.ablation_claims import ABLATIONS, EQUAL, Ablation, Claim
from vit_jax import cli, schema
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.evals import intervals
from vit_jax.storage import files
from vit_jax.sweeps import pool, results, study
from vit_jax.sweeps.trials import Trial, group_settings

MARGIN = 2.0  # points; settings with a smaller difference count as equal
APPEARS, REVERSED, UNDECIDED = "appears", "reversed", "not decided"
SEEDS = Annotated[int, schema.Range(2, 1000)]  # an interval needs two runs
QUICK_OVERRIDES = {  # values of a sweep take precedence
  "model.depth": "1",
  "model.width": "16",
  "model.heads": "1",
  "model.hidden": "16",
  "model.scan": "true",  # for the deep models of the ablation of shapes
  "optim.accumulate": "1",
  "data.test": "test[:8]",
  "log.images": "false",
  "batch": "4",
  "total": "1",
}
HEADER = ["setting", "top-1, %", "seeds", "95 % interval"]


class Row(NamedTuple):
  """Top-1 of a setting on the test images.

  Attributes:
    summary: statistics over seeds, in per cent.
    selected: whether `val` selects the setting in its group.
  """

  summary: intervals.Summary
  selected: bool = False


class Result(NamedTuple):
  """Result of a claim.

  Attributes:
    difference: difference of the two sides, in points.
    interval: its 95 % interval.
    verdict: `APPEARS`, `REVERSED` or `UNDECIDED`.
  """

  difference: float
  interval: intervals.Interval
  verdict: str


def main() -> None:
  """Trains the settings of the ablations and writes tables and verdicts."""
  parser = cli.Parser("benchmarks.ablations", __doc__)
  parser.add_argument("--workdir", type=cli.parse_workdir, help="default: runs/ablations, or runs/ablations-quick")
  names = cli.make_names_parser("ablation", ABLATIONS)
  parser.add_argument("--only", type=names, default=list(ABLATIONS), help="names of ablations; default: all")
  parser.add_argument(
    "--seeds",
    type=cli.make_number_parser(SEEDS),
    help="number of seeds of each setting; default: as in the config, 3 or 5",
  )
  parser.add_argument(
    "--quick",
    action="store_true",
    help="check the command with few settings and one step of a small model in each run; the figures are meaningless",
  )
  arguments = parser.parse_args()
  workdir = arguments.workdir or pathlib.Path("runs/ablations-quick" if arguments.quick else "runs/ablations")
  prepare_dataset("digits")
  start_time, groups = time.perf_counter(), [] if arguments.quick else pool.divide_devices(2)
  overrides = QUICK_OVERRIDES if arguments.quick else {}
  seeds = arguments.seeds or (2 if arguments.quick else None)
  sections: list[str] = []
  records: dict[str, Any] = {}
  for name in arguments.only:
    ablation = select_first_claim(ABLATIONS[name]) if arguments.quick else ABLATIONS[name]
    rows = summarize(ablation, trials := train_ablation(name, ablation, workdir, overrides, seeds, groups))
    sections.append(f"## {name}\n\n{format_tables(ablation, rows)}")
    records[name] = make_record(ablation, rows) | {"trials": [trial.to_json() for trial in trials]}
    files.write_text(workdir / "ablations.md", "\n\n".join(sections) + "\n")
    files.write_text(workdir / "ablations.json", json.dumps(records, indent=2, default=str) + "\n")
    print(f"\n{sections[-1]}\n", flush=True)
  print(f"{time.perf_counter() - start_time:.0f} s; {workdir}/ablations.md, ablations.json", flush=True)


def select_first_claim(ablation: Ablation) -> Ablation:
  """Returns the first claim that compares two settings of an ablation, with these settings."""
  claim = next(each for each in ablation.claims if {each.first, each.second} <= {*ablation.settings})
  return Ablation(tuple(name for name in ablation.settings if name in (claim.first, claim.second)), (claim,))


def train_ablation(
  name: str,
  ablation: Ablation,
  workdir: pathlib.Path,
  overrides: Mapping[str, str],
  seeds: int | None,
  groups: Sequence[pool.DeviceGroup],
) -> list[Trial]:
  """Returns the runs of an ablation.

  Args:
    name: a key of `ABLATIONS`.
    ablation: the settings to train.
    workdir: directory of all ablations.
    overrides: changes of all runs.
    seeds: number of seeds, or None for that of the config.
    groups: groups of devices for concurrent runs. If empty, the runs follow one another in this process.
  """
  file = f"configs/ablations/{name}.py"
  if name == "pretraining":
    prepare_dataset("glyphs")
    (start,) = trial_runs.train_runs("configs/glyphs.py", workdir / "glyphs", overrides, [{"seed": 0}], groups)
    file += f":{start.workdir}"
  changes = study.load_sweep(file).trials
  if seeds is not None:
    settings = [{key: value for key, value in each.items() if key != "seed"} for each in changes if each["seed"] == 0]
    named = zip(ABLATIONS[name].settings, settings, strict=True)
    settings = [setting for text, setting in named if text in ablation.settings]
    # The seeds of a setting run at different times, so that later ones reuse the compiled programs of the first.
    changes = [setting | {"seed": seed} for seed in range(seeds) for setting in settings]
  return trial_runs.train_runs(file, workdir / name, overrides, changes, groups)


def summarize(ablation: Ablation, trials: Sequence[Trial]) -> dict[str, Row]:
  """Returns the row of each setting.

  Args:
    ablation: the ablation.
    trials: its runs, in the order of the sweep.
  """
  settings = dict(zip(ablation.settings, group_settings(trials, None), strict=True))
  selected = set()
  for group in ablation.groups:
    members = {name: setting for name, setting in settings.items() if name.startswith(f"{group}, ")}
    best = results.rank_settings(list(members.values()), "val/top1")[0]
    selected |= {name for name, setting in members.items() if setting is best}
  return {
    name: Row(intervals.summarize_runs([100 * value for value in setting.values("top1")]), name in selected)
    for name, setting in settings.items()
  }


def judge_claim(claim: Claim, rows: Mapping[str, Row]) -> Result:
  """Returns the result of a claim.

  Args:
    claim: the claim.
    rows: the rows of its ablation.
  """
  terms = [
    (weight, find_row(name, rows).summary)
    for weight, side in ((1.0, claim.first), (-1.0, claim.second))
    for name in side.split(" + ")
  ]
  low, high = interval = intervals.compute_combination_interval(terms)
  if claim.direction == EQUAL:
    holds, fails = low >= -MARGIN and high <= MARGIN, low > MARGIN or high < -MARGIN
  else:
    holds, fails = low > 0, high < 0
  verdict = APPEARS if holds else REVERSED if fails else UNDECIDED
  return Result(sum(weight * summary.mean for weight, summary in terms), interval, verdict)


def find_row(name: str, rows: Mapping[str, Row]) -> Row:
  """Returns the row of a setting, or of the selected setting of a group."""
  if name in rows:
    return rows[name]
  (row,) = [row for setting, row in rows.items() if row.selected and setting.startswith(f"{name}, ")]
  return row


def format_tables(ablation: Ablation, rows: Mapping[str, Row]) -> str:
  """Returns two Markdown tables, of the settings and of the claims. Settings that `val` selects are bold.

  Args:
    ablation: the ablation.
    rows: its rows.
  """
  table = [HEADER]
  for name, (summary, selected) in rows.items():
    cells = [name, f"{summary.mean:.2f} ± {summary.deviation:.2f}", f"{summary.runs}"]
    cells.append(format_interval(intervals.compute_combination_interval([(1.0, summary)])))
    table.append([f"**{cell}**" if selected else cell for cell in cells])
  claims = [["claim", "source", "difference", "95 % interval", "verdict"]]
  for claim in ablation.claims:
    difference, interval, verdict = judge_claim(claim, rows)
    claims.append([claim.text, claim.source, f"{difference:.2f}", format_interval(interval), verdict])
  return f"{results.format_markdown(table)}\n\n{results.format_markdown(claims)}"


def format_interval(interval: intervals.Interval) -> str:
  """Returns the ends of an interval, or "unknown" if the runs do not differ."""
  return f"{interval[0]:.2f} to {interval[1]:.2f}" if math.isfinite(interval[0]) else "unknown"


def make_record(ablation: Ablation, rows: Mapping[str, Row]) -> dict[str, Any]:
  """Returns the settings and claims of an ablation as JSON values. The ends of unknown intervals are None.

  Args:
    ablation: the ablation.
    rows: its rows.
  """

  def make_ends(interval: intervals.Interval) -> list[float | None]:
    return [end if math.isfinite(end) else None for end in interval]

  settings = [
    {"setting": name, **row.summary._asdict(), "selected": row.selected}
    | {"interval": make_ends(intervals.compute_combination_interval([(1.0, row.summary)]))}
    for name, row in rows.items()
  ]
  judged = [(claim, judge_claim(claim, rows)) for claim in ablation.claims]
  claims = [claim._asdict() | result._asdict() | {"interval": make_ends(result.interval)} for claim, result in judged]
  return {"settings": settings, "claims": claims}


if __name__ == "__main__":
  cli.run_verb(main)

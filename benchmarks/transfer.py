"""Compares features of six starts, with and without labels: make transfer, or python -m benchmarks.transfer [--quick]

configs/ablations/objectives.py defines the starts: random weights, labels, masked patches, MAE, DINO and DINOv2, with
three seeds each. All starts except random weights have the same number of steps and images. Models are trained on
generated signs and on generated photographs (scenes). The probes of frozen features are nearest neighbours and a
linear classifier. Models of signs are probed on digits, models of scenes on scenes. Test images are not used for
decisions. All training uses the verbs of vit_jax. After a kill, the same command continues. The workdir contains
transfer.md, transfer.json and transfer.png. `--quick` checks the command with shallow models, one seed and two steps.
"""

import json
import pathlib
import resource
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks import trial_runs
from vit_jax import cli
from vit_jax.config import flags
from vit_jax.corpora.builders import prepare_dataset
from vit_jax.storage import files
from vit_jax.sweeps import pool, results
from vit_jax.sweeps.trials import Trial
from vit_jax.tasks.self_distillation import describe_collapse
from vit_jax.training.training_log import PROBLEMS

CONFIG = "configs/ablations/objectives.py"
CORPORA = {"glyphs": "digits", "scenes": "scenes"}  # images of pre-training -> images of the probes
STARTS = ("random", "labels", "masked patches", "MAE", "DINO", "DINOv2")
PROBES = {"knn": "k-NN", "linear": "linear"}
SEEDS = 3
QUICK_OVERRIDES = {  # the values of a start take precedence
  "model.depth": "1",
  "optim.accumulate": "1",
  "batch": "16",
  "total": "2",
  "log.images": "false",
}
COLLAPSE = ("teacher_entropy", "used_prototypes", "feature_rank")  # logged by self-distillation


def main() -> None:
  """Trains and probes all starts, and writes the comparison."""
  parser = cli.Parser("benchmarks.transfer", __doc__)
  parser.add_argument("--workdir", type=cli.parse_workdir, help="default: runs/transfer, or runs/transfer-quick")
  parser.add_argument(
    "--quick",
    action="store_true",
    help="check the command with one seed and two steps of a shallow model; the figures are meaningless",
  )
  arguments = parser.parse_args()
  workdir = arguments.workdir or pathlib.Path("runs/transfer-quick" if arguments.quick else "runs/transfer")
  for name in sorted({*CORPORA, *CORPORA.values()}):
    prepare_dataset(name)
  start_time, groups = time.perf_counter(), [] if arguments.quick else pool.divide_devices(2)
  trials = {corpus: train_starts(corpus, workdir / corpus, arguments.quick, groups) for corpus in CORPORA}
  records = [summarise(corpus, start, runs) for corpus, starts in trials.items() for start, runs in starts.items()]
  text = results.format_markdown(make_table(records))
  files.write_text(workdir / "transfer.md", text + "\n")
  record = {
    "results": records,
    "trials": [trial.to_json() for starts in trials.values() for runs in starts.values() for trial in runs],
  }
  files.write_text(workdir / "transfer.json", json.dumps(record, indent=2, default=str) + "\n")
  draw_picture(records, workdir / "transfer.png")
  used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  seconds = sum(each.ru_utime + each.ru_stime for each in used)
  print(
    f"\n{text}\n\n{time.perf_counter() - start_time:.0f} s, {seconds:.0f} s of processor time; "
    f"{workdir}/transfer.md, transfer.json, transfer.png",
    flush=True,
  )


def train_starts(
  corpus: str, workdir: pathlib.Path, quick: bool, groups: list[pool.DeviceGroup]
) -> dict[str, list[Trial]]:
  """Returns the runs of each start, which include their probes.

  Args:
    corpus: a key of `CORPORA`.
    workdir: directory of the runs.
    quick: train shallow models for two steps, with one seed.
    groups: groups of devices for concurrent runs. If empty, the runs follow one another in this process.
  """
  starts = flags.load_module(CONFIG)[0].make_starts(corpus == "glyphs")
  names, changes = zip(
    *((name, start | {"seed": seed}) for name, start in starts.items() for seed in range(1 if quick else SEEDS)),
    strict=True,
  )
  overrides = QUICK_OVERRIDES if quick else {}
  trials = trial_runs.train_runs(f"{CONFIG}:{corpus}", workdir, overrides, list(changes), groups)
  result: dict[str, list[Trial]] = {name: [] for name in STARTS}
  for name, trial in zip(names, trials, strict=True):
    result[name].append(trial)
  return result


def summarise(corpus: str, start: str, trials: list[Trial]) -> dict[str, Any]:
  """Returns the figures of a start on a corpus, one value per seed.

  If a run has averaged weights, the features are computed with them. In self-distillation, they are the teacher.

  Args:
    corpus: a key of `CORPORA`.
    start: a name of `STARTS`.
    trials: the runs of the start.
  """
  record: dict[str, Any] = {"corpus": corpus, "start": start, "steps": [trial.figures["steps"] for trial in trials]}
  for probe in PROBES:
    names = [f"probes/{average}{probe}_all" for average in ("ema_", "")]
    record[probe] = [next(trial.figures[name] for name in names if name in trial.figures) for trial in trials]
  logs = [trial_runs.read_rows(trial, [f"train/{name}" for name in COLLAPSE]) for trial in trials]
  if all(logs):
    record |= {name: [rows[-1][f"train/{name}"] for rows in logs] for name in COLLAPSE}
  record["warnings"] = [find_warning(trial, rows) if rows else None for trial, rows in zip(trials, logs, strict=True)]
  record["seconds"] = [trial.seconds for trial in trials]
  return record


def find_warning(trial: Trial, rows: Sequence[Mapping[str, float]]) -> str | None:
  """Returns the first warning about a collapse that enough log lines of a run confirm, or None.

  Args:
    trial: a run of self-distillation.
    rows: its figures at the steps of log lines, see `trial_runs.read_rows`.
  """
  config = files.read_json(trial.workdir / "config.json")
  assert config is not None
  problems = [
    describe_collapse({name: row[f"train/{name}"] for name in COLLAPSE}, config["task"]["prototypes"]) for row in rows
  ]
  repeated = (problems[i : i + PROBLEMS] for i in range(len(problems) - PROBLEMS + 1))
  return next((consecutive[-1] for consecutive in repeated if all(consecutive)), None)


def make_table(records: list[dict[str, Any]]) -> list[list[str]]:
  """Returns the rows of transfer.md with top-1 on test images, the header first.

  Args:
    records: results of `summarise`.
  """
  columns = [(corpus, probe) for corpus in CORPORA for probe in PROBES]
  header = [f"{corpus} to {CORPORA[corpus]}, {PROBES[probe]}, %" for corpus, probe in columns]
  logged = [(corpus, name) for corpus in CORPORA for name in ("teacher_entropy", "feature_rank")]
  warned = [f"{corpus}, runs that warned" for corpus in CORPORA]
  rows = [["start", *header, *(f"{corpus}, {name.replace('_', ' ')}" for corpus, name in logged), *warned]]
  for start in STARTS:
    of = {record["corpus"]: record for record in records if record["start"] == start}
    cells = [results.format_mean_and_deviation(of[corpus][probe]) for corpus, probe in columns]
    cells += [f"{statistics.mean(of[corpus][name]):.2f}" if name in of[corpus] else "-" for corpus, name in logged]
    cells += [str(sum(text is not None for text in of[corpus]["warnings"])) for corpus in CORPORA]
    rows.append([start, *cells])
  return rows


def draw_picture(records: list[dict[str, Any]], path: pathlib.Path) -> None:
  """Draws top-1 of each probe by start, with one panel for each corpus. Points are seeds, lines are their means.

  Args:
    records: results of `summarise`.
    path: the PNG file.
  """
  figure = Figure(figsize=(11, 4.2), layout="constrained")
  FigureCanvasAgg(figure)
  for axes, corpus in zip(figure.subplots(1, len(CORPORA), squeeze=False)[0], CORPORA, strict=True):
    of = {record["start"]: record for record in records if record["corpus"] == corpus}
    for number, (probe, label) in enumerate(PROBES.items()):
      for i, start in enumerate(STARTS):
        values, at = [100 * value for value in of[start][probe]], i + 0.3 * (number - 0.5)
        axes.plot([at] * len(values), values, "o", color=f"C{number}", markersize=4, alpha=0.7,
                  label=label if i == 0 else None)  # fmt: skip
        axes.hlines(statistics.mean(values), at - 0.13, at + 0.13, color=f"C{number}")
    axes.set(title=f"trained on {corpus}, probed on {CORPORA[corpus]}", ylabel="top-1 on test, %")
    axes.set_xticks(range(len(STARTS)), STARTS, rotation=20)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
  with files.atomic_write(path) as partial:
    figure.savefig(partial, format="png", dpi=110)


if __name__ == "__main__":
  cli.run_verb(main)

"""Assembly of a report: the chapters for runs, sweeps and weights."""

import datetime
import pathlib
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import importers, models, runtime, trees
from vit_jax.data.images import ImageError
from vit_jax.evals.metrics import is_share
from vit_jax.evals.selection import format_name
from vit_jax.importers import options
from vit_jax.inference import predictor
from vit_jax.reports import curves, inside, outcomes, page, recorded, scaling, verdict
from vit_jax.reports.drawing import fit_text
from vit_jax.reports.page import Chapter, Paragraph, Part, Table
from vit_jax.reports.recorded import RecordedRun
from vit_jax.runtime import print_line
from vit_jax.schema import ConfigError, format_amount
from vit_jax.storage import files
from vit_jax.sweeps import results
from vit_jax.sweeps.trials import format_changes, is_record
from vit_jax.tasks import cost

NAME = "report.html"  # name of the report in a workdir
LONGEST = 60  # maximum number of characters of a name
PICTURES = 8  # maximum number of images for attention


class ReportContents(NamedTuple):
  """The contents of a report.

  Attributes:
    runs: the runs.
    weights: weight files, or workdirs without a run.
    waiting: trials that cannot be shown, with reasons.
    chosen: settings that sweeps selected, and their figures on test.
  """

  runs: Sequence[RecordedRun]
  weights: Sequence[pathlib.Path]
  waiting: Sequence[str] = ()
  chosen: Sequence[Part] = ()


def read_contents(places: Sequence[pathlib.Path]) -> ReportContents:
  """Reads workdirs of runs and sweeps, and weight files. Trials of a sweep are runs.

  Raises:
    ConfigError: a path is neither a workdir nor a weight file, or no trial has started.
  """
  named, weights, waiting, sweeps, chosen = {}, [], [], False, []
  for place in places:
    if (place / "sweep.json").exists():
      record = files.read_json(place / "sweep.json") or {}
      started, others = _read_trials(place, record)
      chosen += _read_selection(place, record)
      named, waiting, sweeps = named | started, waiting + others, True
    elif (place / "config.json").exists():
      named[place] = None
    elif place.exists() and (place.is_file() or importers.is_workdir(place)):
      weights.append(place)
    else:
      kind = "is neither the workdir of a run or sweep nor a file of weights" if place.exists() else "does not exist"
      raise ConfigError(f"{place} {kind}. Specify the workdir of a run or sweep, or a file that vit_jax.convert reads")
  if not named and not weights:
    raise ConfigError(f"no trial of {', '.join(map(str, places))} has started yet. Run the report again later")
  runs = [recorded.read_run(place, name) for place, name in zip(named, _make_names_unique(named), strict=True)]
  return ReportContents(verdict.rank_runs(runs) if sweeps else runs, weights, waiting, chosen)


def _read_trials(workdir: pathlib.Path, record: Mapping[str, object]) -> tuple[dict[pathlib.Path, str], list[str]]:
  """Returns ({workdir: changes} of the trials that have started, descriptions of the others)."""
  started, waiting = {}, []
  for kind in ("trials", "final"):
    for trial in _select_trial_records(record, kind):
      written = pathlib.PurePath(trial.get("name", "")).name
      changes = trial.get("changes")
      name = fit_text(format_changes(changes) if isinstance(changes, dict) else written, LONGEST)
      place = workdir / kind / written  # the sweep may have been moved since the record was written
      if written and (place / "config.json").exists():
        started[place] = name if kind == "trials" else f"final: {name}"
      elif trial.get("status") != "done":  # a final run that is only measured has no workdir
        waiting.append(f"{name}: {trial.get('status', 'unknown')} {trial.get('error', '')}".strip())
  return started, waiting


def _select_trial_records(record: Mapping[str, object], kind: str) -> list[Any]:
  trials = record.get(kind)
  return [trial for trial in trials if is_record(trial)] if isinstance(trials, list) else []


def _read_selection(workdir: pathlib.Path, record: Mapping[str, object]) -> list[Part]:
  """Returns the setting that a sweep selected, and figures of its final runs on test."""
  best = record.get("best")
  parts: list[Part] = []
  if isinstance(best, dict):
    by = record.get("ranked_by")
    split = f" (split '{by['split']}')" if isinstance(by, dict) and isinstance(by.get("split"), str) else ""
    parts.append(
      Paragraph(f"{workdir.name} selected {fit_text(format_changes(best), LONGEST)} by {record.get('decide')}{split}.")
    )
  figures = [
    trial.get("figures", {}) for trial in _select_trial_records(record, "final") if trial.get("status") == "done"
  ]
  values = {name: [each[name] for each in figures if name in each] for name in ("top1", "top5", "loss")}
  rows = [
    [format_name(name), results.format_mean_and_deviation(some, is_share(name))]
    for name, some in values.items()
    if some
  ]
  head = ["figure", "mean ± standard deviation (runs); shares in per cent"]
  return [*parts, Table(f"Selected by {workdir.name}, measured on test", head, rows)] if rows else parts


def _make_names_unique(named: Mapping[pathlib.Path, str | None]) -> list[str]:
  """Returns a unique name for each workdir: its own name, or a longer part of its path if needed."""
  names = []
  for place, name in named.items():
    others = [other for other in named if other != place]
    words = 1
    while words < len(place.parts) and any(other.parts[-words:] == place.parts[-words:] for other in others):
      words += 1
    if name and list(named.values()).count(name) > 1:  # names from several sweeps, or shortened to the same text
      name = f"{place.parent.parent.name}: {name}"
    names.append(name or "/".join(place.parts[-words:]) or str(place))
  return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def make_report(
  places: Sequence[pathlib.Path], out: pathlib.Path, images: Sequence[str] = (), limit: int = outcomes.LIMIT
) -> None:
  """Writes a report.

  Args:
    places: workdirs and weight files, see `read_contents`.
    out: the file, with the suffix .html.
    images: images for attention. By default test images of the run.
    limit: maximum number of images on which the best run is evaluated again. With 0, parts that need the weights are
      omitted.

  Raises:
    ConfigError: the paths contain no runs or weights, or `out` is invalid.

  Example:
    make_report([pathlib.Path("runs/digits")], pathlib.Path("report.html"))
  """
  files.check_path(out, (".html",))
  about = read_contents(places)
  page.write_page(out, make_title(places, about), _make_subtitle(about), make_chapters(about, images, limit))


def make_final_report(workdir: pathlib.Path) -> None:
  """Writes the report of a workdir at the end of a run or sweep. Errors are printed and do not affect the run.

  If several processes share the devices, parts that need the weights are omitted. `vit_jax.report` adds them on one
  machine.
  """
  print_line("writing the report")
  try:
    make_report([workdir], workdir / NAME, limit=outcomes.LIMIT if jax.process_count() == 1 else 0)
  except (ConfigError, OSError, runtime.Stop, jax.errors.JaxRuntimeError) as error:
    print_line(f"  report    not made: {error}")
  except Exception:  # an error in the report must not affect a run that ended well
    traceback.print_exc()
    print_line("  report    not made: a bug in vit_jax, see above; the run itself is complete")
  else:
    print_line(f"  report    {workdir / NAME}")


def make_chapters(about: ReportContents, images: Sequence[str] = (), limit: int = outcomes.LIMIT) -> list[Chapter]:
  """Returns the chapters of a report in order.

  Args:
    about: the contents.
    images: images for attention.
    limit: maximum number of images to evaluate, see `make_report`.
  """
  made = []
  if about.runs:
    first = verdict.make_chapter(about.runs)
    made += [first._replace(parts=[*about.chosen, *first.parts]), curves.make_chapter(about.runs)]
    if limit:
      made += _make_weights_chapters(verdict.rank_runs(about.runs)[0], len(about.runs) > 1, images, limit)
    made.append(scaling.make_chapter(about.runs))
  for place in about.weights:
    made += _make_file_chapters(place, images)
  if about.waiting:
    made.append(Chapter("Not shown", [Table("Trials", ["why"], [[line] for line in about.waiting])]))
  return made


def _make_weights_chapters(run: RecordedRun, of_several: bool, images: Sequence[str], limit: int) -> list[Chapter]:
  """Returns the chapters on training images, mistakes, and weights and attention inside of a run's model."""
  made, measured = outcomes.make_chapters(run.workdir, limit)
  try:
    use = predictor.load(run.workdir)
    pictures = _load_pictures(use, images) if images or not measured else outcomes.select_pictures(measured, PICTURES)
    made.append(inside.make_chapter(use, pictures))
  except (ConfigError, runtime.Stop) as error:
    made.append(Chapter("Inside", [Paragraph(f"The weights cannot be read. {error}")]))
  return [chapter._replace(title=f"{chapter.title}: {run.name}") for chapter in made] if of_several else made


def _make_file_chapters(place: pathlib.Path, images: Sequence[str]) -> list[Chapter]:
  """Returns the chapters on a weight file."""
  with options.use_form(options.CONVERT):
    use = predictor.read(place)
  parameters = trees.count_values(models.make_functional(use.description).shapes())
  rows = [
    ["model", use.description.model.name],
    ["parameters", f"{parameters:,}"],
    ["GFLOP per image (forward pass)", f"{cost.count_model_flops(use.description) / 1e9:.3g}"],
    ["pixels", str(use.description.image_size)],
    ["classes", ", ".join([f"{len(use.classes):,}", *map(fit_text, use.classes[:5]), *["…"] * (len(use.classes) > 5)])],
  ]
  pictures = _load_pictures(use, images)
  hint = [] if pictures else [Paragraph("Attention maps need pictures: name some with --images=PATH.")]
  name = place.name or str(place)
  facts = Chapter(f"Weights: {name}", [Table("The model", ["", ""], rows), *map(Paragraph, use.notes), *hint])
  return [facts, inside.make_chapter(use, pictures, f"Inside: {name}")]


def _load_pictures(use: predictor.Predictor, images: Sequence[str]) -> list[tuple[np.ndarray, list[str]]]:
  """Returns some of the images, cropped and scaled for the model, with captions. Raises ConfigError for a bad image."""
  some = [images[i * len(images) // PICTURES] for i in range(PICTURES)] if len(images) > PICTURES else images
  try:
    squares = [use.square(image) for image in some]
  except ImageError as error:
    raise ConfigError(str(error)) from error
  lines = [["/".join(pathlib.PurePath(image).parts[-2:])] for image in some]
  predictions = use.predict(squares) if squares and use.classes else []
  assert isinstance(predictions, list)
  for words, best in zip(lines, predictions, strict=False):
    words.append(f"{best.probabilities[0]:.1%} {fit_text(best.names[0])}")
  return list(zip(squares, lines, strict=True))


def make_title(places: Sequence[pathlib.Path], about: ReportContents) -> str:
  """Returns the title: the names of the first three paths, and the models and datasets.

  Args:
    places: the paths of the command line.
    about: their contents.
  """
  names = [place.name or str(place) for place in places]
  named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
  models = list(dict.fromkeys(f"{run.run.model.name} on {run.run.data.name}" for run in about.runs))
  what = ", ".join(models[:3]) + ("" if len(models) < 4 else f" and {len(models) - 3} more")
  if len(about.runs) > 1:
    what = f"{format_amount(len(about.runs), 'run')} of {what}"
  return f"{named}: {', '.join([what] * bool(what) + ['weights'] * bool(about.weights))}"


def _make_subtitle(about: ReportContents) -> str:
  """Returns the line below the title."""
  counts = [(len(about.runs), "run", ""), (len(about.weights), "file of weights", "files of weights")]
  parts = [format_amount(*each) for each in counts if each[0]]
  return f"{', '.join(parts)}. Made by vit_jax.report on {datetime.date.today():%d %B %Y}; this file is self-contained."

"""Which chapters a page has, of the runs, sweeps and weights that it is about."""

import datetime
import pathlib
import traceback
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from vit_jax import files, importers, models, runtime, trees
from vit_jax.data.images import ImageError
from vit_jax.inference import predictor
from vit_jax.metrics import is_share
from vit_jax.reports import curves, inside, outcomes, page, recorded, scaling, verdict
from vit_jax.reports.drawing import fitted
from vit_jax.reports.page import Chapter, Part, Table, Words
from vit_jax.reports.recorded import Recorded
from vit_jax.runtime import say
from vit_jax.schema import ConfigError, amount
from vit_jax.selection import shown
from vit_jax.sweeps import results
from vit_jax.sweeps.trials import is_record, text
from vit_jax.tasks import cost

NAME = "report.html"  # of the page in a workdir
LONGEST = 60  # characters of a name
PICTURES = 8  # over which attention is shown


class Subjects(NamedTuple):
  """What a page is about."""

  runs: Sequence[Recorded]
  weights: Sequence[pathlib.Path]  # files, or workdirs without a run
  waiting: Sequence[str] = ()  # trials that cannot be shown, and why
  chosen: Sequence[Part] = ()  # what sweeps chose, and how that is on test


def subjects(places: Sequence[pathlib.Path]) -> Subjects:
  """What lies at these paths: workdirs of runs and of sweeps, whose trials are runs, and files of weights.

  ConfigError for what is none of these.
  """
  named, weights, waiting, sweeps, chosen = {}, [], [], False, []
  for place in places:
    if (place / "sweep.json").exists():
      record = files.read_json(place / "sweep.json") or {}
      begun, others = _trials(place, record)
      chosen += _chosen(place, record)
      named, waiting, sweeps = named | begun, waiting + others, True
    elif (place / "config.json").exists():
      named[place] = None
    elif place.exists() and (place.is_file() or importers.is_workdir(place)):
      weights.append(place)
    else:
      kind = "is no workdir of a run or of a sweep, and no file of weights" if place.exists() else "is not there"
      raise ConfigError(f"{place} {kind}; name what --workdir named, or a file that vit_jax.convert reads")
  if not named and not weights:
    raise ConfigError(f"no trial of {', '.join(map(str, places))} has begun yet; there is nothing to show")
  runs = [recorded.read(place, name) for place, name in zip(named, _distinct(named), strict=True)]
  return Subjects(verdict.ranked(runs) if sweeps else runs, weights, waiting, chosen)


def _trials(workdir, record) -> tuple[dict[pathlib.Path, str], list[str]]:
  """({workdir: changes} of the trials of a sweep that have begun, what is to be said of the others)."""
  begun, waiting = {}, []
  for kind in ("trials", "final"):
    for trial in _recorded(record, kind):
      written = pathlib.PurePath(trial.get("name", "")).name
      changes = trial.get("changes")
      name = fitted(text(changes) if isinstance(changes, dict) else written, LONGEST)
      place = workdir / kind / written  # the sweep may have been moved since it was written down
      if written and (place / "config.json").exists():
        begun[place] = name if kind == "trials" else f"final: {name}"
      elif trial.get("status") != "done":  # a last run that is only measured has no workdir of its own
        waiting.append(f"{name}: {trial.get('status', 'unknown')} {trial.get('error', '')}".strip())
  return begun, waiting


def _recorded(record, kind):
  trials = record.get(kind)
  return [trial for trial in trials if is_record(trial)] if isinstance(trials, list) else []


def _chosen(workdir, record) -> list[Part]:
  """What a sweep chose, and the figures on test of the runs that were made with it."""
  best, parts = record.get("best"), []
  if isinstance(best, dict):
    by = record.get("ranked_by")
    split = f" (split '{by['split']}')" if isinstance(by, dict) and isinstance(by.get("split"), str) else ""
    parts.append(Words(f"{workdir.name} chose {fitted(text(best), LONGEST)} by {record.get('decide')}{split}."))
  figures = [trial.get("figures", {}) for trial in _recorded(record, "final") if trial.get("status") == "done"]
  values = {name: [each[name] for each in figures if name in each] for name in ("top1", "top5", "loss")}
  rows = [[shown(name), results.mean_and_deviation(some, is_share(name))] for name, some in values.items() if some]
  head = ["figure", "mean ± standard deviation (runs); shares in per cent"]
  return [*parts, Table(f"On test, of what {workdir.name} chose", head, rows)] if rows else parts


def _distinct(named) -> list[str]:
  """A name for each workdir: its own, or as much of the end of its path as tells it from the others."""
  names = []
  for place, name in named.items():
    others = [other for other in named if other != place]
    words = 1
    while words < len(place.parts) and any(other.parts[-words:] == place.parts[-words:] for other in others):
      words += 1
    if name and list(named.values()).count(name) > 1:  # of several sweeps, or cut to the same length
      name = f"{place.parent.parent.name}: {name}"
    names.append(name or "/".join(place.parts[-words:]) or str(place))
  return [name if names.count(name) == 1 else f"{name} ({i + 1})" for i, name in enumerate(names)]


def make(
  places: Sequence[pathlib.Path], out: pathlib.Path, images: Sequence[str] = (), limit: int = outcomes.LIMIT
) -> None:
  """Writes the page about what lies at these paths; ConfigError where there is nothing to show.

  Args:
    places: workdirs and files, see `subjects`.
    out: ends in .html.
    images: files that attention is shown over; by default of a run its own test images.
    limit: images that the best run is measured on again, at most; of 0 nothing is shown that needs its weights.
  """
  files.check_path(out, (".html",))
  about = subjects(places)
  page.write(out, _title(places, about), _line(about), chapters(about, images, limit))


def make_at_end(workdir: pathlib.Path) -> None:
  """The page of a workdir whose run or sweep has just ended. What hinders it is said, and does not undo the end.

  Where processes share the devices, without what needs the weights: `vit_jax.report` makes that on one machine.
  """
  try:
    make([workdir], workdir / NAME, limit=outcomes.LIMIT if jax.process_count() == 1 else 0)
  except (ConfigError, OSError, runtime.Stop, jax.errors.JaxRuntimeError) as error:
    say(f"  report    not made: {error}")
  except Exception:  # whatever is wrong with a page, what it is about has ended well
    traceback.print_exc()
    say("  report    not made: a bug of ours, see above; the run itself is whole")
  else:
    say(f"  report    {workdir / NAME}")


def chapters(about: Subjects, images: Sequence[str] = (), limit: int = outcomes.LIMIT) -> list[Chapter]:
  """The chapters, in the order in which they are read; see `make`."""
  made = []
  if about.runs:
    first = verdict.chapter(about.runs)
    made += [first._replace(parts=[*about.chosen, *first.parts]), curves.chapter(about.runs)]
    if limit:
      made += _of_weights(verdict.ranked(about.runs)[0], len(about.runs) > 1, images, limit)
    made.append(scaling.chapter(about.runs))
  for place in about.weights:
    made += _of_file(place, images)
  if about.waiting:
    made.append(Chapter("Not shown", [Table("Trials", ["why"], [[line] for line in about.waiting])]))
  return made


def _of_weights(run, of_several, images, limit) -> list[Chapter]:
  """What a run saw, what it got wrong and what is inside of it."""
  made, measured = outcomes.chapters(run.workdir, limit)
  try:
    use = predictor.load(run.workdir)
    pictures = _pictures(use, images) if images or not measured else outcomes.pictures(measured, PICTURES)
    made.append(inside.chapter(use, pictures))
  except (ConfigError, runtime.Stop) as error:
    made.append(Chapter("Inside", [Words(f"The weights cannot be read. {error}")]))
  return [chapter._replace(title=f"{chapter.title}: {run.name}") for chapter in made] if of_several else made


def _of_file(place, images) -> list[Chapter]:
  """What a file of weights is, and what is inside of it."""
  use = predictor.load(place)
  parameters = trees.count(models.functional(use.description).shapes())
  rows = [
    ["model", use.description.model.name],
    ["parameters", f"{parameters:,}"],
    ["GFLOP an image (forward pass)", f"{cost.of_model(use.description) / 1e9:.3g}"],
    ["pixels", str(use.description.image_size)],
    ["classes", ", ".join([f"{len(use.classes):,}", *map(fitted, use.classes[:5]), *["…"] * (len(use.classes) > 5)])],
  ]
  pictures = _pictures(use, images)
  hint = [] if pictures else [Words("Attention is shown over pictures: name some by --images=PATH.")]
  name = place.name or str(place)
  facts = Chapter(f"Weights: {name}", [Table("The model", ["", ""], rows), *map(Words, use.notes), *hint])
  return [facts, inside.chapter(use, pictures, f"Inside: {name}")]


def _pictures(use, images) -> list[tuple[np.ndarray, list[str]]]:
  """Some of the images, as the model sees them, with names and what is predicted; ConfigError for a bad one."""
  some = [images[i * len(images) // PICTURES] for i in range(PICTURES)] if len(images) > PICTURES else images
  try:
    squares = [use.square(image) for image in some]
  except ImageError as error:
    raise ConfigError(str(error)) from error
  lines = [["/".join(pathlib.PurePath(image).parts[-2:])] for image in some]
  for words, best in zip(lines, use.predict(squares) if squares and use.classes else [], strict=False):
    words.append(f"{best.probabilities[0]:.1%} {fitted(best.names[0])}")
  return list(zip(squares, lines, strict=True))


def _title(places, about):
  """The names of what the page is about, of many the first three, and what they are."""
  names = [place.name or str(place) for place in places]
  named = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
  models = list(dict.fromkeys(f"{run.run.model.name} on {run.run.data.name}" for run in about.runs))
  what = ", ".join(models[:3]) + ("" if len(models) < 4 else f" and {len(models) - 3} more")
  if len(about.runs) > 1:
    what = f"{amount(len(about.runs), 'run')} of {what}"
  return f"{named}: {', '.join([what] * bool(what) + ['weights'] * bool(about.weights))}"


def _line(about):
  """What the page is about, in a line."""
  counts = [(len(about.runs), "run", ""), (len(about.weights), "file of weights", "files of weights")]
  said = [amount(*each) for each in counts if each[0]]
  return f"{', '.join(said)}. Made by vit_jax.report on {datetime.date.today():%d %B %Y}; this file needs nothing else."

"""Evaluation of a run's newest weights for a report, and the chapters that show the result."""

import concurrent.futures
import dataclasses
import functools
import logging
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from vit_jax import build, config, evals, evaluation, runtime, tasks
from vit_jax.corpora import survey
from vit_jax.data import catalog, decoding, loader, sources, stream
from vit_jax.data.images import Images
from vit_jax.evals import Outcome
from vit_jax.evals.subject import open_source
from vit_jax.inference import stored
from vit_jax.reports import mistakes, page, seen
from vit_jax.schema import Choice, ConfigError, arguments, at

LIMIT = 10_000  # maximum number of images to evaluate
BATCH = 64  # images per batch and device


class Measured(NamedTuple):
  """The result of evaluating a run's newest weights, and their average if there is one.

  Attributes:
    parts: the run without its evaluations, on the devices of this process.
    step: step of the weights.
    outcomes: outcomes by the prefix of the figures' names: "" for `test`, "val/", "ema_".
    intervals: intervals of the figures by the same prefixes.
    data: the data choice of the images.
    whole: number of images of the split. Possibly only some of them were evaluated.
  """

  parts: build.Parts
  step: int
  outcomes: dict[str, Outcome]
  intervals: dict[str, evaluation.Intervals]
  data: Choice
  whole: int


def chapters(workdir: pathlib.Path, limit: int = LIMIT) -> tuple[list[page.Chapter], Measured | None]:
  """Evaluates a run and returns the chapters on its training images and its mistakes.

  If the data or the checkpoints do not exist, the chapters explain this and the run is not evaluated.

  Args:
    workdir: workdir of a run that this process does not train.
    limit: maximum number of images to evaluate. A larger split is sampled evenly and deterministically.

  Returns:
    The chapters, and the result of the evaluation or None.

  Raises:
    ConfigError: the workdir does not contain a run.
  """
  run = _run(workdir)
  try:
    with at("config.data"):
      source = loader.stamped_once(catalog.open_split(run.data, "train"))
      first = seen.chapter(run, source)
  except ConfigError as error:
    said = f"The data of this run cannot be read on this machine. {error}"
    logging.warning("%s: %s. The page omits this section", workdir, said)
    gone = [page.Words(said)]
    return [page.Chapter(seen.TITLE, gone), page.Chapter(mistakes.TITLE, gone)], None
  if not tasks.TASKS[run.task.name].classes:
    return [first], None  # the task has no predictions that could be wrong
  try:
    result = _measured(run, workdir, source, limit)
  except (ConfigError, runtime.Stop) as error:
    logging.warning("%s: the weights could not be evaluated: %s. The page omits this section", workdir, error)
    return [first, page.Chapter(mistakes.TITLE, [page.Words(f"The evaluation failed. {error}")])], None
  return [first, chapter(result)], result


def measured(workdir: pathlib.Path, limit: int = LIMIT) -> Measured:
  """Evaluates the newest weights of a workdir by the run's headline evaluation.

  Args:
    workdir: workdir of a run that this process does not train.
    limit: maximum number of images to evaluate.

  Raises:
    ConfigError: the run, its data or its checkpoint cannot be read.
  """
  run = _run(workdir)
  with at("config.data"):
    source = loader.stamped_once(catalog.open_split(run.data, "train"))
  return _measured(run, workdir, source, limit)


def chapter(result: Measured) -> page.Chapter:
  """Returns the chapter on mistakes for the first outcome."""
  prefix, outcome = next(iter(result.outcomes.items()))
  about = f"The weights of step {result.step:,} of {result.parts.total:,}"
  about += ", not their average." if len(result.outcomes) > 1 else "."
  squares = functools.partial(as_seen, outcome.details.source, result.data)
  return mistakes.chapter(outcome.details, squares, result.intervals[prefix], result.whole, about)


def pictures(result: Measured, count: int) -> list[tuple[np.ndarray, list[str]]]:
  """Selects evaluated images, with different classes first.

  Args:
    result: the evaluation.
    count: maximum number of images.

  Returns:
    Images, uint8 (S, S, 3), each with its name and label.
  """
  source, predictions, _ = next(iter(result.outcomes.values())).details
  labels = predictions.label if predictions.label.ndim == 1 else predictions.label[:, 0]
  _, firsts = np.unique(labels, return_index=True)
  chosen = list(dict.fromkeys([*firsts[:: max(1, len(firsts) // count)].tolist(), *range(len(labels))]))[:count]
  positions = predictions.position[chosen].tolist()
  named = [[source.called(position), source.classes[labels[i]] if labels[i] >= 0 else "no label"]
           for i, position in zip(chosen, positions, strict=True)]  # fmt: skip
  squares = as_seen(source, result.data, positions)
  return [(square, lines) for square, lines in zip(squares, named, strict=True) if square is not None]


def as_seen(source: sources.Source, data: Choice, records: Sequence[int]) -> list[np.ndarray | None]:
  """Prepares images as an evaluation does.

  Args:
    source: the images.
    data: the bound data choice, which specifies the preparation.
    records: numbers of the records.

  Returns:
    Images, uint8 (S, S, 3), or None for each that cannot be read.
  """
  examples = stream.eval_examples(source, **arguments(data, stream.eval_examples))
  bounds = (arguments(data, loader.batches)[key] for key in ("max_pixels", "max_aspect", "exif"))
  images = Images(source, "skip", *bounds, max_bad=1.0)

  def square(record):
    image, _, here = examples.example(images.prepared, record)
    return image if here else None

  with concurrent.futures.ThreadPoolExecutor(decoding.cores()) as pool:
    return list(pool.map(square, records))


def _run(workdir):
  if (run := stored.run_of(workdir)) is None:
    raise ConfigError(f"{workdir} contains no run (no config.json). Train one first")
  return run


def _measured(run, workdir, train, limit):
  name, choice = evaluation.headline(run.evals)
  # The devices of this process may differ from those of the training.
  run, devices = dataclasses.replace(run, mesh=config.Mesh(), evals={}), jax.local_devices()
  unit = run.optim.args["accumulate"]
  devices = devices[: max(n for n in range(1, len(devices) + 1) if n == 1 or run.batch % (n * unit) == 0)]
  parts = build.build(run, devices, lambda *_: train, training=False)
  size = BATCH * len(devices)
  subject = evals.Subject(parts.model, parts.mesh, run.data, size, catalog.open_split, parts.task.predict)
  with at(f"config.evals.{name}"):
    data = choice.args.get("data")
    source = open_source(subject, data, choice.args.get("split", "test"), "split")
    some = sources.subset(source, survey.sample(len(source), limit, run.seed)) if len(source) > limit else source
    subject = dataclasses.replace(subject, open_split=lambda *_: some)
    measure = evals.make(Choice(choice.name, {**choice.args, "batch": size}), subject)
  state = evaluation.restored(parts, workdir)
  result, intervals = evaluation.measured({name: measure}, state, lambda: None)
  return Measured(parts, int(state.step), result, intervals, subject.data(data), len(source))

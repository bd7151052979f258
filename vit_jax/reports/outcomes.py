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

from vit_jax import config, evals, runtime
from vit_jax.corpora import stats
from vit_jax.data import catalog, decoding, loader, sources
from vit_jax.data.bound_data import EvalData
from vit_jax.evals import Outcome
from vit_jax.evals.accuracy import get_accuracy_details
from vit_jax.evals.subject import open_source
from vit_jax.inference import stored
from vit_jax.reports import mistakes, page, seen
from vit_jax.schema import ConfigError, enter_key
from vit_jax.training import build, run_evaluation
from vit_jax.training.bound_run import BoundRun
from vit_jax.training.experiment import Experiment

LIMIT = 10_000  # maximum number of images to evaluate
BATCH = 64  # images per batch and device


class MeasuredWeights(NamedTuple):
  """The result of evaluating a run's newest weights, and their average if there is one.

  Attributes:
    experiment: the run without its evaluations, on the devices of this process.
    step: step of the weights.
    outcomes: outcomes by the prefix of the figures' names: "" for `test`, "val/", "ema_".
    intervals: intervals of the figures by the same prefixes.
    data: the data choice of the images.
    split_size: number of images of the split. Possibly only some of them were evaluated.
  """

  experiment: Experiment
  step: int
  outcomes: dict[str, Outcome]
  intervals: dict[str, run_evaluation.Intervals]
  data: EvalData
  split_size: int


def make_chapters(workdir: pathlib.Path, limit: int = LIMIT) -> tuple[list[page.Chapter], MeasuredWeights | None]:
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
  run = _load_run(workdir)
  try:
    with enter_key("config.data"):
      source = loader.cache_fingerprint(catalog.open_split(run.data, "train"))
      first = seen.make_chapter(run, source)
  except ConfigError as error:
    message = f"The data of this run cannot be read on this machine. {error}"
    logging.warning("%s: %s. The page omits this section", workdir, message)
    gone = [page.Paragraph(message)]
    return [page.Chapter(seen.TITLE, gone), page.Chapter(mistakes.TITLE, gone)], None
  if not run.learns_classes:
    return [first], None  # the task has no predictions that could be wrong
  try:
    result = _measure_run(run, workdir, source, limit)
  except (ConfigError, runtime.Stop) as error:
    logging.warning("%s: the weights could not be evaluated: %s. The page omits this section", workdir, error)
    return [first, page.Chapter(mistakes.TITLE, [page.Paragraph(f"The evaluation failed. {error}")])], None
  return [first, make_chapter(result)], result


def measure_workdir(workdir: pathlib.Path, limit: int = LIMIT) -> MeasuredWeights:
  """Evaluates the newest weights of a workdir by the run's headline evaluation.

  Args:
    workdir: workdir of a run that this process does not train.
    limit: maximum number of images to evaluate.

  Raises:
    ConfigError: the run, its data or its checkpoint cannot be read.
  """
  run = _load_run(workdir)
  with enter_key("config.data"):
    source = loader.cache_fingerprint(catalog.open_split(run.data, "train"))
  return _measure_run(run, workdir, source, limit)


def make_chapter(result: MeasuredWeights) -> page.Chapter:
  """Returns the chapter on mistakes for the first outcome."""
  prefix, outcome = next(iter(result.outcomes.items()))
  about = f"The weights of step {result.step:,} of {result.experiment.total:,}"
  about += ", not their average." if len(result.outcomes) > 1 else "."
  details = get_accuracy_details(outcome)
  squares = functools.partial(prepare_images, details.source, result.data)
  return mistakes.make_chapter(details, squares, result.intervals[prefix], result.split_size, about)


def select_pictures(result: MeasuredWeights, count: int) -> list[tuple[np.ndarray, list[str]]]:
  """Selects evaluated images, with different classes first.

  Args:
    result: the evaluation.
    count: maximum number of images.

  Returns:
    Images, uint8 (S, S, 3), each with its name and label.
  """
  source, predictions, _ = get_accuracy_details(next(iter(result.outcomes.values())))
  labels = predictions.label if predictions.label.ndim == 1 else predictions.label[:, 0]
  _, firsts = np.unique(labels, return_index=True)
  chosen = list(dict.fromkeys([*firsts[:: max(1, len(firsts) // count)].tolist(), *range(len(labels))]))[:count]
  positions = predictions.position[chosen].tolist()
  named = [[source.display_name(position), source.classes[labels[i]] if labels[i] >= 0 else "no label"]
           for i, position in zip(chosen, positions, strict=True)]  # fmt: skip
  squares = prepare_images(source, result.data, positions)
  return [(square, lines) for square, lines in zip(squares, named, strict=True) if square is not None]


def prepare_images(source: sources.Source, data: EvalData, records: Sequence[int]) -> list[np.ndarray | None]:
  """Prepares images as an evaluation does.

  Args:
    source: the images.
    data: the bound data choice, which specifies the preparation.
    records: numbers of the records.

  Returns:
    Images, uint8 (S, S, 3), or None for each that cannot be read.
  """
  examples, images = data.eval_examples(source), data.images(source, "skip", max_bad=1.0)

  def square(record: int) -> np.ndarray | None:
    image, _, here = examples.example(images.read_prepared, record)
    return image if here else None

  with concurrent.futures.ThreadPoolExecutor(decoding.count_usable_cores()) as pool:
    return list(pool.map(square, records))


def _load_run(workdir: pathlib.Path) -> BoundRun:
  if (run := stored.load_run(workdir)) is None:
    raise ConfigError(f"{workdir} contains no run (no config.json). Train one first")
  return run


def _measure_run(run: BoundRun, workdir: pathlib.Path, train: sources.Source, limit: int) -> MeasuredWeights:
  name, choice = run_evaluation.select_headline(run.evals)
  # The devices of this process may differ from those of the training.
  run, devices = dataclasses.replace(run, mesh=config.Mesh(), evals={}), jax.local_devices()
  unit = run.optim.accumulate
  devices = devices[: max(n for n in range(1, len(devices) + 1) if n == 1 or run.batch % (n * unit) == 0)]
  experiment = build.build(run, devices, lambda *_: train, training=False)
  size = BATCH * len(devices)
  subject = evals.EvalContext(
    experiment.model, experiment.mesh, run.data, size, catalog.open_split, experiment.task.predict
  )
  with enter_key(f"config.evals.{name}"):
    source = open_source(subject, choice.data, choice.split or "test", "split")
    some = (
      sources.select_subset(source, stats.sample_records(len(source), limit, run.seed))
      if len(source) > limit
      else source
    )
    subject = dataclasses.replace(subject, open_split=lambda *_: some)
    measure = choice.replace(batch=size).build(subject)
  state = run_evaluation.restore_newest(experiment, workdir)
  result, intervals = run_evaluation.measure_state({name: measure}, state, lambda: None)
  return MeasuredWeights(experiment, int(state.step), result, intervals, subject.choose_data(choice.data), len(source))

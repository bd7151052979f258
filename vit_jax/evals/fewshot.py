"""Probes: classifiers of frozen features, from a few images of a class (Dosovitskiy et al. 2021, section 4.1), or all.

big_vision's protocol: for each seed, k images of each class are drawn, 1 among 5 among 10 among 25; features are
standardised by those images and classified by regularised least squares. The drawn images follow from (seed, labels of
the split) alone, whatever the devices, processes and batches. From all images of a split k-NN and linear probes are
those of DINO and DINOv2.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np

from vit_jax import models, runtime
from vit_jax import probes as tables
from vit_jax.data import catalog, sources
from vit_jax.evals.features import cache_file, extract
from vit_jax.evals.subject import Outcome, Subject, open_source
from vit_jax.schema import Choice, ConfigError, Count, Range, amount, at, place

Seed = Annotated[int, Range(0, 2**31 - 1)]
Shots = tuple[Count, ...] | Literal["all"]


class Episode(NamedTuple):
  """One draw, and what a probe made of it."""

  probe: str
  shots: int | Literal["all"]
  seed: int
  images: int  # trained on
  setting: float  # of the probe: the penalty, the number of neighbours
  top1: float
  predicted: np.ndarray  # class of each test image [M]

  @property
  def name(self) -> str:
    """The figure that this is one of."""
    return _name(self.probe, self.shots)


class Details(NamedTuple):
  """What the figures are made of, on the first process."""

  episodes: list[Episode]
  train: sources.Source
  test: sources.Source
  drawn: dict[int, np.ndarray]  # seed -> record numbers that the most shots were, class by class
  label: np.ndarray  # of each test image [M]
  position: np.ndarray  # record number of each test image [M]
  notes: list[str]  # what of the probes is not as it was asked for


def fewshot(
  subject: Subject,
  *,
  data: Annotated[Choice | None, catalog.EVAL_DATA] = None,
  train: str = "train",
  test: str = "test",
  features: models.Features = "head",
  shots: Shots = (1, 5, 10, 25),
  seeds: tuple[Seed, ...] = (0, 1, 2),
  probes: Mapping[str, Annotated[Choice, tables.PROBES]] = {"ridge": Choice("ridge")},
  held_out: Count = 5,
  cache: bool = False,
  batch: Annotated[int, Range(1, 2**16)] | None = None,
) -> Callable:
  """(params, poll) -> mean top-1 over seeds for each probe and number of shots, `_std` its standard deviation (n - 1).

  Args:
    subject: the model and its data.
    data: a dataset, with any classes; images are prepared as the run's own unless it says otherwise.
    train: the split that images are drawn from.
    test: the split that probes are scored on, each image once.
    features: "head" is what goes into the head, "cls" the class token after the last norm, "patches" the mean of the
      patches, "cls_patches" both, one behind the other.
    shots: images of each class to train on; classes that have fewer give all of theirs. "all" trains once, on all
      images but those that are held out.
    seeds: one draw each; of "all" the first alone counts, and draws no more than what is held out.
    probes: by name, choices of `probes.PROBES`. Of several penalties (or neighbours) the best on held-out shots is
      taken, for each draw by itself.
    held_out: images of each class to choose on, drawn after the most `shots` and never trained on; of "all" at most
      half of a class.
    cache: keep features on disk, under a hash of weights, preparation and images.
    batch: images at a time.
  """
  size, here = subject.images_at_once(batch), place()
  sides = {key: open_source(subject, data, split, key) for key, split in (("train", train), ("test", test))}
  classes = len(sides["train"].classes)
  _check(sides, shots, seeds, probes)
  subject.features(data, features)  # a model without a class token shows before anything is computed
  grids = [values for probe in probes.values() for values in probe.args.values() if isinstance(values, tuple)]
  choosing = held_out if any(len(values) > 1 for values in grids) else 0
  labels = {side: functools.cache(functools.partial(_labels, source)) for side, source in sides.items()}
  draws = seeds[:1] if shots == "all" else seeds

  def measure(params: dict[str, jax.Array], poll: Callable[[], None]) -> Outcome:
    drawn = {seed: _draw(labels["train"](), classes, shots, choosing, seed) for seed in draws}
    trained_on = np.unique(np.concatenate([rows for draw in drawn.values() for rows in draw]))
    wanted = {"train": trained_on, "test": np.arange(len(sides["test"]))}
    weights = subject.identity(params) if cache else None
    extracted = {}
    for side, source in sides.items():
      file = cache_file(weights, subject.data(data), source, features) if cache else None
      with at(here):
        extracted[side] = extract(subject, data, source, wanted[side], params, poll, size, file, features)
    outcome, problem = None, None
    if jax.process_index() == 0:
      try:
        with at(here):
          outcome = _solve(extracted, labels, classes, sides, shots, drawn, probes)
      except ConfigError as error:
        problem = str(error)
    runtime.agree(problem)
    names = figure_names(shots, seeds, probes)
    figures = np.array([outcome.figures[name] for name in names] if outcome else np.zeros(len(names)))
    shared = dict(zip(names, runtime.from_first(figures).tolist(), strict=True))
    return Outcome(shared | {"images": int(shared["images"])}, outcome.details if outcome else None)

  return measure


def figure_names(shots: Shots, seeds: tuple[int, ...], probes: Iterable[str]) -> list[str]:
  """The figures of `fewshot`, in order."""
  means = [_name(name, k) for name in probes for k in _sizes(shots)]
  ends = ("", "_std") if len(seeds) > 1 and shots != "all" else ("",)
  return [name + end for name in means for end in ends] + ["images"]


def _name(probe, shots):
  return f"{probe}_all" if shots == "all" else f"{probe}_{shots}shot"


def _sizes(shots):
  return ("all",) if shots == "all" else shots


def _draw(labels, classes, shots, choosing, seed) -> tuple[np.ndarray, np.ndarray]:
  """(record numbers to train on, class by class; those that are held out) of one seed."""
  most = len(labels) if shots == "all" else max(shots)
  numbers = tables.draw(labels, classes, most + choosing, seed)
  rank = _ranks(labels[numbers])
  if shots == "all":
    count = np.bincount(labels, minlength=classes)[labels[numbers]]
    most = count - np.minimum(choosing, count // 2)
  return numbers[rank < most], numbers[rank >= most]


def _ranks(labels):
  """The place of each of some labels, which stand class by class, within its class."""
  return np.arange(len(labels)) - np.searchsorted(labels, labels)


def _check(sides, shots, seeds, probes):
  """Raises ConfigError for what cannot be measured."""
  train, test = sides.values()
  if train.classes != test.classes:
    raise ConfigError(f"{test.split!r} has other classes than {train.split!r}", "test")
  if max(train.labels, test.labels) > 1:
    raise ConfigError(f"images of {train.name} may have several labels; a probe needs one for each image", "data")
  for name, values in (("shots", _sizes(shots)), ("seeds", seeds), ("probes", probes)):
    if not values or len(set(values)) != len(values):
      raise ConfigError(f"{values!r}; allowed: one or more, each once", name)
  for name, probe in probes.items():
    for key, values in probe.args.items():
      if values == ():
        raise ConfigError("empty; give one value, or several to choose from", f"probes.{name}.{key}")


def _labels(source) -> np.ndarray:
  """The label of every record; no image is decoded for it."""
  return np.fromiter((source.label(i) for i in range(len(source))), np.int64, len(source))


def _solve(extracted, labels, classes, sides, shots, drawn, probes) -> Outcome:
  """The outcome, from (record numbers, features) of both sides and what each seed drew and held out."""
  (position, x), (test_position, test_x) = extracted["train"], extracted["test"]
  if not len(test_position):
    raise ConfigError("there is no test image that can be decoded")
  for features in (x, test_x):
    tables.check_finite(features)
  label, truth = labels["train"]()[position], labels["test"]()[test_position]
  episodes = []
  for seed, (numbers, held_out) in drawn.items():
    rank = _ranks(labels["train"]()[numbers])
    held = np.flatnonzero(np.isin(position, held_out))
    for k in _sizes(shots):
      drawn_here = numbers if k == "all" else numbers[rank < k]
      rows = np.flatnonzero(np.isin(position, drawn_here))  # those that can be decoded
      # Of a whole split no second copy.
      few = (x, label) if len(rows) == len(x) else (x[rows], label[rows])
      for name, probe in probes.items():
        fitted = tables.PROBES[probe.name](*few, classes, **probe.args)
        if len(fitted) > 1:
          if not len(held):
            beyond = "a second image" if shots == "all" else f"an image beyond {amount(max(shots), 'shot')}"
            raise ConfigError(
              f"no class has {beyond} to choose a setting on; give each probe one setting, or fewer shots"
            )
          fitted.sort(key=lambda one: -np.mean(one[1](x[held]) == label[held]))  # stable: of equals the first
        setting, predict = fitted[0]
        predicted = predict(test_x)
        episodes.append(Episode(name, k, seed, len(rows), setting, float(np.mean(predicted == truth)), predicted))
  figures = {"images": len(truth)}
  for name in dict.fromkeys(episode.name for episode in episodes):
    values = [episode.top1 for episode in episodes if episode.name == name]
    figures[name] = float(np.mean(values))
    if len(values) > 1:
      figures[f"{name}_std"] = float(np.std(values, ddof=1))
  trained_on = {seed: numbers for seed, (numbers, _) in drawn.items()}
  return Outcome(
    figures, Details(episodes, *sides.values(), trained_on, truth, test_position, _notes(probes, episodes))
  )


def _notes(probes, episodes) -> list[str]:
  """A line for each probe of more neighbours than some draw has images, all of which are then asked."""
  notes = []
  for name, probe in probes.items():
    most = max(probe.args.get("neighbours", (0,)))
    if few := sorted({episode.images for episode in episodes if episode.probe == name and episode.images < most}):
      notes.append(
        f"{name}: draws of fewer than {most} images, with {', '.join(f'{count:,}' for count in few)}, use all of them "
        "as neighbours"
      )
  return notes

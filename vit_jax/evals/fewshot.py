"""Probes: classifiers of frozen features from a few images per class, or from all images of a split.

The few-shot protocol is that of big_vision (Dosovitskiy et al. 2021, section 4.1). For each seed, k images of each
class are drawn. The images for a smaller k are a subset of the images for a larger k. Features are standardised with
these images and classified by regularised least squares. The drawn images depend only on the seed and the labels of the
split, not on devices, processes or batches. With all images of a split, k-NN and linear probes follow DINO and DINOv2.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import jax
import numpy as np

from vit_jax import models, runtime
from vit_jax.data import catalog, sources
from vit_jax.data.bound_data import EvalData
from vit_jax.evals import probes as tables
from vit_jax.evals.features import extract, find_cache_file
from vit_jax.evals.subject import EvalContext, Measure, Outcome, Poll, Weights, open_source
from vit_jax.schema import Choice, ConfigError, Count, Range, enter_key, format_amount, get_current_key

Seed = Annotated[int, Range(0, 2**31 - 1)]
Shots = tuple[Count, ...] | Literal["all"]


class Episode(NamedTuple):
  """One draw of images, and the result of a probe.

  Attributes:
    probe: name of the probe.
    shots: images per class, or "all".
    seed: seed of the draw.
    images: number of training images.
    setting: setting of the probe: the penalty, or the number of neighbours.
    top1: fraction of test images with a correct prediction.
    predicted: class of each test image, `(M,)`.
  """

  probe: str
  shots: int | Literal["all"]
  seed: int
  images: int
  setting: float
  top1: float
  predicted: np.ndarray

  @property
  def name(self) -> str:
    """Returns the name of the figure to which this episode contributes."""
    return _figure_name(self.probe, self.shots)


class FewshotDetails(NamedTuple):
  """The data from which the figures were computed, on the first process.

  Attributes:
    episodes: one episode per probe, number of shots and seed.
    train: images from which training images were drawn.
    test: test images.
    drawn: {seed: record numbers of the largest number of shots, class by class}.
    label: label of each test image, `(M,)`.
    position: record number of each test image, `(M,)`.
    notes: differences between the requested and the actual probes.
  """

  episodes: list[Episode]
  train: sources.Source
  test: sources.Source
  drawn: dict[int, np.ndarray]
  label: np.ndarray
  position: np.ndarray
  notes: list[str]


def fewshot(
  subject: EvalContext,
  *,
  data: Annotated[EvalData | None, catalog.EVAL_DATA] = None,
  train: str = "train",
  test: str = "test",
  features: models.Features = "head",
  shots: Shots = (1, 5, 10, 25),
  seeds: tuple[Seed, ...] = (0, 1, 2),
  probes: Mapping[str, Annotated[Choice, tables.PROBES]] = {"ridge": Choice("ridge")},
  held_out: Count = 5,
  cache: bool = False,
  batch: Annotated[int, Range(1, 2**16)] | None = None,
) -> Measure:
  """Builds a function (params, poll) -> Outcome with the mean top-1 over seeds, for each probe and number of shots.

  A figure with the suffix `_std` is the standard deviation (n - 1) over seeds.

  Args:
    subject: the model and its data.
    data: a dataset with any classes. Its images are prepared like those of the run, unless the choice defines another
      preparation.
    train: the split from which training images are drawn.
    test: the split on which probes are evaluated. Each image is used once.
    features: "head" is the input of the head, "cls" the class token after the last norm, "patches" the mean of the
      patch tokens, and "cls_patches" the concatenation of both.
    shots: training images per class. Classes with fewer images contribute all of them. "all" trains once, on all images
      except those that are held out.
    seeds: seeds of the draws. For "all", only the first seed is used, to draw the held-out images.
    probes: {name: choice of `probes.PROBES`}. If a probe has several penalties (or numbers of neighbours), the best one
      on held-out images is used, separately for each draw.
    held_out: images per class for choosing a setting. Held-out images are drawn after the largest number of `shots` and
      are never used for training. For "all", at most half of a class is held out.
    cache: whether to store features on disk, under a hash of weights, preparation and images.
    batch: images per batch.

  Raises:
    ConfigError: the data or the arguments are unsuitable.
  """
  size, here = subject.choose_batch_size(batch), get_current_key()
  sides = {key: open_source(subject, data, split, key) for key, split in (("train", train), ("test", test))}
  classes = len(sides["train"].classes)
  _check_data(sides, shots, seeds, probes)
  with enter_key("features"):
    subject.compile_features(data, features)  # a model without a class token causes an error before any computation
  grids = [values for probe in probes.values() for values in probe.args.values() if isinstance(values, tuple)]
  choosing = held_out if any(len(values) > 1 for values in grids) else 0
  labels = {side: functools.cache(functools.partial(_read_labels, source)) for side, source in sides.items()}
  draws = seeds[:1] if shots == "all" else seeds

  def measure(params: Weights, poll: Poll) -> Outcome:
    drawn = {seed: _draw_images(labels["train"](), classes, shots, choosing, seed) for seed in draws}
    trained_on = np.unique(np.concatenate([rows for draw in drawn.values() for rows in draw]))
    wanted = {"train": trained_on, "test": np.arange(len(sides["test"]))}
    weights = subject.compute_identity(params) if cache else None
    extracted = {}
    for side, source in sides.items():
      file = None if weights is None else find_cache_file(weights, subject.choose_data(data), source, features)
      with enter_key(here):
        extracted[side] = extract(subject, data, source, wanted[side], params, poll, size, file, features)
    outcome, problem = None, None
    if jax.process_index() == 0:
      try:
        with enter_key(here):
          outcome = _evaluate_probes(extracted, labels, classes, sides, shots, drawn, probes)
      except ConfigError as error:
        problem = str(error)
    runtime.raise_together(problem)
    names = name_fewshot_figures(shots, seeds, probes)
    figures = np.array([outcome.figures[name] for name in names] if outcome else np.zeros(len(names)))
    shared = dict(zip(names, runtime.copy_from_first(figures).tolist(), strict=True))
    return Outcome(shared | {"images": int(shared["images"])}, outcome.details if outcome else None)

  return measure


def name_fewshot_figures(shots: Shots, seeds: tuple[int, ...], probes: Iterable[str]) -> list[str]:
  """Returns the names of the figures of `fewshot`, in order.

  Args:
    shots: argument of `fewshot`.
    seeds: argument of `fewshot`.
    probes: names of the probes.
  """
  means = [_figure_name(name, k) for name in probes for k in _shot_counts(shots)]
  ends = ("", "_std") if len(seeds) > 1 and shots != "all" else ("",)
  return [name + end for name in means for end in ends] + ["images"]


def _figure_name(probe: str, shots: int | str) -> str:
  return f"{probe}_all" if shots == "all" else f"{probe}_{shots}shot"


def _shot_counts(shots: Shots) -> tuple[int | Literal["all"], ...]:
  return ("all",) if shots == "all" else shots


def _draw_images(
  labels: np.ndarray, classes: int, shots: Shots, choosing: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
  """Returns (training record numbers, class by class; held-out record numbers) of one seed."""
  most = len(labels) if shots == "all" else max(shots)
  numbers = tables.draw_shots(labels, classes, most + choosing, seed)
  rank = _rank_in_class(labels[numbers])
  if shots == "all":
    count = np.bincount(labels, minlength=classes)[labels[numbers]]
    most = count - np.minimum(choosing, count // 2)
  return numbers[rank < most], numbers[rank >= most]


def _rank_in_class(labels: np.ndarray) -> np.ndarray:
  """Returns the position of each label within its class. The labels must be sorted by class."""
  return np.arange(len(labels)) - np.searchsorted(labels, labels)


def _check_data(
  sides: Mapping[str, sources.Source], shots: Shots, seeds: tuple[int, ...], probes: Mapping[str, Choice]
) -> None:
  """Raises ConfigError for data or arguments that cannot be measured."""
  train, test = sides.values()
  if train.classes != test.classes:
    raise ConfigError(f"{test.split!r} has other classes than {train.split!r}", "test")
  if max(train.labels, test.labels) > 1:
    raise ConfigError(f"images of {train.name} may have several labels, but a probe needs one label per image", "data")
  for name, values in (("shots", _shot_counts(shots)), ("seeds", seeds), ("probes", probes)):
    if not values or len(set(values)) != len(values):
      raise ConfigError(f"{values!r}. Give at least one value, without duplicates", name)
  for name, probe in probes.items():
    for key, values in probe.args.items():
      if values == ():
        raise ConfigError("no value. Give one value, or several of which the best is selected", f"probes.{name}.{key}")


def _read_labels(source: sources.Source) -> np.ndarray:
  """Returns the labels of all records, without decoding images."""
  return np.fromiter((source.label(i) for i in range(len(source))), np.int64, len(source))


def _evaluate_probes(
  extracted: Mapping[str, tuple[np.ndarray, np.ndarray]],
  labels: Mapping[str, Callable[[], np.ndarray]],
  classes: int,
  sides: Mapping[str, sources.Source],
  shots: Shots,
  drawn: Mapping[int, tuple[np.ndarray, np.ndarray]],
  probes: Mapping[str, Choice],
) -> Outcome:
  """Fits and evaluates all probes, and returns the outcome."""
  (position, x), (test_position, test_x) = extracted["train"], extracted["test"]
  if not len(test_position):
    raise ConfigError("no test image can be decoded")
  for features in (x, test_x):
    tables.check_finite(features)
  label, truth = labels["train"]()[position], labels["test"]()[test_position]
  episodes = []
  for seed, (numbers, held_out) in drawn.items():
    rank = _rank_in_class(labels["train"]()[numbers])
    held = np.flatnonzero(np.isin(position, held_out))
    for k in _shot_counts(shots):
      drawn_here = numbers if k == "all" else numbers[rank < k]
      rows = np.flatnonzero(np.isin(position, drawn_here))  # images that can be decoded
      # A whole split is not copied.
      few = (x, label) if len(rows) == len(x) else (x[rows], label[rows])
      for name, probe in probes.items():
        fitted = tables.PROBES[probe.name](*few, classes, **probe.args)
        if len(fitted) > 1:
          if not len(held):
            needed = 2 if shots == "all" else max(shots) + 1
            raise ConfigError(
              f"no class has {format_amount(needed, 'image')}, which the selection of a setting requires. Give each "
              "probe one setting, or use fewer shots"
            )
          # The sort is stable: the first one of equal settings is used.
          fitted.sort(key=lambda one: -np.mean(one[1](x[held]) == label[held]))
        setting, predict = fitted[0]
        predicted = predict(test_x)
        episodes.append(Episode(name, k, seed, len(rows), setting, float(np.mean(predicted == truth)), predicted))
  figures: dict[str, float] = {"images": len(truth)}
  for name in dict.fromkeys(episode.name for episode in episodes):
    values = [episode.top1 for episode in episodes if episode.name == name]
    figures[name] = float(np.mean(values))
    if len(values) > 1:
      figures[f"{name}_std"] = float(np.std(values, ddof=1))
  trained_on = {seed: numbers for seed, (numbers, _) in drawn.items()}
  return Outcome(
    figures,
    FewshotDetails(
      episodes, sides["train"], sides["test"], trained_on, truth, test_position, _describe_neighbours(probes, episodes)
    ),
  )


def _describe_neighbours(probes: Mapping[str, Choice], episodes: Sequence[Episode]) -> list[str]:
  """Returns a note for each k-NN probe that has fewer training images than neighbours."""
  notes = []
  for name, probe in probes.items():
    most = max(probe.args.get("neighbours", (0,)))
    if few := sorted({episode.images for episode in episodes if episode.probe == name and episode.images < most}):
      notes.append(
        f"{name}: {most} neighbours, but some draws have only {' or '.join(f'{count:,}' for count in few)} images, "
        "which are all used"
      )
  return notes

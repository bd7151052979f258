"""What an evaluation gets and what it gives: functions of weights, images, figures and details."""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from vit_jax.data import sources, stream
from vit_jax.schema import Choice, arguments, at


class Subject(NamedTuple):
  """The model that is measured, and its data. A `data` of None stands for the run's own."""

  predict: Callable  # (data, logits) -> (params, batch) -> rows of the whole batch on every process; see tasks.Task
  features: Callable  # (data) -> (params, batch) -> the same with "features" [B, D], what goes into the head
  open: Callable[[Choice | None, str], sources.Source]  # (data, split)
  data: Callable[[Choice | None], Choice]
  batches: Callable  # (data, source, size) -> iterator, with a close, over batches that cover the source, padded
  size: Callable[[int | None], int]  # images at a time, or None -> images at a time
  identity: Callable[[dict[str, jax.Array]], str]  # of the model with these weights
  classes: int  # of the model's head


def open_source(subject: Subject, data: Choice | None, split: str, key: str) -> sources.Source:
  """The source of an evaluation's split, which its own `key` names; what cannot be prepared is an error too."""
  try:
    with at("config.data" if data is None else "data"):
      source = subject.open(data, split)
      stream.eval_examples(source, **arguments(subject.data(data), stream.eval_examples))
  except sources.SplitError as error:
    if split in ("train", "val", "test"):
      raise
    raise sources.SplitError(error.message, key) from None  # the data know nothing of this split string
  return source


class Outcome(NamedTuple):
  """Figures of one measurement, and what they were made of."""

  figures: dict[str, float]
  details: object  # figures.Predictions and the like


def rows(compute: Callable, batches: Iterator, poll: Callable[[], None], size: int) -> dict[str, np.ndarray]:
  """What `compute` gives for each image of the batches, in order, without padding, and its `position` in the source.

  One batch is fetched while the devices work on the next; `poll` is called before each.
  """
  parts, first, running = [], 0, None

  def fetch(started):
    nonlocal first
    found = jax.device_get(started)
    real = found.pop("mask") > 0
    parts.append({name: value[real] for name, value in found.items()} | {"position": first + np.flatnonzero(real)})
    first += size

  with contextlib.closing(batches) as feed:
    for images in feed:
      poll()
      started = compute(images)
      if running is not None:
        fetch(running)
      running = started
  if running is not None:
    fetch(running)
  return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

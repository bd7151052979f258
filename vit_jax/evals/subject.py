"""What evaluations measure, what they give, and the rows that a model makes of the images of a split."""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np

from vit_jax import checkpoints, mesh, models
from vit_jax.data import augment, device_batches, sources, stream
from vit_jax.schema import Choice, ConfigError, arguments


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model on a mesh, and the data that it is measured on. A `data` of None stands for the run's own."""

  model: models.Model
  mesh: jax.sharding.Mesh
  own: Choice | None  # the run's data; None: every evaluation brings its own
  batch: int  # images at a time, unless an evaluation says otherwise
  open_split: Callable[[Choice, str], sources.Source]  # of data and a split
  predict: Callable | None = None  # `tasks.Task.predict`; None: only features are measured
  programs: dict = dataclasses.field(default_factory=dict, compare=False, repr=False)  # compiled once, shared

  @property
  def classes(self) -> int:
    """Of the model's head."""
    return self.model.description.classes

  def data(self, data: Choice | None) -> Choice:
    """The data, or the run's own."""
    return self.own if data is None else data

  def source(self, data: Choice | None, split: str) -> sources.Source:
    """The images of a split: "train", "val" or "test" as the data name them, or a split of the dataset."""
    return self.open_split(self.data(data), split)

  def predictions(self, data: Choice | None, logits: bool) -> Callable:
    """(params, batch) -> rows of `metrics.Predictions` for the whole batch, on every process."""

    def rows(params, images, labels):
      predicted = self.predict(params, images, labels)
      return {name: value for name, value in predicted.items() if logits or name != "logits"}

    return self._program("logits" if logits else "best", data, rows)

  def features(self, data: Choice | None) -> Callable:
    """(params, batch) -> "features" [B, D], what goes into the head, on every process."""

    def rows(params, images, labels):
      return {"features": self.model.outputs(params, images)[0].features}

    return self._program("features", data, rows)

  def batches(self, data: Choice | None, source: sources.Source, size: int) -> device_batches.DeviceBatches:
    """Batches of `size` images that cover the source once, padded; to be closed."""
    split = mesh.batch(self.mesh)
    rows = mesh.local_rows(split, size)
    batches = stream.eval_batches(source, size, rows, **arguments(self.data(data), stream.eval_batches))
    return device_batches.DeviceBatches(batches, rows, size, split)

  def images_at_once(self, size: int | None, where: str) -> int:
    """`size`, or by default the run's batch; ConfigError if the devices cannot share it evenly."""
    chosen, shards = size or self.batch, mesh.batch_shards(self.mesh)
    if chosen % shards:
      place = f"{where}.batch" if size else "config.batch"
      raise ConfigError(f"{place}: {chosen} does not divide over {shards} devices; take a multiple of {shards}")
    return chosen

  def identity(self, params: dict[str, jax.Array]) -> str:
    """A text that changes with the model and with any bit of its weights, and not with the devices."""
    model = json.dumps(self.model.description.to_json(), sort_keys=True)
    return f"{model} {checkpoints.weights_digest(params, mesh.replicated(self.mesh))}"

  def _program(self, kind, data, rows):
    """`rows(params, images, labels)` compiled for batches; shared by data that are normalised alike."""
    normalisation = arguments(self.data(data), augment.normalise)
    key = (kind, *normalisation.values())
    if key not in self.programs:
      dtype = np.dtype(self.model.description.model.args["dtype"])
      normalise = functools.partial(augment.normalise, dtype=dtype, **normalisation)

      def program(params, batch):
        found = rows(params, normalise(batch["image"]), batch["label"])
        return {**found, "label": batch["label"], "mask": batch["mask"]}

      self.programs[key] = jax.jit(program, out_shardings=mesh.replicated(self.mesh))
    return self.programs[key]


def open_source(subject: Subject, data: Choice | None, split: str, where: str, key: str) -> sources.Source:
  """The source of an evaluation's split; errors name the evaluation's own keys."""
  try:
    return subject.source(data, split)
  except ConfigError as error:
    text = str(error)
    if text.startswith("split:"):
      text = f"{where}.{key}:{text.removeprefix('split:')}"
    elif data is not None:
      text = text.replace("config.data.", f"{where}.data.")
    raise type(error)(text) from error


class Outcome(NamedTuple):
  """Figures of one measurement, and what they were made of."""

  figures: dict[str, float]
  details: object  # metrics.Predictions and the like


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

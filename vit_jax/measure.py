"""What is measured: images as global arrays, and the subject of evaluations."""

import functools
import json
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from vit_jax import checkpoints, evals, mesh, models
from vit_jax.config import Measurement
from vit_jax.data import augment, catalog, stream
from vit_jax.importers import surgery
from vit_jax.schema import Choice, ConfigError, arguments, at


class Feed:
  """Batches as global arrays: an iterator over a stream's rows of this process; `close` ends its threads."""

  def __init__(self, stream: stream.Batches, rows: np.ndarray, size: int, sharding: jax.sharding.Sharding):
    self._stream, self._rows, self._size, self._sharding = stream, rows, size, sharding

  def __iter__(self):
    return self

  def __next__(self) -> dict[str, jax.Array]:
    local = next(self._stream)
    return {name: mesh.global_array(value, self._rows, self._size, self._sharding) for name, value in local.items()}

  @property
  def skipped(self) -> int:
    """Images that could not be decoded, so far, in this process."""
    return self._stream.skipped

  def close(self) -> None:
    """Ends the threads that read ahead."""
    self._stream.close()


def sharded(model: models.Model, grid) -> models.Model:
  """The model with activations sharded over a mesh, where XLA would guess wrong."""
  choice = model.description.model
  gather = mesh.gather(models.sharding(choice.name), grid, np.dtype(choice.args["dtype"]))
  return model.sharded(mesh.batch(grid), gather, functools.partial(mesh.per_device, grid))


def subject(description, grid, data, batch, open_split, predict) -> evals.Subject:
  """What evaluations measure: a model on this mesh, by default on `data`; `predict` (normalise) is a task's."""
  model, classes = description.model, description.classes
  whole, split, shards = mesh.replicated(grid), mesh.batch(grid), mesh.batch_shards(grid)

  def of(other):
    return data if other is None else other

  def normalised(other):
    return functools.partial(
      augment.normalise, dtype=np.dtype(model.args["dtype"]), **arguments(of(other), augment.normalise)
    )

  # Evaluations of images that are normalised alike share a program.
  programs = {}

  def program(kind, other, make):
    key = (kind, *arguments(of(other), augment.normalise).values())
    if key not in programs:
      function = make(normalised(other))

      def rows(params, batch):
        return {**function(params, batch), "label": batch["label"], "mask": batch["mask"]}

      programs[key] = jax.jit(rows, out_shardings=whole)
    return programs[key]

  def predictions(other, logits):
    def make(normalise):
      rows = predict(normalise)
      return lambda params, batch: {k: v for k, v in rows(params, batch).items() if logits or k != "logits"}

    return program("logits" if logits else "best", other, make)

  def features(other):
    def make(normalise):
      headless = sharded(models.functional(description.replaced(classes=0)), grid)
      return lambda params, batch: {"features": headless.outputs(params, normalise(batch["image"]))[0].logits}

    return program("features", other, make)

  def batches(other, source, size):
    rows = mesh.local_rows(split, size)
    examples = stream.eval_examples(source, **arguments(of(other), stream.eval_examples))
    return Feed(stream.batches(examples, size, rows, **arguments(of(other), stream.batches)), rows, size, split)

  def images_at_once(own):
    chosen = own or batch
    if chosen % shards:
      key = "batch" if own else "config.batch"
      raise ConfigError(f"{chosen} does not divide over {shards} devices; take a multiple of {shards}", key)
    return chosen

  def identity(params):
    model_text = json.dumps(description.to_json(), sort_keys=True)
    return f"{model_text} {checkpoints.weights_digest(params, whole)}"

  return evals.Subject(
    predictions,
    features,
    lambda other, split: open_split(of(other), split),
    of,
    batches,
    images_at_once,
    identity,
    classes,
  )


class OfWeights(NamedTuple):
  """What a `Measurement` measures of a file's weights."""

  params: dict[str, jax.Array]
  evals: dict[str, Callable]  # (params, poll) -> evals.Outcome
  notes: list[str]  # what was done to the weights


def bound(given: Measurement, image_size: int | None) -> dict[str, Choice]:
  """The evaluations with every argument checked, for a model of images of this size; None: it is not known yet."""
  choices = {}
  for name, choice in given.evals.items():
    with at(f"config.evals.{name}"):
      if choice.name == "accuracy":
        raise ConfigError("'accuracy' needs the weights' own classes; use vit_jax.evaluate", "name")
      choices[name] = evals.bind(choice, evals.EVALS, {"image_size": image_size} if image_size else {})
      if choices[name].args["data"] is None:
        raise ConfigError("missing; name a dataset: dict(name='cifar100')", "data")
  return choices


def of_weights(
  given: Measurement,
  have: models.Description,
  arrays: dict[str, np.ndarray],
  devices,
  open_split: Callable = catalog.open_split,
) -> OfWeights:
  """The evaluations of a measurement, for a file's description and parameters, which lose their head."""
  size = given.image_size or have.image_size
  if not isinstance(size, int):
    raise ConfigError(f"config.image_size: missing; the weights are of images of {size}, and evaluations take squares")
  choices = bound(given, size)
  want = have.replaced(image_size=size, classes=0).bound()
  arrays, notes = surgery.fit(arrays, have, want)
  grid = mesh.make(given.mesh, devices)
  shapes = models.functional(want).shapes()
  shardings = mesh.parameters(models.sharding(want.model.name), shapes, grid)
  arrays = surgery.stack(arrays, tuple(shapes))
  params = {path: mesh.place(arrays[path], shardings[path]) for path in shapes}
  measured = subject(want, grid, None, given.batch, open_split, None)
  made = {}
  for name, choice in choices.items():
    with at(f"config.evals.{name}"):
      made[name] = evals.make(choice, measured)
  return OfWeights(params, made, notes)

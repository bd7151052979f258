"""What is measured: a model as pure functions on a mesh, images as global arrays, and the subject of evaluations."""

import functools
import json
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from vit_jax import checkpoints, evals, importers, mesh, models, rng, trees
from vit_jax.config import Measurement
from vit_jax.data import augment, catalog, stream
from vit_jax.importers import surgery
from vit_jax.schema import Choice, ConfigError, arguments, bind


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


class Functional(NamedTuple):
  """A model as pure functions of flat parameters."""

  parameters: Callable  # key -> {path: parameter}
  apply: Callable  # (parameters, images [B, H, W, C], key or None) -> (logits [B, V], {path: statistic after these})
  statistics: frozenset[str]  # paths that the model moves itself, among the parameters
  patch: int | None  # images may come cut into patches of this side


def functional(model: Choice, image_size: int, classes: int) -> Functional:
  """The model of a bound choice."""
  make = models.lookup(model.name)

  def create(key):
    return make(image_size, 3, classes, rng.Keys(key), **model.args)

  abstract = nnx.eval_shape(lambda: create(jax.random.key(0)))
  graph, state = nnx.split(abstract)
  paths = list(trees.flatten(state))
  leaves, structure = jax.tree.flatten(trees.map_named(lambda name, _: name, state))
  assert sorted(leaves) == sorted(paths)
  statistics = frozenset(trees.flatten(nnx.filter_state(state, nnx.BatchStat)))

  def parameters(key):
    return trees.flatten(nnx.state(create(key)))

  def apply(params, images, key):
    module = nnx.merge(graph, jax.tree.unflatten(structure, [params[path] for path in leaves]))
    return module(images, key), trees.flatten(nnx.state(module, nnx.BatchStat))

  return Functional(parameters, apply, statistics, getattr(abstract, "patch", None))


def placed(model, grid):
  """Wraps a model's `apply`: told where XLA would guess wrong how its arrays are split."""
  gather = mesh.gather(models.sharding(model.name), grid, np.dtype(model.args["dtype"]))

  def wrap(apply):
    def told(params, images, key):
      with models.placed(mesh.batch(grid), gather, functools.partial(mesh.per_device, grid)):
        return apply(params, images, key)

    return told

  return wrap


def subject(description, grid, data, batch, open_split, predict) -> evals.Subject:
  """What evaluations measure: a model on this mesh, by default on `data`; `predict` (normalise) is a task's."""
  model, size, classes = description.model, description.image_size, description.classes
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
      apply = placed(model, grid)(functional(model, size, 0).apply)
      return lambda params, batch: {"features": apply(params, normalise(batch["image"]), None)[0]}

    return program("features", other, make)

  def batches(other, source, size):
    rows = mesh.local_rows(split, size)
    options = arguments(of(other), stream.eval_batches)
    return Feed(stream.eval_batches(source, size, rows, **options), rows, size, split)

  def images_at_once(given, where):
    chosen = given or batch
    if chosen % shards:
      source = f"{where}.batch" if given else "config.batch"
      raise ConfigError(f"{source}: {chosen} does not divide over {shards} devices; take a multiple of {shards}")
    return chosen

  def identity(params):
    model_text = json.dumps(importers.about(description), sort_keys=True)
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
    where = f"config.evals.{name}"
    if choice.name == "accuracy":
      raise ConfigError(f"{where}.name: 'accuracy' needs the weights' own classes; use vit_jax.evaluate")
    own = "image_size" in (choice.args.get("data") or ())
    # Any test crop fits the smallest image.
    prepared = {"image_size": image_size or 1} if image_size or not own else {}
    choices[name] = evals.bind(choice, prepared, where)
    if choices[name].args["data"] is None:
      raise ConfigError(f"{where}.data: missing; name a dataset: dict(name='cifar100')")
  return choices


def of_weights(
  given: Measurement,
  have: importers.Description,
  arrays: dict[str, np.ndarray],
  devices,
  open_split: Callable = catalog.open_split,
) -> OfWeights:
  """The evaluations of a measurement, for a file's description and parameters, which lose their head."""
  size = given.image_size or have.image_size
  if not isinstance(size, int):
    raise ConfigError(f"config.image_size: missing; the weights are of images of {size}, and evaluations take squares")
  choices = bound(given, size)
  model = bind(have.model, (models.lookup(have.model.name),), "model")
  want = have._replace(model=model, image_size=size, classes=0)
  arrays, notes = surgery.fit(arrays, have, want)
  grid = mesh.make(given.mesh, devices)
  shapes = jax.eval_shape(functional(model, size, 0).parameters, jax.random.key(0))
  shardings = mesh.parameters(models.sharding(model.name), shapes, grid)
  arrays = surgery.stack(arrays, tuple(shapes))
  params = {path: mesh.place(arrays[path], shardings[path]) for path in shapes}
  measured = subject(want, grid, None, given.batch, open_split, None)
  made = {name: evals.make(choice, measured, f"config.evals.{name}") for name, choice in choices.items()}
  return OfWeights(params, made, notes)

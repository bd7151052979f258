"""Inputs and results of evaluations, and computation of a model's outputs for the images of a split."""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from vit_jax import models
from vit_jax.checkpoints import digests
from vit_jax.data import device_batches, sources
from vit_jax.data.bound_data import EvalData
from vit_jax.models import finite
from vit_jax.parallel import sharding
from vit_jax.schema import Choice, ConfigError, enter_key, get_current_key

Rows = dict[str, jax.Array]  # values of the images of a batch, by name
Weights = Mapping[str, jax.Array]  # parameters by path


class Screen(Protocol):
  """A display of the number of completed images."""

  def add(self, count: int) -> None:
    """Adds completed images."""


# (name, images, batch size) -> a display
ProgressFactory = Callable[[str, int, int], contextlib.AbstractContextManager[Screen]]
OpenSplit = Callable[[Choice, str], sources.Source]  # (data choice, split) -> images
Poll = Callable[[], None]  # called between batches; raises an exception to stop
Program = Callable[[Any, Rows], Rows]  # (parameters, batch) -> values of its images


@dataclasses.dataclass(frozen=True)
class EvalContext:
  """A model on a mesh, and the data on which it is measured. In its methods, `data=None` stands for the run's own data.

  Attributes:
    model: the model.
    mesh: the devices.
    own: data of the run, or None if every evaluation defines its data.
    batch: images per batch, unless an evaluation defines another number.
    open_split: opens a split of data.
    predict: `tasks.Task.predict`, or None if only features are measured.
    names: names of the classes of the run's own data, or () if they are unknown.
    screen: displays the number of completed images, or None for no display.
    programs: compiled programs, shared by evaluations.
  """

  model: models.Model
  mesh: jax.sharding.Mesh
  own: EvalData | None
  batch: int
  open_split: OpenSplit
  predict: Callable[..., Mapping[str, jax.Array | np.ndarray]] | None = None
  names: tuple[str, ...] = ()
  screen: ProgressFactory | None = None
  programs: dict[tuple[object, ...], Program] = dataclasses.field(default_factory=dict, compare=False, repr=False)

  @property
  def classes(self) -> int:
    """Returns the number of classes of the model's head."""
    return self.model.description.classes

  def choose_data(self, data: EvalData | None) -> EvalData:
    """Returns the data, or the run's own data for None."""
    chosen = self.own if data is None else data
    assert chosen is not None
    return chosen

  def open_images(self, data: EvalData | None, split: str) -> sources.Source:
    """Opens the images of a split.

    Args:
      data: a data choice, or None for the run's own.
      split: "train", "val" or "test" as named by the data, or a split of the dataset.
    """
    return self.open_split(self.choose_data(data), split)

  def compile_predictions(self, data: EvalData | None, logits: bool, classes: tuple[int, ...] | None = None) -> Program:
    """Returns a function (params, batch) -> rows of `metrics.Predictions` for the whole batch, on every process.

    Args:
      data: a data choice, or None for the run's own.
      logits: true includes the logits in the rows.
      classes: the classes with competing logits, or None for all.

    Raises:
      ConfigError: only features can be measured.
    """
    predict = self.predict
    if predict is None:
      raise ConfigError("it needs predictions, but this command measures only features. Use vit_jax.evaluate")

    def rows(params: Weights, images: jax.Array, labels: jax.Array) -> Rows:
      predicted = predict(params, images, labels, classes)
      kept = {name: jnp.asarray(value) for name, value in predicted.items() if logits or name != "logits"}
      return kept | finite.compute_flags(predicted)

    return self._program(("logits" if logits else "best", classes), data, rows)

  def compile_features(self, data: EvalData | None, kind: models.Features = "head") -> Program:
    """Returns a function (params, batch) -> {"features": `(B, D)`} on every process.

    Args:
      data: a data choice, or None for the run's own.
      kind: type of the features.

    Raises:
      ConfigError: the model does not have this type of features.
    """
    of_image = self.model.select_features(kind)

    def rows(params: Weights, images: jax.Array, labels: jax.Array) -> Rows:
      made = {"features": of_image(self.model.outputs(params, images)[0])}
      return made | finite.compute_flags(made)

    return self._program(("features", kind), data, rows)

  def compile_tokens(self, data: EvalData | None) -> Program:
    """Returns a function (params, batch) -> {"tokens": `(B, P, P, D)`, float32} for square images, on every process.

    Args:
      data: a data choice, or None for the run's own.
    """
    return self._program("tokens", data, self._compute_map)

  def compile_segments(self, data: EvalData | None) -> Program:
    """Returns a function ((params, kernel, bias), batch) -> {"classes": `(B, S, S)`, uint8} on every process.

    The kernel has shape `(D, V)` and the bias `(V,)`. The scores of tokens are resized to the pixels of the images
    (bilinear, corners not aligned). The result is the best class of each pixel.

    Args:
      data: a data choice, or None for the run's own.
    """

    def rows(parameters: tuple[Weights, object, Any], images: jax.Array, labels: jax.Array) -> Rows:
      params, kernel, bias = parameters
      tokens = self._compute_map(params, images, labels)["tokens"]
      scores = jnp.einsum("bpqd,dv->vbpq", tokens, kernel, precision="highest") + bias[:, None, None, None]
      flags = finite.compute_flags({"scores of pixels": rearrange(scores, "v b p q -> b p q v")})
      return {"classes": resize_and_classify(scores, images.shape[1])} | flags

    return self._program("segments", data, rows)

  @functools.cached_property
  def map_shape(self) -> tuple[int, int, int]:
    """Returns the shape (P, P, D) of an image's patch tokens, or of the last feature map.

    Raises:
      ConfigError: the patches do not form a square.
    """
    size, dtype = self.model.description.image_size, self.model.description.model.args["dtype"]
    images = jax.ShapeDtypeStruct((self.batch, size, size, self.model.description.channels), dtype)
    tokens = jax.eval_shape(lambda *of: self.model.outputs(*of)[0].tokens, self.model.shapes(), images)
    patches = tokens.shape[1] - sum(self.model.prefix.values())
    if (side := math.isqrt(patches)) ** 2 != patches:
      raise ConfigError(f"{self.model.description.model.name} has {patches} patches, which do not form a square")
    return side, side, tokens.shape[2]

  def _compute_map(self, params: Weights, images: jax.Array, labels: jax.Array) -> Rows:
    tokens = self.model.outputs(params, images)[0].tokens[:, sum(self.model.prefix.values()) :]
    made = {"tokens": rearrange(tokens.astype(jnp.float32), "b (p q) d -> b p q d", p=self.map_shape[0])}
    return made | finite.compute_flags(made)

  def open_batches(self, data: EvalData | None, source: sources.Source, size: int) -> device_batches.DeviceBatches:
    """Returns padded batches that contain each image of the source once. The caller must close them.

    Args:
      data: a data choice, or None for the run's own.
      source: the images.
      size: images per batch.
    """
    split = sharding.make_batch_sharding(self.mesh)
    rows = sharding.find_local_rows(split, size)
    own = self.choose_data(data)
    batches = own.batches(own.eval_examples(source), size, rows.tolist())
    return device_batches.DeviceBatches(batches, rows, size, split)

  @contextlib.contextmanager
  def show_progress(self, source: sources.Source, size: int, poll: Poll) -> Iterator[Poll]:
    """Yields a replacement for `poll` for `compute_batches` that also displays the number of completed images.

    Args:
      source: the images.
      size: images per batch.
      poll: called before each batch.
    """
    if self.screen is None:
      yield poll
      return
    with self.screen(f"{source.name} {source.split}", len(source), size) as screen:
      polls = 0

      def count_batch() -> None:
        nonlocal polls
        poll()
        if polls > 1:  # one batch is being computed, and the batch before it has not been fetched yet
          screen.add(size)
        polls += 1

      yield count_batch

  def choose_batch_size(self, size: int | None) -> int:
    """Returns the number of images per batch.

    Args:
      size: the number, or None for the run's batch size.

    Raises:
      ConfigError: the number is not a multiple of the number of devices that share a batch.
    """
    chosen, shards = size or self.batch, sharding.count_batch_shards(self.mesh)
    if chosen % shards:
      key = "batch" if size else "config.batch"
      raise ConfigError(f"{chosen} cannot be divided over {shards} devices. Use a multiple of {shards}", key)
    return chosen

  def compute_identity(self, params: Weights) -> str:
    """Returns a text that changes with the model and with any bit of its weights, but not with the devices.

    Args:
      params: {path: parameter}.
    """
    model = json.dumps(self.model.description.to_json(), sort_keys=True)
    return f"{model} {digests.sha256(params, sharding.make_replicated_sharding(self.mesh))}"

  def _program(self, kind: object, data: EvalData | None, rows: Callable[[Any, jax.Array, jax.Array], Rows]) -> Program:
    """Returns `rows(params, images, labels)`, compiled for batches. Data with equal normalisation share a program."""
    prepared = self.choose_data(data)
    key = (kind, *prepared.normalisation.values())
    if key not in self.programs:
      dtype = np.dtype(self.model.description.model.args["dtype"])

      def program(params: object, batch: Rows) -> Rows:
        computed = rows(params, prepared.normalise(batch["image"], dtype), batch["label"])
        return {**computed, "label": batch["label"], "valid": batch["valid"]}

      self.programs[key] = jax.jit(program, out_shardings=sharding.make_replicated_sharding(self.mesh))
    return self.programs[key]


def resize_and_classify(scores: jax.Array, size: int) -> jax.Array:
  """Resizes scores to an image and returns the best class of each pixel.

  Classes are resized one by one, because the scores of all V classes at every pixel would need V times the memory.

  Args:
    scores: `(V, B, P, P)`.
    size: side S of the image in pixels.

  Returns:
    `(B, S, S)`, uint8. If scores are equal, the first class is returned.

  Example:
    import jax.numpy as jnp
    from vit_jax.evals import subject

    scores = jnp.array([[[[0.0]]], [[[1.0]]]])
    assert subject.resize_and_classify(scores, 2).tolist() == [[[1, 1], [1, 1]]]
  """

  Scored = tuple[jax.Array, jax.Array]  # scores, classes

  def select_better(best: Scored, candidate: Scored) -> tuple[Scored, None]:
    (score, number), (scores_of_one, one) = best, candidate
    resized = jax.image.resize(scores_of_one, score.shape, "bilinear")
    return (jnp.maximum(score, resized), jnp.where(resized > score, one, number)), None

  shape = (scores.shape[1], size, size)
  initial = jnp.full(shape, -jnp.inf, scores.dtype), jnp.zeros(shape, jnp.uint8)
  (_, best), _ = jax.lax.scan(select_better, initial, (scores, jnp.arange(len(scores), dtype=jnp.uint8)))
  return best


def open_source(subject: EvalContext, data: EvalData | None, split: str, key: str) -> sources.Source:
  """Opens the split of an evaluation and checks that its images can be prepared.

  Args:
    subject: the model and its data.
    data: a data choice, or None for the run's own.
    split: the split.
    key: key of the evaluation that contains the split, for messages.

  Raises:
    ConfigError: the split does not exist, or its images cannot be prepared.
  """
  try:
    with enter_key("config.data" if data is None else "data"):
      source = dataclasses.replace(subject.open_images(data, split), key=get_current_key())
      subject.choose_data(data).eval_examples(source)
  except sources.SplitError as error:
    if split in ("train", "val", "test"):
      raise
    raise sources.SplitError(error.message, key) from None  # the data do not contain this split string
  return source


class Outcome(NamedTuple):
  """Result of one measurement.

  Attributes:
    figures: {name: value}.
    details: the data from which the figures were computed, for example metrics.Predictions.
  """

  figures: dict[str, float]
  details: object


Measure = Callable[[Weights, Poll], Outcome]  # (parameters, poll) -> outcome


def compute_rows(
  compute: Callable[[Rows], Rows],
  batches: device_batches.DeviceBatches,
  poll: Poll,
  size: int,
  name: Callable[[int], str],
) -> dict[str, np.ndarray]:
  """Computes all batches and returns {name: array} for all images together.

  Args:
    compute, batches, poll, size, name: see `compute_batches`.

  Raises:
    NotFiniteError: an output of an image is NaN or infinite.
  """
  computed = list(compute_batches(compute, batches, poll, size, name))
  return {name: np.concatenate([part[name] for part in computed]) for name in computed[0]}


def compute_batches(
  compute: Callable[[Rows], Rows],
  batches: device_batches.DeviceBatches,
  poll: Poll,
  size: int,
  name: Callable[[int], str],
) -> Iterator[dict[str, np.ndarray]]:
  """Computes batches, and fetches each one while the devices work on the next one.

  Args:
    compute: program batch -> rows, with `mask` and with the flags of `finite.compute_flags`.
    batches: batches of images. They are closed at the end.
    poll: called before each batch. Raises an exception to stop.
    size: images per batch.
    name: function that returns the name of a record, for errors.

  Yields:
    The rows of the images of a batch, in order and without padding, and their `position` in the source.

  Raises:
    NotFiniteError: an output of an image is NaN or infinite.
  """
  running = None
  with contextlib.closing(batches) as feed:
    for number, images in enumerate(feed):
      poll()
      started = compute(images)
      if running is not None:
        yield _fetch_rows(running, (number - 1) * size, name)
      running = started
    if running is not None:
      yield _fetch_rows(running, number * size, name)


def _fetch_rows(running: Rows, first: int, name: Callable[[int], str]) -> dict[str, np.ndarray]:
  """Returns the rows of a batch on the host."""
  computed = jax.device_get(running)
  real = computed.pop("valid") > 0
  positions = first + np.flatnonzero(real)
  of_images = finite.check_flags({key: value[real] for key, value in computed.items()}, positions, name)
  return of_images | {"position": positions}

"""What evaluations measure, what they give, and the rows that a model makes of the images of a split."""

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from vit_jax import digests, mesh, models
from vit_jax.data import augment, device_batches, loader, sources, stream
from vit_jax.models import finite
from vit_jax.schema import Choice, ConfigError, arguments, at, place

Screen = Callable[[str, int, int], contextlib.AbstractContextManager]  # (of what, images, at a time): has add(images)


@dataclasses.dataclass(frozen=True)
class Subject:
  """A model on a mesh, and the data that it is measured on. A `data` of None stands for the run's own."""

  model: models.Model
  mesh: jax.sharding.Mesh
  own: Choice | None  # the run's data; None: every evaluation brings its own
  batch: int  # images at a time, unless an evaluation says otherwise
  open_split: Callable[[Choice, str], sources.Source]  # of data and a split
  predict: Callable | None = None  # `tasks.Task.predict`; None: only features are measured
  names: tuple[str, ...] = ()  # of the classes of the run's own data; () if they are unknown
  screen: Screen | None = None  # where it is shown how many images are done; None: nowhere
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

  def predictions(self, data: Choice | None, logits: bool, classes: tuple[int, ...] | None = None) -> Callable:
    """(params, batch) -> rows of `metrics.Predictions` for the whole batch, on every process.

    Only the logits of these `classes` compete; None: all do. ConfigError if nothing but features can be measured.
    """
    if self.predict is None:
      raise ConfigError("it needs predictions, but this command measures only features. Use vit_jax.evaluate")

    def rows(params, images, labels):
      predicted = self.predict(params, images, labels, classes)
      kept = {name: value for name, value in predicted.items() if logits or name != "logits"}
      return kept | finite.flagged(predicted)

    return self._program(("logits" if logits else "best", classes), data, rows)

  def features(self, data: Choice | None, kind: models.Features = "head") -> Callable:
    """(params, batch) -> "features" [B, D], on every process; ConfigError for a kind that the model does not have."""
    of_image = self.model.features_of(kind)

    def rows(params, images, labels):
      made = {"features": of_image(self.model.outputs(params, images)[0])}
      return made | finite.flagged(made)

    return self._program(("features", kind), data, rows)

  def tokens(self, data: Choice | None) -> Callable:
    """(params, batch) -> "tokens" [B, P, P, D] of square images, float32, on every process."""
    return self._program("tokens", data, self._map)

  def segments(self, data: Choice | None) -> Callable:
    """((params, kernel [D, V], bias [V]), batch) -> "classes" [B, S, S] uint8, on every process.

    Scores of tokens, scaled to the pixels of the images (bilinear, corners not aligned); of each pixel the best class.
    """

    def rows(parameters, images, labels):
      params, kernel, bias = parameters
      tokens = self._map(params, images, labels)["tokens"]
      scores = jnp.einsum("bpqd,dv->vbpq", tokens, kernel, precision="highest") + bias[:, None, None, None]
      flags = finite.flagged({"scores of pixels": rearrange(scores, "v b p q -> b p q v")})
      return {"classes": resized_best(scores, images.shape[1])} | flags

    return self._program("segments", data, rows)

  @functools.cached_property
  def map_shape(self) -> tuple[int, int, int]:
    """(P, P, D) of the patches of an image, or of the last map. ConfigError where they are no square."""
    size, dtype = self.model.description.image_size, self.model.description.model.args["dtype"]
    images = jax.ShapeDtypeStruct((self.batch, size, size, self.model.description.channels), dtype)
    tokens = jax.eval_shape(lambda *of: self.model.outputs(*of)[0].tokens, self.model.shapes(), images)
    patches = tokens.shape[1] - sum(self.model.prefix.values())
    if (side := math.isqrt(patches)) ** 2 != patches:
      raise ConfigError(f"{self.model.description.model.name} has {patches} patches, which are no square")
    return side, side, tokens.shape[2]

  def _map(self, params, images, labels):
    tokens = self.model.outputs(params, images)[0].tokens[:, sum(self.model.prefix.values()) :]
    made = {"tokens": rearrange(tokens.astype(jnp.float32), "b (p q) d -> b p q d", p=self.map_shape[0])}
    return made | finite.flagged(made)

  def batches(self, data: Choice | None, source: sources.Source, size: int) -> device_batches.DeviceBatches:
    """Batches of `size` images that cover the source once, padded; to be closed."""
    split = mesh.batch(self.mesh)
    rows = mesh.local_rows(split, size)
    examples = stream.eval_examples(source, **arguments(self.data(data), stream.eval_examples))
    batches = loader.batches(examples, size, rows, **arguments(self.data(data), loader.batches))
    return device_batches.DeviceBatches(batches, rows, size, split)

  @contextlib.contextmanager
  def counting(self, source: sources.Source, size: int, poll: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """`poll` for `parts` of the source's batches, which also shows on the screen how many of the images are done."""
    if self.screen is None:
      yield poll
      return
    with self.screen(f"{source.name} {source.split}", len(source), size) as screen:
      polls = 0

      def counted():
        nonlocal polls
        poll()
        if polls > 1:  # one batch is computed, and one before it is not fetched yet
          screen.add(size)
        polls += 1

      yield counted

  def images_at_once(self, size: int | None) -> int:
    """`size`, or by default the run's batch; ConfigError if the devices cannot share it evenly."""
    chosen, shards = size or self.batch, mesh.batch_shards(self.mesh)
    if chosen % shards:
      key = "batch" if size else "config.batch"
      raise ConfigError(f"{chosen} does not divide over {shards} devices; take a multiple of {shards}", key)
    return chosen

  def identity(self, params: dict[str, jax.Array]) -> str:
    """A text that changes with the model and with any bit of its weights, and not with the devices."""
    model = json.dumps(self.model.description.to_json(), sort_keys=True)
    return f"{model} {digests.sha256(params, mesh.replicated(self.mesh))}"

  def _program(self, kind, data, rows):
    """`rows(params, images, labels)` compiled for batches; shared by data that are normalised alike."""
    normalisation = arguments(self.data(data), augment.normalise)
    key = (kind, *normalisation.values())
    if key not in self.programs:
      dtype = np.dtype(self.model.description.model.args["dtype"])
      normalise = functools.partial(augment.normalise, dtype=dtype, **normalisation)

      def program(params, batch):
        computed = rows(params, normalise(batch["image"]), batch["label"])
        return {**computed, "label": batch["label"], "mask": batch["mask"]}

      self.programs[key] = jax.jit(program, out_shardings=mesh.replicated(self.mesh))
    return self.programs[key]


def resized_best(scores: jax.Array, size: int) -> jax.Array:
  """[V, B, P, P] -> the number uint8 of the best class at each pixel [B, S, S], S = `size`; of equals the first.

  Class by class: the scores of all at every pixel would take V times the memory.
  """

  def better(best, candidate):
    (score, number), (scores_of_one, one) = best, candidate
    resized = jax.image.resize(scores_of_one, score.shape, "bilinear")
    return (jnp.maximum(score, resized), jnp.where(resized > score, one, number)), None

  shape = (scores.shape[1], size, size)
  nothing = jnp.full(shape, -jnp.inf, scores.dtype), jnp.zeros(shape, jnp.uint8)
  (_, best), _ = jax.lax.scan(better, nothing, (scores, jnp.arange(len(scores), dtype=jnp.uint8)))
  return best


def open_source(subject: Subject, data: Choice | None, split: str, key: str) -> sources.Source:
  """The source of an evaluation's split, which its own `key` names; what cannot be prepared is an error too."""
  try:
    with at("config.data" if data is None else "data"):
      source = dataclasses.replace(subject.source(data, split), key=place())
      stream.eval_examples(source, **arguments(subject.data(data), stream.eval_examples))
  except sources.SplitError as error:
    if split in ("train", "val", "test"):
      raise
    raise sources.SplitError(error.message, key) from None  # the data know nothing of this split string
  return source


class Outcome(NamedTuple):
  """Figures of one measurement, and what they were made of."""

  figures: dict[str, float]
  details: object  # metrics.Predictions and the like


def rows(
  compute: Callable, batches: Iterator, poll: Callable[[], None], size: int, name: Callable[[int], str]
) -> dict[str, np.ndarray]:
  """Computes all batches; see `parts`. Returns {name: array} for all images together."""
  computed = list(parts(compute, batches, poll, size, name))
  return {name: np.concatenate([part[name] for part in computed]) for name in computed[0]}


def parts(
  compute: Callable, batches: Iterator, poll: Callable[[], None], size: int, name: Callable[[int], str]
) -> Iterator[dict[str, np.ndarray]]:
  """Computes batches, and fetches each one while the devices work on the next.

  Args:
    compute: program batch -> rows, with `mask` and with the flags of `finite.flagged`.
    batches: of images; closed at the end.
    poll: called before each batch; raises an exception to stop.
    size: images of a batch.
    name: returns the name of a record, for errors.

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
        yield _fetched(running, (number - 1) * size, name)
      running = started
    if running is not None:
      yield _fetched(running, number * size, name)


def _fetched(running, first, name) -> dict[str, np.ndarray]:
  """Returns the rows of a batch on the host."""
  computed = jax.device_get(running)
  real = computed.pop("mask") > 0
  positions = first + np.flatnonzero(real)
  of_images = finite.checked({key: value[real] for key, value in computed.items()}, positions, name)
  return of_images | {"position": positions}

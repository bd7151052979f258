"""Masked patch prediction: the model predicts the content of corrupted patches.

    --config.task.name=masked_patches [--config.task.targets=small_patches]

The source is Dosovitskiy et al. 2021, appendix B.1.2. The task ignores labels, and the model has no head. Use the
evaluations `masked` and `fewshot`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange, reduce

from vit_jax import losses, models, rng
from vit_jax.data.views import Fields
from vit_jax.schema import Choice, ConfigError, Fraction, Range, format_amount, make
from vit_jax.shapes import Array, Float, Integer, PRNGKey, Shaped, Tensor
from vit_jax.tasks import masking
from vit_jax.tasks.task import Batch, Context, Labels, Objective, Params, Task, TaskContext

LEVELS = 8  # levels per channel: three bits
COLOURS = LEVELS**3
HEAD, TOKEN = "task/head", "task/mask_token"


@dataclasses.dataclass(frozen=True)
class Target:
  """A quantity that is predicted for each corrupted patch.

  Attributes:
    outputs: number of outputs that the linear head has for each patch.
    metric: name of the metric.
    make_targets: function from patches (B, N, P, P, C) with values in 0..1 to targets (B, N, ...).
    compare: function from predictions (B, M, outputs) and targets (B, M, ...) to the loss (B, M) and the metric (B, M).
  """

  outputs: int
  metric: str
  make_targets: Callable[[Tensor], Tensor]
  compare: Callable[[Tensor, Tensor], tuple[Array, Array]]


def mean_colour(patch: int) -> Target:
  """Returns the target of the paper: the mean colour with 3 bits per channel, as one of 512 classes.

  Args:
    patch: side of the patches in pixels.
  """

  def make_targets(patches: Tensor) -> Array:
    return classify_colours(reduce(patches, "b n i j c -> b n c", "mean"))

  return Target(COLOURS, "accuracy", make_targets, _cross_entropy)


def small_patches(patch: int) -> Target:
  """Returns a target with 16 colours: the patch is reduced to 4x4 pixels, each with one of 512 colours.

  Args:
    patch: side of the patches in pixels, a multiple of 4.

  Raises:
    ConfigError: if the side is not a multiple of 4.
  """
  if patch % 4:
    raise ConfigError(
      f"a patch of {format_amount(patch, 'pixel')} cannot be reduced to 4x4 pixels. Use another model, or 'mean_colour'"
    )

  def make_targets(patches: Tensor) -> Array:
    return classify_colours(reduce(patches, "b n (y i) (x j) c -> b n (y x) c", "mean", y=4, x=4))

  def compare(predicted: Tensor, targets: Tensor) -> tuple[Array, Array]:
    loss, right = _cross_entropy(rearrange(predicted, "b m (p v) -> b m p v", p=16), targets)
    return loss.mean(-1), right.mean(-1)

  return Target(16 * COLOURS, "accuracy", make_targets, compare)


def pixels(patch: int) -> Target:
  """Returns a target with all pixels, compared by the mean squared error.

  The metric is the root of the error, for pixel values in 0..1.

  Args:
    patch: side of the patches in pixels.
  """

  def make_targets(patches: Tensor) -> Tensor:
    return rearrange(patches, "b n i j c -> b n (i j c)")

  def compare(predicted: Tensor, targets: Tensor) -> tuple[Array, Array]:
    squared = jnp.square(predicted.astype(jnp.float32) - targets).mean(-1)
    return squared, jnp.sqrt(squared)

  return Target(3 * patch**2, "rmse", make_targets, compare)


TARGETS = {"mean_colour": mean_colour, "small_patches": small_patches, "pixels": pixels}


def classify_colours(values: Float[Tensor, "*B 3"]) -> Integer[Array, "*B"]:
  """Returns the class of each colour, with 8 levels per channel and red as the most significant digit.

  Args:
    values: red, green and blue (..., 3) in 0..1.
  """
  levels = jnp.clip(jnp.floor(values * LEVELS), 0, LEVELS - 1).astype(jnp.int32)
  return levels @ jnp.array([LEVELS**2, LEVELS, 1])


def _cross_entropy(logits: Tensor, classes: Tensor) -> tuple[Array, Array]:
  targets = jax.nn.one_hot(classes, COLOURS, dtype=jnp.float32)
  return losses.softmax_cross_entropy(logits, targets), (jnp.argmax(logits, -1) == classes).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class MaskedPatches(Task):
  """A masked patch prediction task: a linear head predicts corrupted patches from the encoder's tokens.

  The loss is the mean over the corrupted patches.

  Args:
    supplied: the objects that the run supplies, such as the model.
    targets: quantity to predict: `mean_colour`, `small_patches` or `pixels`.
    share: share of the patches of each image that are corrupted and contribute to the loss.
    masked: share of the corrupted patches that are replaced by the learned mask token.
    swapped: share of the corrupted patches that get the embedding of another patch of the image. The remaining
      corrupted patches keep their own embedding.

  Raises:
    ConfigError: if the model's tokens are not patches, or if an argument is out of range.
  """

  supplied: TaskContext
  _: dataclasses.KW_ONLY
  targets: Annotated[Choice, TARGETS] = Choice("mean_colour")
  share: Annotated[float, Range(0, 1, open_low=True)] = 0.5
  masked: Fraction = 0.8
  swapped: Fraction = 0.1

  classes: ClassVar[bool] = False
  sharding: ClassVar[models.ShardingRules] = (
    (rf"{HEAD}/kernel", ("fsdp", None)),
    (rf"{HEAD}/bias|{TOKEN}", (None,)),
  )

  def __post_init__(self) -> None:
    masking.require_patch(self.supplied.model)
    if self.masked + self.swapped > 1:
      raise ConfigError(f"{self.swapped}, but masked is {self.masked}: their sum is above 1", "swapped")
    if not self._corrupted:
      raise ConfigError(
        f"{self.share} of {format_amount(self._patches, 'patch', 'patches')} is less than one patch", "share"
      )

  @functools.cached_property
  def target(self) -> Target:
    """The quantity that is predicted for each patch."""
    return make(self.targets, TARGETS, masking.require_patch(self.supplied.model))

  @property
  def headline(self) -> str:
    """Returns the name of the metric: "accuracy" of colours, or "rmse" of pixels."""
    return self.target.metric

  @property
  def fields(self) -> Fields:
    """Returns the fields of a batch: images without labels."""
    return Fields(self.supplied.patch, label=False)

  @property
  def _patches(self) -> int:
    return masking.count_patches(self.supplied.model)

  @property
  def _corrupted(self) -> int:
    return round(self.share * self._patches)

  def init(self, key: PRNGKey) -> dict[str, Shaped[Array, "..."]]:
    """Returns the initial mask token and the initial linear head."""
    width = masking.token_width(self.supplied.model)
    keys = jax.random.split(key)
    return {
      TOKEN: 0.02 * jax.random.normal(keys[0], (width,)),
      f"{HEAD}/kernel": 0.02 * jax.random.normal(keys[1], (width, self.target.outputs)),
      f"{HEAD}/bias": jnp.zeros(self.target.outputs),
    }

  def examples(self, batch: Batch, context: Context, key: PRNGKey) -> Batch:
    """Returns augmented images and the masks from `masks`.

    Args:
      batch: the batch with "image" (uint8) and "draw".
      context: values of the step.
      key: random key of the step.
    """
    none = jnp.zeros((len(batch["image"]), 1))
    images, _ = self.supplied.augment(self.fields.patch)(key, batch["image"], none, batch["draw"], context.step)
    return {"image": images, **self.masks(masking.derive_mask_key(key), len(images))}

  def masks(self, key: PRNGKey, batch: int) -> Batch:
    """Draws the corrupted patches of each image and their replacements.

    Args:
      key: random key.
      batch: number of images.

    Returns:
      {"corrupted": (B, M), "instead": (B, M)}. "corrupted" contains the numbers of the corrupted patches. "instead"
      contains the numbers of the patches that provide the new embeddings, and the number N for the mask token.
    """
    order, kind, other = jax.random.split(key, 3)
    corrupted = masking.draw_orders(order, batch, self._patches)[:, : self._corrupted]
    draw = jax.random.uniform(kind, corrupted.shape)
    away = jax.random.randint(other, corrupted.shape, 1, max(self._patches, 2))
    swapped = jnp.where(draw < self.masked + self.swapped, (corrupted + away) % self._patches, corrupted)
    return {"corrupted": corrupted, "instead": jnp.where(draw < self.masked, self._patches, swapped)}

  def objective(self, params: Params, context: Context, examples: Batch, key: PRNGKey | None) -> Objective:
    """Returns the mean loss and metric over all corrupted patches.

    Args:
      params: parameters by path, including the mask token and the linear head.
      context: unused.
      examples: the result of `examples`.
      key: random key of dropout and stochastic depth, or None for evaluation.

    Returns:
      The loss, and a pair of {name of the metric: value} and the statistics that the model has updated.
    """
    loss, metric, statistics = self._compare_patches(params, examples, key)
    return jnp.mean(loss), ({self.headline: jnp.mean(metric)}, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Batch:
    """Returns the loss and the metric of each image, with the same masks for all images.

    Args:
      params: parameters by path, including the mask token and the linear head.
      images: normalised images.
      labels: unused.
      classes: unused.
    """
    masks = {name: masking.repeat_order(rows[0], len(images)) for name, rows in self.masks(rng.make_key(0), 1).items()}
    loss, metric, _ = self._compare_patches(params, {"image": images} | masks, None)
    return {"loss": loss.mean(1), self.headline: metric.mean(1)}

  def _compare_patches(
    self, params: Params, examples: Batch, key: PRNGKey | None
  ) -> tuple[Array, Array, dict[str, Array]]:
    """Returns (loss (B, M), metric (B, M), statistics) of the corrupted patches."""
    images, corrupted = examples["image"], examples["corrupted"]
    corrupt = functools.partial(corrupt_embeddings, params[TOKEN], corrupted, examples["instead"])
    outputs, statistics = self.supplied.model.outputs(params, images, key, corrupt=corrupt)
    tokens = _take_rows(outputs.tokens[:, -self._patches :], corrupted)
    predicted = tokens @ params[f"{HEAD}/kernel"].astype(tokens.dtype) + params[f"{HEAD}/bias"].astype(tokens.dtype)
    patches = masking.cut_patches(self.supplied.pixels(images), masking.require_patch(self.supplied.model))
    return *self.target.compare(predicted, _take_rows(self.target.make_targets(patches), corrupted)), statistics


def _take_rows(x: Shaped[Tensor, "B N *x"], numbers: Integer[Tensor, "B M"]) -> Shaped[Array, "B M *x"]:
  """Returns the rows of each image with the given numbers."""
  return jnp.take_along_axis(x, numbers.reshape(*numbers.shape, *[1] * (x.ndim - 2)), axis=1)


def corrupt_embeddings(
  token: Float[Tensor, " D"],
  corrupted: Integer[Tensor, "B M"],
  instead: Integer[Tensor, "B M"],
  embeddings: Float[Tensor, "B N D"],
) -> Float[Array, "B N D"]:
  """Replaces the embeddings of corrupted patches.

  Args:
    token: the mask token.
    corrupted: numbers of the corrupted patches.
    instead: number of the patch whose embedding replaces the corrupted one, or N for the mask token.
    embeddings: embeddings of all patches.

  Returns:
    The embeddings after the replacements.
  """
  batch, patches, width = embeddings.shape
  tokens = jnp.broadcast_to(token.astype(embeddings.dtype), (batch, 1, width))
  numbers = jnp.broadcast_to(np.arange(patches), (batch, patches))
  numbers = jax.vmap(lambda row, at, values: row.at[at].set(values))(numbers, corrupted, instead)
  return _take_rows(jnp.concatenate([embeddings, tokens], axis=1), numbers)

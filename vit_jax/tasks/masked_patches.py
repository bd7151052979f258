"""Masked patch prediction (Dosovitskiy et al. 2021, appendix B.1.2): tokens of corrupted patches tell what was there.

    --config.task.name=masked_patches [--config.task.targets=small_patches]

No label is looked at, and the model has no head; evaluations are `masked` and `fewshot`.
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
from vit_jax.schema import Choice, ConfigError, Fraction, Range, amount, make
from vit_jax.shapes import Array, Count, Float, Integer, PRNGKey, Shaped, Tensor
from vit_jax.tasks import masking
from vit_jax.tasks.task import Labels, Objective, Params, Rows, Supplied

LEVELS = 8  # of a channel: three bits
COLOURS = LEVELS**3
HEAD, TOKEN = "task/head", "task/mask_token"


@dataclasses.dataclass(frozen=True)
class Target:
  """What is told of a patch."""

  outputs: int  # numbers that tell it
  metric: str
  of: Callable  # patches [B, N, P, P, C], values 0..1 -> targets [B, N, ...]
  compare: Callable  # (predicted [B, M, outputs], targets [B, M, ...]) -> (loss [B, M], metric [B, M])


def mean_colour(patch: int) -> Target:
  """The mean colour of 3 bits a channel, one of 512 classes: the paper's choice."""

  def of(patches):
    return colour(reduce(patches, "b n i j c -> b n c", "mean"))

  return Target(COLOURS, "accuracy", of, _cross_entropy)


def small_patches(patch: int) -> Target:
  """The patch made 4x4, each of its 16 pixels one of 512 colours."""
  if patch % 4:
    raise ConfigError(f"a patch of {amount(patch, 'pixel')} cannot be made 4x4; take another model, or 'mean_colour'")

  def of(patches):
    return colour(reduce(patches, "b n (y i) (x j) c -> b n (y x) c", "mean", y=4, x=4))

  def compare(predicted, targets):
    loss, right = _cross_entropy(rearrange(predicted, "b m (p v) -> b m p v", p=16), targets)
    return loss.mean(-1), right.mean(-1)

  return Target(16 * COLOURS, "accuracy", of, compare)


def pixels(patch: int) -> Target:
  """All pixels, by the mean squared distance; the metric is its root, in values of 0..1."""

  def of(patches):
    return rearrange(patches, "b n i j c -> b n (i j c)")

  def compare(predicted, targets):
    squared = jnp.square(predicted.astype(jnp.float32) - targets).mean(-1)
    return squared, jnp.sqrt(squared)

  return Target(3 * patch**2, "rmse", of, compare)


TARGETS = {"mean_colour": mean_colour, "small_patches": small_patches, "pixels": pixels}


def colour(values: Float[Tensor, "*B 3"]) -> Integer[Array, "*B"]:
  """The class of a colour, values of 0..1: red, green, blue of 8 levels each, red first."""
  levels = jnp.clip(jnp.floor(values * LEVELS), 0, LEVELS - 1).astype(jnp.int32)
  return levels @ jnp.array([LEVELS**2, LEVELS, 1])


def _cross_entropy(logits, classes):
  targets = jax.nn.one_hot(classes, COLOURS, dtype=jnp.float32)
  return losses.softmax_cross_entropy(logits, targets), (jnp.argmax(logits, -1) == classes).astype(jnp.float32)


@dataclasses.dataclass(frozen=True)
class MaskedPatches:
  """Mean loss over the corrupted patches of telling what they show, from the encoder's tokens by one linear map.

  Args:
    targets: what is told: `mean_colour`, `small_patches` or `pixels`.
    share: of the patches of each image that are corrupted, and that count.
    masked: share of these whose embedding becomes the mask token, which is learned.
    swapped: share of these whose embedding becomes that of another patch of the image. The others stay.
  """

  supplied: Supplied
  _: dataclasses.KW_ONLY
  targets: Annotated[Choice, TARGETS] = Choice("mean_colour")
  share: Annotated[float, Range(0, 1, open_low=True)] = 0.5
  masked: Fraction = 0.8
  swapped: Fraction = 0.1

  classes: ClassVar[bool] = False
  frozen: ClassVar[None] = None
  sharding: ClassVar[models.Rows] = (
    (rf"{HEAD}/kernel", ("fsdp", None)),
    (rf"{HEAD}/bias|{TOKEN}", (None,)),
  )

  def __post_init__(self):
    masking.check(self.supplied.model)
    if self.masked + self.swapped > 1:
      raise ConfigError(f"{self.swapped}, and masked is {self.masked}: together more than all", "swapped")
    if not self._corrupted:
      raise ConfigError(f"{self.share} of {self._patches} patches is less than one", "share")

  @functools.cached_property
  def target(self) -> Target:
    """What is told of a patch."""
    return make(self.targets, TARGETS, self.supplied.model.patch)

  @property
  def headline(self) -> str:
    """Accuracy of colours, or root mean square of the errors of pixels."""
    return self.target.metric

  @property
  def patch(self) -> int | None:
    """Images come cut where they may."""
    return self.supplied.patch

  @property
  def _patches(self):
    return masking.count(self.supplied.model)

  @property
  def _corrupted(self):
    return round(self.share * self._patches)

  def init(self, key: PRNGKey) -> Params:
    """The mask token, and the linear map."""
    width = masking.width(self.supplied.model)
    keys = jax.random.split(key)
    return {
      TOKEN: 0.02 * jax.random.normal(keys[0], (width,)),
      f"{HEAD}/kernel": 0.02 * jax.random.normal(keys[1], (width, self.target.outputs)),
      f"{HEAD}/bias": jnp.zeros(self.target.outputs),
    }

  def examples(self, batch: Rows, frozen: Params, key: PRNGKey, step: Count) -> Rows:
    """Augmented images, and the masks of `masks`."""
    none = jnp.zeros((len(batch["image"]), 1))
    images, _ = self.supplied.augment(self.patch)(key, batch["image"], none, batch["draw"], step)
    return {"image": images} | self.masks(masking.drawn(key), len(images))

  def masks(self, key: PRNGKey, batch: int) -> Rows:
    """ "corrupted" [B, M], numbers of the patches that count, and "instead" [B, M], of those whose embedding they get.

    Number N stands for the mask token.
    """
    order, kind, other = jax.random.split(key, 3)
    corrupted = masking.orders(order, batch, self._patches)[:, : self._corrupted]
    draw = jax.random.uniform(kind, corrupted.shape)
    away = jax.random.randint(other, corrupted.shape, 1, max(self._patches, 2))
    swapped = jnp.where(draw < self.masked + self.swapped, (corrupted + away) % self._patches, corrupted)
    return {"corrupted": corrupted, "instead": jnp.where(draw < self.masked, self._patches, swapped)}

  def objective(self, params: Params, examples: Rows, key: PRNGKey | None) -> Objective:
    """Mean loss and metric over all corrupted patches."""
    loss, metric, statistics = self._compared(params, examples, key)
    return jnp.mean(loss), ({self.headline: jnp.mean(metric)}, statistics)

  def predict(
    self, params: Params, images: Float[Tensor, "B ..."], labels: Labels, classes: Sequence[int] | None = None
  ) -> Rows:
    """Loss and metric of each image, whose masks are the same for all images."""
    masks = {name: masking.same(rows[0], len(images)) for name, rows in self.masks(rng.key(0), 1).items()}
    loss, metric, _ = self._compared(params, {"image": images} | masks, None)
    return {"loss": loss.mean(1), self.headline: metric.mean(1)}

  def _compared(self, params, examples, key):
    """(loss [B, M], metric [B, M], statistics) of the corrupted patches."""
    images, corrupted = examples["image"], examples["corrupted"]
    corrupt = functools.partial(_corrupt, params[TOKEN], corrupted, examples["instead"])
    outputs, statistics = self.supplied.model.outputs(params, images, key, corrupt=corrupt)
    tokens = _rows(outputs.tokens[:, -self._patches :], corrupted)
    predicted = tokens @ params[f"{HEAD}/kernel"].astype(tokens.dtype) + params[f"{HEAD}/bias"].astype(tokens.dtype)
    patches = masking.patches(self.supplied.pixels(images), self.supplied.model.patch)
    return *self.target.compare(predicted, _rows(self.target.of(patches), corrupted)), statistics


def _rows(x: Shaped[Tensor, "B N *x"], numbers: Integer[Tensor, "B M"]) -> Shaped[Array, "B M *x"]:
  """Rows of each image by their numbers."""
  return jnp.take_along_axis(x, numbers.reshape(*numbers.shape, *[1] * (x.ndim - 2)), axis=1)


def _corrupt(token, corrupted, instead, embeddings: Float[Tensor, "B N D"]) -> Float[Array, "B N D"]:
  """The embeddings, those of the corrupted patches by what stands instead."""
  batch, patches, width = embeddings.shape
  tokens = jnp.broadcast_to(token.astype(embeddings.dtype), (batch, 1, width))
  numbers = jnp.broadcast_to(np.arange(patches), (batch, patches))
  numbers = jax.vmap(lambda row, at, values: row.at[at].set(values))(numbers, corrupted, instead)
  return _rows(jnp.concatenate([embeddings, tokens], axis=1), numbers)
